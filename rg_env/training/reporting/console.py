"""Console output of a run: a live progress line on a terminal, and plain lines without escape codes in logs.

    console = RunConsole(sys.stdout)
    console.step(3, 200, {"reward": 0.5, "step_time": 1.2})
    console.examples(3, records)
    console.close()
    print_summary(folder, results, before, after)

Questions and completions are untrusted. They are printed as data, never as markup or terminal control codes.
"""

import io
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.text import Text

from rg_env.core.run_folder import checkpoint_step
from rg_env.core.statistics import with_interval
from rg_env.core.text import counted, visible_line, without_controls
from rg_env.evaluation.results import Results, Scores
from rg_env.evaluation.scores import together
from rg_env.evaluation.tables import print_results

QUESTION_LENGTH, COMPLETION_LENGTH, ANSWER_LENGTH = 200, 400, 100
"""Maximum number of characters for each part of an example."""
WIDE = 100
"""Minimum terminal width, in columns, for a progress bar."""
SAMPLES = 3
"""Number of questions printed in the summary with answers from before and after training."""
LABELS_IN_LINE = 3
FIGURES = {
    "reward": "reward {:.2f}",
    "accuracy": "accuracy {:.2f}",
    "completions/mean_length": "length {:.0f} tokens",
    "loss": "loss {:.3f}",
    "step_time": "{:.2f} s/step",
    "tokens_per_second": "{:,.0f} tokens/s",
}
"""Metrics shown for a step."""
_PROGRESS_EVERY_S = 15.0
_COLORS = {True: "green", False: "red", None: ""}


class RunConsole:
    """Shows a run's progress on `stream`.

    Args:
        stream: output stream. A terminal shows one live line, with other output above it.
        environ: environment variables that describe the terminal.
    """

    def __init__(self, stream: TextIO, environ: Mapping[str, str] = os.environ):
        if isinstance(stream, io.TextIOWrapper):  # characters that its encoding lacks must not end the run
            stream.reconfigure(errors="replace")
        self._live = stream.isatty() and environ.get("TERM") not in (None, "", "dumb", "unknown")
        self._console = Console(
            file=stream, force_terminal=self._live, highlight=False, markup=False, emoji=False, _environ=environ
        )
        self._progress: Progress | None = None
        self._task = TaskID(0)
        self._shown = time.monotonic()

    def step(self, step: int, max_steps: int, metrics: dict[str, Any]) -> None:
        """Show a step and those of its metrics that are in `FIGURES`. A step without `reward` reuses the last
        rollouts."""
        figures = {name: text.format(metrics[name]) for name, text in FIGURES.items() if name in metrics}
        if "reward" not in figures:
            figures = {"reward": "same rollouts", **figures}
        if not self._live:
            self.line(f"step {step:>3}/{max_steps}  {'  '.join(figures.values())}")
            return
        is_wide = self._console.width >= WIDE
        if self._progress is None:
            self._progress = _progress(self._console, is_wide)
            self._task = self._progress.add_task("", total=max_steps, completed=step, figures="")
            self._progress.start()
        left_out = {"tokens_per_second"} if is_wide else {"tokens_per_second", "loss"}
        text = ("  " if is_wide else " ").join(text for name, text in figures.items() if name not in left_out)
        self._progress.update(self._task, completed=step, figures=text, refresh=True)

    def evaluating(self, made: int, wanted: int) -> None:
        """Report an evaluation's progress, at most once every 15 seconds."""
        if made < wanted and time.monotonic() - self._shown > _PROGRESS_EVERY_S:
            self.line(f"evaluating: {made:,} of {wanted:,} answers")

    def line(self, text: str) -> None:
        """Print a line."""
        self._write(Text(text))

    def examples(self, step: int, records: Sequence[dict[str, Any]]) -> None:
        """Print the questions and answers in `records` (see `Rollouts.records`)."""
        self.line(f"answers after step {step}:")
        for record in records:
            for part in _example(record):
                self._write(Text.assemble(*part))

    def close(self) -> None:
        """Stop the progress line and leave it on the terminal. Can be called more than once."""
        if self._progress is not None:
            self._progress.stop()
            self._progress = None

    def _write(self, text: Text) -> None:
        self._shown = time.monotonic()
        self._console.print(text, soft_wrap=True)


