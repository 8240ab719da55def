"""What a run shows on a terminal, and in logs."""

import io
import os
import pty
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from typing import Any, TextIO

import pytest

from rg_env.core.text import visible_line
from rg_env.training.reporting.console import COMPLETION_LENGTH, RunConsole, shorten, spread

METRICS = {"reward": 0.5, "accuracy": 0.25, "completions/mean_length": 33.4, "loss": 0.02, "step_time": 1.234,
           "tokens_per_second": 2345.6}  # fmt: skip
XTERM = {"TERM": "xterm-256color", "COLUMNS": "120"}


class Terminal:
    """A real pseudo-terminal: `stream` is what a program writes to, `shown` what arrives."""

    def __init__(self) -> None:
        self._ours, theirs = pty.openpty()
        self.stream: TextIO = os.fdopen(theirs, "w", encoding="utf-8")

    def shown(self) -> str:
        self.stream.flush()
        os.set_blocking(self._ours, False)
        parts = []
        try:
            while part := os.read(self._ours, 65536):
                parts.append(part)
        except OSError:  # nothing more
            pass
        return b"".join(parts).decode()

    def close(self) -> None:
        self.stream.close()
        os.close(self._ours)


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    made = Terminal()
    yield made
    made.close()


@contextmanager
def closing(console: RunConsole) -> Iterator[RunConsole]:
    try:
        yield console
    finally:
        console.close()


def example(**changes: Any) -> dict[str, Any]:
    record = {"task": "leg_counting", "question": "How many legs?", "completion": "<answer>4</answer>", "answer": "4"}
    return {**record, "completion_tokens": 5, "reward": 1.0, "correct": True, "status": "correct", **changes}


def test_a_terminal_has_one_line_that_renews_itself(terminal: Terminal) -> None:
    """With the step, a bar, metrics and the remaining time; other lines are above it."""
    with closing(RunConsole(terminal.stream, XTERM)) as console:
        for step in (1, 2, 3):
            console.step(step, 20, METRICS | {"reward": step / 10})
        console.line("evaluation after step 3: accuracy 0.50")
        console.step(4, 20, METRICS)
        shown = terminal.shown()
    for words in ("4/20", "━", "reward 0.30", "accuracy 0.25", "length 33 tokens", "1.23 s/step", "left"):
        assert words in shown
    assert "\x1b[2K" in shown  # the line is erased, and written anew
    assert shown.count("\n") == 1  # that of the evaluation
    assert shown.index("reward 0.30") < shown.index("evaluation after step 3") < shown.index("4/20")


def test_the_terminal_is_left_as_it_was(terminal: Terminal) -> None:
    """The cursor is shown again, other output is above the line, and printing goes where it went."""
    with redirect_stdout(terminal.stream):
        with closing(RunConsole(terminal.stream, XTERM)) as console:
            console.step(1, 2, METRICS)
            assert "\x1b[?25l" in terminal.shown()
            print("said by a library")
        assert sys.stdout is terminal.stream
    shown = terminal.shown()
    assert "said by a library" in shown
    assert "\x1b[?25h" in shown
    console.close()


@pytest.mark.parametrize("environ", [{"TERM": "dumb"}, {"TERM": ""}, {}], ids=str)
def test_a_terminal_without_escape_codes_gets_lines(terminal: Terminal, environ: dict[str, str]) -> None:
    with closing(RunConsole(terminal.stream, environ)) as console:
        console.step(1, 2, METRICS)
        console.examples(1, [example()])
    assert "\x1b" not in terminal.shown()


def test_elsewhere_it_is_a_line_a_step() -> None:
    """Without escape codes, even where colors are forced, and never broken into two."""
    stream = io.StringIO()
    with closing(RunConsole(stream, {"FORCE_COLOR": "1", "COLUMNS": "20"})) as console:
        console.step(1, 20, METRICS)
        console.step(2, 20, {"reward": 0.0})
        console.examples(2, [example()])
    assert stream.getvalue().splitlines() == [
        "step   1/20  reward 0.50  accuracy 0.25  length 33 tokens  loss 0.020  1.23 s/step  2,346 tokens/s",
        "step   2/20  reward 0.00  length 0 tokens",
        "answers after step 2:",
        "  leg_counting  correct  reward 1.00",
        "    question:    How many legs?",
        "    completion:  <answer>4</answer>",
        "    gold answer: 4",
    ]


