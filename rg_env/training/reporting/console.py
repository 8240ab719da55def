"""How a run speaks on the console: a live progress line on a terminal; in logs, plain lines without escape codes.

    console = RunConsole(sys.stdout)
    console.step(3, 200, {"reward": 0.5, "step_time": 1.2})
    console.examples(3, records)
    console.close()

Questions and completions are untrusted: they are shown as data, never as markup or as something a terminal obeys.
"""

import os
import sys
from collections.abc import Sequence
from typing import Any, TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.text import Text

from rg_env.core.text import visible_line

QUESTION_LENGTH, COMPLETION_LENGTH, ANSWER_LENGTH = 200, 400, 100
"""Characters of an example that are shown."""
WIDE = 100
"""Columns of a terminal from which on there is room for a bar."""


class RunConsole:
    """Shows a run's progress on `stream`.

    Args:
        stream: a terminal gets one line that renews itself, and what else is printed meanwhile above it.
    """

    def __init__(self, stream: TextIO):
        self._stream = stream
        self._live = stream.isatty() and os.environ.get("TERM") not in (None, "", "dumb", "unknown")
        columns = os.environ.get("COLUMNS", "")
        self._console = Console(
            file=stream,
            force_terminal=self._live,
            width=int(columns) if columns.isdecimal() else None,
            highlight=False,
            markup=False,
            emoji=False,
        )
        self._progress: Progress | None = None
        self._task = TaskID(0)

    def step(self, step: int, max_steps: int, metrics: dict[str, Any]) -> None:
        """A step and its metrics: `reward`; where there are such, `accuracy`, `completions/mean_length` (tokens), and
        `step_time` (seconds)."""
        figures = [f"reward {metrics['reward']:.2f}"]
        if "accuracy" in metrics:
            figures.append(f"accuracy {metrics['accuracy']:.2f}")
        figures.append(f"length {metrics.get('completions/mean_length', 0):.0f} tokens")
        if "step_time" in metrics:
            figures.append(f"{metrics['step_time']:.2f} s/step")
        if not self._live:
            self.line(f"step {step:>3}/{max_steps}  {'  '.join(figures)}")
            return
        if self._progress is None:
            self._progress = _progress(self._console)
            self._task = self._progress.add_task("", total=max_steps, completed=step, figures="")
            self._progress.start()
        gap = "  " if self._console.width >= WIDE else " "
        self._progress.update(self._task, completed=step, figures=gap.join(figures), refresh=True)

    def line(self, text: str) -> None:
        """A line of its own."""
        self._write(Text(_printable(text, self._stream)))

    def examples(self, step: int, records: Sequence[dict[str, Any]]) -> None:
        """Questions and answers, as `rollout_records` gives them."""
        self.line(f"answers after step {step}:")
        for record in records:
            for part in _example(record):
                self._write(Text.assemble(*((_printable(text, self._stream), style) for text, style in part)))

    def close(self) -> None:
        """Leave the progress line as it is, and the cursor to the shell. Can be called again."""
        if self._progress is not None:
            self._progress.stop()
            self._progress = None

    def _write(self, text: Text) -> None:
        if self._live:
            self._console.print(text, soft_wrap=True)
        else:
            self._stream.write(f"{text.plain}\n")
        self._stream.flush()


def spread(records: Sequence[dict[str, Any]], number: int) -> list[dict[str, Any]]:
    """`number` of the records at equal distances: neighbours answer the same question."""
    number = min(number, len(records))
    return [records[i * len(records) // number] for i in range(number)]


def shorten(text: str, length: int) -> str:
    """At most `length` characters, left out in the middle: answers stand at the end."""
    if len(text) <= length:
        return text
    tail = (length - 3) // 2
    return f"{text[: length - 3 - tail]} … {text[len(text) - tail :]}"


def _printable(text: str, stream: TextIO) -> str:
    """Without what the stream's encoding lacks, which would end the run."""
    encoding = getattr(stream, "encoding", None) or "utf-8"
    return text.encode(encoding, "replace").decode(encoding)


def _example(record: dict[str, Any]) -> list[list[tuple[str, str]]]:
    """The lines of an example, each in parts: text and style."""
    status = record.get("status") or {True: "correct", False: "wrong", None: ""}[record["correct"]]
    colour = {True: "green", False: "red", None: ""}[record["correct"]]
    reward = "none" if record["reward"] is None else f"{record['reward']:.2f}"
    lines = [[("  ", ""), (visible_line(record["task"]), "bold"), (f"  {status}" if status else "", colour)]]
    lines[0].append((f"  reward {reward}", ""))
    for name, key, length in (
        ("question", "question", QUESTION_LENGTH),
        ("completion", "completion", COMPLETION_LENGTH),
        ("gold answer", "answer", ANSWER_LENGTH),
    ):
        shown = shorten(visible_line(str(record[key])), length)
        lines.append([(f"    {name + ':':<13}", "dim"), (shown or "(nothing)", "" if shown else "dim")])
    return lines


def _progress(console: Console) -> Progress:
    wide = [TextColumn("step", markup=False), MofNCompleteColumn(), BarColumn(bar_width=16)]
    ours = console.file is sys.stdout
    return Progress(
        *(wide if console.width >= WIDE else [MofNCompleteColumn()]),
        TextColumn("{task.fields[figures]}", markup=False),
        TimeRemainingColumn(),
        TextColumn("left", markup=False),
        console=console,
        auto_refresh=False,  # no thread beside the training
        redirect_stdout=ours,
        redirect_stderr=ours,
    )
