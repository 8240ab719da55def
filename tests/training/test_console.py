"""What a run prints to a terminal and to logs."""

import io
import json
import random
import re
import sys
from collections.abc import Sequence
from contextlib import closing, redirect_stdout
from pathlib import Path
from typing import Any

import pytest
from result_files import run_evaluation
from rich.console import Console

from rg_env.core.run_folder import RunFolder
from rg_env.core.text import visible_line
from rg_env.evaluation.plots.curves import plot_run
from rg_env.evaluation.results import Results
from rg_env.evaluation.scores import together
from rg_env.evaluation.tables import print_results
from rg_env.training.evaluation import metrics_of
from rg_env.training.reporting.console import (
    COMPLETION_LENGTH,
    RunConsole,
    examples_of,
    headline,
    print_summary,
    shorten,
    spread,
)

METRICS = {"reward": 0.5, "accuracy": 0.25, "completions/mean_length": 33.4, "loss": 0.02, "step_time": 1.234,
           "tokens_per_second": 2345.6}  # fmt: skip
XTERM = {"TERM": "xterm-256color", "COLUMNS": "120"}


class Terminal(io.StringIO):
    """A stream that is a terminal."""

    def isatty(self) -> bool:
        return True

    def shown(self) -> str:
        """Return what was written since the last call."""
        text = self.getvalue()
        self.seek(0)
        self.truncate()
        return text


def example(**changes: Any) -> dict[str, Any]:
    record = {"task": "leg_counting", "question": "How many legs?", "completion": "<answer>4</answer>", "answer": "4"}
    return {**record, "completion_tokens": 5, "reward": 1.0, "correct": True, "status": "correct", **changes}


def test_a_terminal_shows_a_line_for_each_step_and_a_bar_below_them() -> None:
    """The line shows the step, a bar, metrics and the remaining time; other lines are printed above it."""
    terminal = Terminal()
    with closing(RunConsole(terminal, XTERM)) as console:
        for step in (1, 2, 3):
            console.step(step, 20, METRICS | {"reward": step / 10})
        console.line("evaluation after step 3: accuracy 0.50")
        console.step(4, 20, METRICS)
        shown = terminal.shown()
    for words in ("4/20", "━", "reward 0.30", "accuracy 0.25", "length 33 tokens", "1.23 s/step", "left"):
        assert words in shown
    assert "\x1b[2K" in shown  # the bar is erased and written again
    assert shown.count("\n") == 5  # a line for each step and for the evaluation, none for the bar
    assert shown.index("reward 0.30") < shown.index("evaluation after step 3") < shown.index("4/20")


def test_the_terminal_is_restored() -> None:
    """After `close`, the cursor is visible and printing is no longer redirected. Output printed before that is kept."""
    terminal = Terminal()
    with redirect_stdout(terminal):
        with closing(RunConsole(terminal, XTERM)) as console:
            console.step(1, 2, METRICS)
            assert "\x1b[?25l" in terminal.shown()
            print("said by a library")
        assert sys.stdout is terminal
    shown = terminal.shown()
    assert "said by a library" in shown
    assert "\x1b[?25h" in shown
    console.close()
    with closing(RunConsole(terminal, {"TERM": "dumb"})) as console:
        console.step(1, 2, METRICS)
    assert "\x1b" not in terminal.shown()


def test_other_streams_get_one_line_per_step() -> None:
    """Lines have no escape codes, even if colors are forced, and are never wrapped."""
    stream = io.StringIO()
    with closing(RunConsole(stream, {"FORCE_COLOR": "1", "COLUMNS": "20"})) as console:
        console.step(1, 20, METRICS)
        console.step(2, 20, {"reward": 0.0})
        console.step(3, 20, {"loss": 0.02, "step_time": 1.234, "tokens_per_second": 2345.6})
        several = {"rewards/correctness/mean": 0.4, "rewards/shows_work/mean": 1.0}
        console.step(4, 20, {"reward": 0.5, **several})
        console.step(5, 20, {"reward": 0.4, "rewards/correctness/mean": 0.4})
        console.examples(2, [example()])
    assert stream.getvalue().splitlines() == [
        "step   1/20  loss 0.020  reward 0.50  accuracy 0.25  length 33 tokens  1.23 s/step  2,346 tokens/s",
        "step   2/20  reward 0.00",
        "step   3/20  same rollouts  loss 0.020  1.23 s/step  2,346 tokens/s",
        "step   4/20  reward 0.50 (correctness 0.40, shows_work 1.00)",
        "step   5/20  reward 0.40",
        "answers after step 2:",
        "  leg_counting  correct  reward 1.00",
        "    question:    How many legs?",
        "    completion:  <answer>4</answer>",
        "    gold answer: 4",
    ]