def spread(records: Sequence[dict[str, Any]], number: int) -> list[dict[str, Any]]:
    """Select `number` evenly spaced records, because adjacent records answer the same question."""
    number = min(number, len(records))
    return [records[i * len(records) // number] for i in range(number)]


def shorten(text: str, length: int) -> str:
    """Shorten `text` to `length` characters by cutting out the middle, because the answer is at the end."""
    if len(text) <= length:
        return text
    tail = (length - 3) // 2
    return f"{text[: length - 3 - tail]} … {text[len(text) - tail :]}"


def _example(record: dict[str, Any]) -> list[list[tuple[str, str]]]:
    """An example's lines, each as a list of (text, style) pairs."""
    status = record.get("status") or {True: "correct", False: "wrong", None: ""}[record["correct"]]
    reward = "none" if record["reward"] is None else f"{record['reward']:.2f}"
    head = [(f"  {status}", _COLORS[record["correct"]])] if status else []
    lines = [[("  ", ""), (visible_line(record["task"]), "bold"), *head, (f"  reward {reward}", "")]]
    for name, key, length in (
        ("question", "question", QUESTION_LENGTH),
        ("completion", "completion", COMPLETION_LENGTH),
        ("gold answer", "answer", ANSWER_LENGTH),
    ):
        shown = shorten(visible_line(str(record[key])), length)
        lines.append([(f"    {name + ':':<13}", "dim"), (shown or "(nothing)", "" if shown else "dim")])
    return lines


def _progress(console: Console, is_wide: bool) -> Progress:
    wide = [TextColumn("step", markup=False), MofNCompleteColumn(), BarColumn(bar_width=16)]
    ours = console.file is sys.stdout
    return Progress(
        *(wide if is_wide else [MofNCompleteColumn()]),
        TextColumn("{task.fields[figures]}", markup=False),
        TimeRemainingColumn(),
        TextColumn("left", markup=False),
        console=console,
        auto_refresh=False,  # no additional thread during training
        redirect_stdout=ours,
        redirect_stderr=ours,
    )


def headline(evaluation: Results) -> str:
    """One-line summary of an evaluation, with 95% confidence intervals in brackets."""
    scores, parts = evaluation.overall(), []
    if scores is not None:
        if scores.accuracy is not None:
            parts.append(_measured(scores))
        for name, value in (
            ("greedy", scores.greedy_accuracy),
            *list(scores.pass_at_k.items())[-1:],
            ("reward", scores.reward),
        ):
            parts += [] if value is None else [f"{name} {value:.2f}"]
        if scores.mean_completion_tokens is not None:
            parts.append(f"length {scores.mean_completion_tokens:.0f} tokens")
        parts.append(f"on {counted(scores.n, 'problem')}")
    held_out, labelled = evaluation.overall("held_out"), list(evaluation.scores("labelled").items())
    others = [*([("held out", held_out)] if held_out else []), *labelled[:LABELS_IN_LINE]]
    parts += [f"{name}: {_measured(other)}  on {counted(other.n, 'problem')}" for name, other in others]
    if (more := len(labelled) - LABELS_IN_LINE) > 0:
        parts.append(f"and {more} more")
    return "  ".join(parts)


def _measured(scores: Scores) -> str:
    """The accuracy or, if it is not measured, the reward, as text."""
    name = "reward" if scores.accuracy is None else "accuracy"
    return f"{name} {with_interval(getattr(scores, name) or 0.0, scores.intervals.get(name), 2)}"


def print_summary(
    folder: Path, results: dict[str, Any], before: Results | None, after: Results | None, console: Console | None = None
) -> None:
    """Print a run's summary: scores before and after training, sample rollouts and files."""
    console = console or Console(highlight=False)
    ended = "Interrupted after" if results["interrupted"] else "Trained for"
    if rule := results.get("stopped_by"):
        ended = f"Stopped by monitor {rule} after"
    earlier = after and after.step != results["steps"]  # an interrupted run skips its last evaluation
    last = f"; the last evaluation was after {counted(after.step or 0, 'step')}" if after and earlier else ""
    console.print(
        f"\n{ended} {counted(results['steps'], 'step')} in {results['seconds']:.0f} s "
        f"({escape(str(results['model']))}, {results['engine']} engine){last}"
    )
    columns = {"before": before, f"after {counted(after.step or 0, 'step')}" if after else "": after}
    if made := {head: evaluation for head, evaluation in columns.items() if evaluation}:
        print_results(together(made), console)
    if before and after:
        for old, new in examples_of(before, after):
            _print_sample(console, old, new)
    files = sorted(folder.iterdir(), key=lambda file: (checkpoint_step(file) or 0, file.name))
    names = escape(", ".join(file.name for file in files))
    console.print(f"Files in [bold]{escape(str(folder))}[/]: {names}", soft_wrap=True)


def examples_of(before: Results, after: Results) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Up to `SAMPLES` pairs of answers to the same question, before and after training. One improved, one worsened and
    one unchanged pair come first, where available, followed by the other improved, worsened and unchanged pairs, in
    that order."""

    def value(record: dict[str, Any]) -> float:
        return float(record["reward"] if record["correct"] is None else record["correct"])

    first = [[r for r in each.rollouts if r["draw"] == "sampled" and r["rollout"] == 0] for each in (before, after)]
    kinds: dict[int, list[tuple[dict[str, Any], dict[str, Any]]]] = {1: [], -1: [], 0: []}
    for old, new in zip(*first, strict=True):
        kinds[(value(new) > value(old)) - (value(new) < value(old))].append((old, new))
    one_of_each = [pair for kind in kinds.values() for pair in kind[:1]]
    return [*one_of_each, *(pair for kind in kinds.values() for pair in kind[1:])][:SAMPLES]


def _print_sample(console: Console, before: dict[str, Any], after: dict[str, Any]) -> None:
    def shown(text: str) -> str:
        return escape(without_controls(text))

    question = (before["question"].strip().splitlines() or [""])[-1]
    console.print(f"[bold]{shown(before['task'])}[/]: {shown(question)}  (answer: {shown(before['answer'])})")
    for name, rollout in (("before", before), ("after", after)):
        mark = {True: "[green]right[/]", False: "[red]wrong[/]"}.get(
            rollout["correct"], f"reward {rollout['reward']:.2f}"
        )
        console.print(f"  {name}, {mark}:")
        for line in rollout["completion"].strip().splitlines() or ["(nothing)"]:
            console.print(f"    {shown(line)}", soft_wrap=True)
    console.print()