HOSTILE = {
    "markup": ("[red]x[/red] [/]", "[red]x[/red] [/]"),
    "escape sequence": ("a\x1b[31;1mb\x1b]0;title\x07", "a\\x1b[31;1mb\\x1b]0;title\\x07"),
    "8 bit": ("a\x9b31mb\x9d0;title\x9cc", "a\\x9b31mb\\x9d0;title\\x9cc"),
    "controls": ("a\x00b\x07c\x08d\rE\x7ff\x85g", "a\\x00b\\x07c\\x08d\\rE\\x7ff\\x85g"),
    "right to left": ("a\u202eb\u2066c\u200fd", "a\\u202eb\\u2066c\\u200fd"),
    "invisible": ("a\u200bb\ufeffc\u00add", "a\\u200bb\\ufeffc\\xadd"),
    "surrogate": ("a\ud800b", "a\\ud800b"),
    "lines": ("a\r\nb\nc\u2028d\te", "a ⏎ b ⏎ c\\u2028d e"),
    "scripts and emoji": ("שלום می\u200cخواهم 👩\u200d👧 漢", "שלום می\u200cخواهم 👩\u200d👧 漢"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_model_text_is_shown_and_not_obeyed(name: str, terminal: Terminal) -> None:
    """As data, on terminals and in logs: no markup, no escape sequence, nothing that turns or hides text."""
    text, expected = HOSTILE[name]
    assert visible_line(text) == expected
    plain = io.StringIO()
    for stream in (plain, terminal.stream):
        with closing(RunConsole(stream, XTERM)) as console:
            console.examples(1, [example(completion=text, question=text, answer=text, task=text)])
    assert plain.getvalue().count(expected) == 4
    shown = terminal.shown()
    assert shown.count(expected) == 4
    escapes = shown.count("\x1b")
    with closing(RunConsole(terminal.stream, XTERM)) as console:
        console.examples(1, [example()])
    assert escapes == terminal.shown().count("\x1b")  # our own styles, and no more


def test_long_text_is_left_out_in_the_middle() -> None:
    """Its beginning and its end are there; what fits is whole."""
    text = "begin " + "x" * 100_000 + " <answer>42</answer>"
    stream = io.StringIO()
    RunConsole(stream).examples(1, [example(completion=text)])
    line = next(line for line in stream.getvalue().splitlines() if "completion" in line)
    assert len(line) == COMPLETION_LENGTH + len("    completion:  ")
    assert "begin x" in line
    assert " … " in line
    assert line.endswith("<answer>42</answer>")
    assert shorten("x" * 50, 50) == "x" * 50
    assert len(shorten("x" * 51, 50)) == 50


def test_a_stream_that_cannot_write_everything_does_not_end_the_run() -> None:
    """What its encoding lacks is replaced."""
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii")
    console = RunConsole(stream)
    console.line("accuracy 0.50 ± 0.10")
    console.examples(1, [example(completion="é\ud800 漢")])
    assert b"accuracy 0.50 ? 0.10\n" in raw.getvalue()
    assert b"completion:  ?\\ud800 ?\n" in raw.getvalue()


def test_examples_of_other_environments() -> None:
    """Without a status, an accuracy or an answer; unknown values are not shown."""
    stream = io.StringIO()
    record = example(correct=None, reward=None, completion="", task="default")
    del record["status"]
    RunConsole(stream).examples(1, [record])
    assert "  default  reward none\n" in stream.getvalue()
    assert "completion:  (nothing)\n" in stream.getvalue()


def test_examples_are_spread_over_the_batch() -> None:
    """Adjacent records answer the same question."""
    records = [{"n": n} for n in range(8)]
    assert [record["n"] for record in spread(records, 2)] == [0, 4]
    assert spread(records[:1], 3) == records[:1]
    assert spread([], 3) == []