HOSTILE = {
    "[red]x[/red] [/]": "[red]x[/red] [/]",
    "a\x1b[31;1mb\x1b]0;title\x07": "a\\x1b[31;1mb\\x1b]0;title\\x07",
    "a\x00b\x9b31m\rc\u202ed\u200be\ud800f": "a\\x00b\\x9b31m\\rc\\u202ed\\u200be\\ud800f",
    "a\r\nb\nc\td": "a ⏎ b ⏎ c d",
    "שלום 👩\u200d👧 漢": "שלום 👩\u200d👧 漢",
}


def test_model_text_is_printed_as_data() -> None:
    """Markup, escape sequences, and characters that reverse or hide text have no effect."""
    for text, expected in HOSTILE.items():
        assert visible_line(text) == expected
        for stream in (io.StringIO(), terminal := Terminal()):
            with closing(RunConsole(stream, XTERM)) as console:
                console.examples(1, [example(completion=text, question=text, answer=text, task=text)])
            assert stream.getvalue().count(expected) == 4
        escapes = terminal.shown().count("\x1b")
        with closing(RunConsole(terminal, XTERM)) as console:
            console.examples(1, [example()])
        assert escapes == terminal.shown().count("\x1b")  # only the console's own styles


def test_long_text_is_shortened_in_the_middle() -> None:
    """The beginning and end of long text are shown; text that fits is shown in full."""
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


def test_characters_that_a_stream_cannot_encode_do_not_end_the_run() -> None:
    """Characters missing from the stream's encoding are replaced."""
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii")
    console = RunConsole(stream)
    console.line("accuracy 0.50 ± 0.10")
    console.examples(1, [example(completion="é\ud800 漢")])
    assert b"accuracy 0.50 ? 0.10\n" in raw.getvalue()
    assert b"completion:  ?\\ud800 ?\n" in raw.getvalue()


def test_examples_are_spread_over_the_batch() -> None:
    """Adjacent records answer the same question, so examples are taken at equal distances. Unknown values are not
    shown."""
    records = [{"n": n} for n in range(8)]
    assert [record["n"] for record in spread(records, 2)] == [0, 4]
    assert spread(records[:1], 3) == records[:1]
    stream = io.StringIO()
    RunConsole(stream).examples(1, [example(correct=None, reward=None, completion="", task="default", status=None)])
    assert "  default  reward none\n" in stream.getvalue()
    assert "completion:  (nothing)\n" in stream.getvalue()


# --- evaluations


def evaluation(
    step: int, tasks: Sequence[str], held_out: Sequence[str] = (), labels: Sequence[str] = (), **changes: Any
) -> Results:
    """An evaluation with two answers to each of six problems per task, which are right more often in later steps.
    `changes` are applied to each record."""
    rng, problems = random.Random(step), []
    parts = {**dict.fromkeys(tasks, "training"), **dict.fromkeys(held_out, "held_out")}
    for task, part in {**parts, **dict.fromkeys(labels, "labelled")}.items():
        known = {"part": part, "task": task, "question": "q", "answer": "a", "completion": "c",
                 "completion_tokens": 20, "truncated": False, "reward": 0.5}  # fmt: skip
        for _ in range(6):
            problems.append([{**known, "correct": rng.random() < 0.3 + step / 40, **changes} for _ in range(2)])
    return run_evaluation(step, problems)


def printed(*evaluations: Results) -> list[str]:
    out = io.StringIO()
    print_results(together({f"step {each.step}": each for each in evaluations}), Console(file=out, width=120))
    return [" ".join(line.split()) for line in out.getvalue().splitlines()]


def test_before_and_after_are_side_by_side() -> None:
    """The table lists each task, then the training tasks and the held-out tasks as a whole, and then paired
    differences."""
    lines = printed(*(evaluation(step, ["maze", "chain_sum"], ["sudoku"], ["hard"]) for step in (0, 20)))
    heads = [line.split(" [")[0].rpartition(" ")[0] for line in lines]
    order = ["maze 6", "chain_sum 6", "sudoku (held out) 6", "hard 6", "training tasks, accuracy",
             "held-out tasks, accuracy"]  # fmt: skip
    assert [head for head in heads if head in order] == order
    assert "training tasks, questions 12 12" in lines
    assert any(line.startswith("training tasks, pass@2 ") for line in lines)
    paired = [line for line in lines if "step 20 - step 0" in line]
    assert [line.split(" step 20")[0] for line in paired] == ["training tasks", "maze", "chain_sum", "sudoku", "hard"]
    many = printed(evaluation(0, [f"task{i:02}" for i in range(50)]))
    assert "and 20 more" in many
    assert sum(re.match(r"task\d\d ", line) is not None for line in many) == 30


def test_the_summary_of_an_interrupted_run(tmp_path: Path) -> None:
    """The last evaluation may be older than the last step. Model text is printed as data, and checkpoints are listed by
    step."""
    for name in ("checkpoint-10", "checkpoint-9", "config.yaml", "metrics.jsonl"):
        (tmp_path / name).mkdir()
    results = {"interrupted": True, "steps": 10, "seconds": 3.0, "model": "m", "engine": "embedded"}
    hostile = evaluation(1, ["maze"], completion="[bold]x[/bold]\x1b]0;title\x07")
    out = io.StringIO()
    print_summary(tmp_path, results, evaluation(0, ["maze"]), hostile, Console(file=out, width=200))
    text = out.getvalue()
    assert "Interrupted after 10 steps in 3 s (m, embedded engine)\n" in text
    assert "after 1 step " in text
    assert text.count("    before:      c\n    after:       [bold]x[/bold]\\x1b]0;title\\x07\n") == 3
    assert text.rstrip().endswith("config.yaml, metrics.jsonl, checkpoint-9, checkpoint-10")


@pytest.mark.parametrize(("right", "noted"), [(0, True), (12, False)])
def test_a_reward_that_rises_without_accuracy_is_reported_after_a_run(right: int, noted: bool, tmp_path: Path) -> None:
    """The note names the reward. A rise in accuracy explains the rise in the reward."""

    def measured(step: int, correct: int, work: float) -> Results:
        known = {"part": "training", "task": "sums", "question": "q", "answer": "a", "completion": "c"}
        problems = []
        for number in range(12):
            rewards = {"correctness": float(number < correct), "shows_steps": work}
            total = rewards["correctness"] + 0.1 * work + number / 1000
            of_one = {"correct": number < correct, "rewards": rewards, "reward": total, "truncated": False}
            problems.append([known | of_one])
        return run_evaluation(step, problems)

    results = {"interrupted": False, "steps": 4, "seconds": 3.0, "model": "m", "engine": "embedded"}
    out = io.StringIO()
    print_summary(tmp_path, results, measured(0, 0, 0.16), measured(4, right, 0.91), Console(file=out, width=300))
    note = "did not clearly rise; shows_steps rose from 0.16 to 0.91: lower rewards.shows_steps.weight, or set"
    assert (note in out.getvalue()) is noted


def test_the_headline_ends_with_the_labels() -> None:
    """Labels are shown in the given order and do not count toward overall results."""
    labels = ["words_6", "words_10", "maze_easy"]
    labelled, without = evaluation(0, ["maze"], ["sudoku"], labels), evaluation(0, ["maze"], ["sudoku"])
    assert list(labelled.scores("labelled")) == labels
    line = headline(labelled)
    assert line.startswith(f"{headline(without)}  words_6: accuracy ")
    assert "  maze_easy: accuracy " in line
    assert metrics_of(labelled).items() >= metrics_of(without).items()


def test_an_environment_without_accuracy_is_shown_by_reward() -> None:
    """Neither accuracy nor pass@k is shown."""
    results = evaluation(0, ["a", "b"], ["c"], correct=None, completion_tokens=None, truncated=None)
    assert headline(results) == (
        "reward 0.50 [0.50, 0.50]  on 12 problems  held out: reward 0.50 [0.50, 0.50]  on 6 problems"
    )


@pytest.mark.parametrize(
    ("before", "after", "shown"),
    [
        ([0, 0, 0, 0, 1, 0], [0, 0, 0, 0, 0, 1], [5, 2, 4]),
        ([1, 0], [1, 0], [0, 1]),
        ([None] * 4, [None] * 4, [3, 1, 2]),  # ranked by reward, because there is no accuracy
        ([], [], []),
    ],
)
def test_examples_after_a_run_range_from_best_to_worst(before: list[Any], after: list[Any], shown: list[int]) -> None:
    """The pairs are the one that improved most, the median one, and the one that improved least."""

    def made(step: int, correct: list[Any]) -> Results:
        rewards = [1.0 if step and number == 3 and each is None else 0.5 for number, each in enumerate(correct)]
        known = {"part": "training", "task": "maze", "truncated": False, "answer": "a", "completion": "c"}
        values = zip(correct, rewards, strict=True)
        return run_evaluation(step, [[{**known, "correct": each, "reward": reward}] for each, reward in values])

    pairs = examples_of(made(0, before), made(5, after))
    assert [old["problem"] for old, _ in pairs] == shown
    assert [new["row"] for _, new in pairs] == [old["row"] for old, _ in pairs]


def test_a_folders_name_is_not_a_formula(tmp_path: Path) -> None:
    """Matplotlib does not parse the name, and a run with only held-out tasks has a plot as well."""
    folder = RunFolder.create(tmp_path / r"cost $\frac$ 2")
    for step in (0, 10):
        folder.write_evaluation(step, json.loads(evaluation(step, [], ["maze"]).model_dump_json()))
    assert plot_run(folder.path) == folder.curve_file
    assert folder.curve_file.read_bytes().startswith(b"\x89PNG")
