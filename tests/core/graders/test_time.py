"""Grading takes time linear in the answer's length, and only milliseconds, for every task and for long gold answers.

CPU time of this process is measured, so a busy machine does not matter; times over a limit are measured again.
"""

import importlib
import json
import sys
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from audit.rows import draws
from grader_cases import entries

from rg_env.core.grading.extraction import Extraction
from rg_env.core.grading.graders import gold_answer
from rg_env.core.grading.scoring import MAX_ANSWER_CHARS, score_extraction
from rg_env.core.tasks.task_table import load_table, working_levels

sys.path.append(str(Path(__file__).parents[3] / "benchmarks"))
long_answers = importlib.import_module("long_answers")

TASKS = sorted(load_table())
GROWTH = 8
IGNORED_S = 5e-3
SAMPLE, SLOW_SAMPLE = 60, 6
"""CI tests every 60th shape and the weekly tests every 6th, starting from a different one for each task."""
LIMIT_S, LIMIT_OF_LONG_S = 0.05, 0.1
ATTEMPTS = 4
"""Answers that appear to take too long are measured again, because the speed of a machine changes."""


def cpu_s(answer: str, info: dict[str, str], enough: float, rounds: int = 5) -> float:
    """CPU seconds for grading `answer`: the minimum of up to `rounds` measurements, which end with the first one below
    `enough`."""
    best = float("inf")
    for _ in range(rounds):
        start = time.process_time()
        graded = score_extraction(Extraction("ok", answer), info)
        best = min(best, time.process_time() - start)
        assert graded.status != "ungradable", graded.detail
        if best < enough:
            break
    return best


def info_of(task: str, entry: dict[str, Any], config: dict[str, Any] | None = None) -> dict[str, str]:
    return {"rg_task": task, "config": json.dumps(config or {}), "entry": json.dumps(entry), "grading": "partial"}


def assert_linear(task: str, shapes: Iterator[tuple[str, str, str]], longest: int = MAX_ANSWER_CHARS) -> None:
    """Check that four times the length takes less than `GROWTH` times as long, and less than the limit."""
    info = info_of(task, entries(task)[0])
    cpu_s("1", info, 0.0, rounds=1)  # loads word lists before the first measurement
    for opener, run, closer in shapes:
        times = (longest - len(opener) - len(closer)) // len(run)
        text = opener + run * times + closer
        for _ in range(ATTEMPTS):
            long = cpu_s(text, info, IGNORED_S)
            if long < IGNORED_S:
                break
            short = cpu_s(opener + run * (times // 4) + closer, info, 0.0)
            if long < min(LIMIT_S, GROWTH * short):
                break
        else:
            pytest.fail(f"{opener!r} + {run!r} * {times} + {closer!r}: {long:.4f} s, a quarter of it {short:.4f} s")


@pytest.mark.parametrize(
    "every", [SAMPLE, pytest.param(SLOW_SAMPLE, marks=[pytest.mark.slow, pytest.mark.full_matrix])]
)
@pytest.mark.parametrize("task", TASKS)
def test_grading_time_is_linear_in_the_answers_length(task: str, every: int) -> None:
    """Tests some of the shapes; `benchmarks/scoring.py --times` measures all of them."""
    gold = gold_answer(task, entries(task)[0]) or "1"
    assert_linear(task, islice(long_answers.shapes(gold), TASKS.index(task) % every, None, every))


LONG_GOLD = {"binary_matrix": 3, "game_of_life": 3, "manipulate_matrix": 3, "number_sorting": 4, "spiral_matrix": 3}
"""Tasks and levels for which gold answers have thousands of characters."""


def assert_quick(task: str, entry: dict[str, Any], config: dict[str, Any], step: int) -> None:
    """Check that every `step`th text of the maximum length is graded in time."""
    gold = str(entry["answer"]).strip()
    info = info_of(task, entry, config)
    assert score_extraction(Extraction("ok", gold), info).status == "correct"
    limit = LIMIT_S if len(gold) <= 100_000 else LIMIT_OF_LONG_S
    for text in islice(long_answers.answers(gold, 2 * len(gold)), 0, None, step):
        seconds = cpu_s(text, info, limit)
        assert seconds < limit, f"{seconds:.3f} s for {len(text)} characters: {text[:40]!r}...{text[-20:]!r}"


@pytest.mark.parametrize("task", LONG_GOLD)
def test_long_answers_to_long_gold_answers_are_graded_in_time(task: str) -> None:
    config = working_levels(task)[LONG_GOLD[task]]
    (item,) = draws().items(task, 1, 3, config)
    assert_quick(task, json.loads(item.entry), config, 300)


def test_a_long_tower_of_hanoi_is_graded_in_time() -> None:
    """13 disks on three pegs need 8,191 moves, or 262,126 characters."""
    moves: list[str] = []

    def move(disks: int, source: int, target: int) -> None:
        if disks:
            spare = 6 - source - target
            move(disks - 1, source, spare)
            moves.append(f"Move disk {disks} from Peg {source} to Peg {target}")
            move(disks - 1, spare, target)

    move(13, 1, 3)
    entry = {
        "question": "",
        "answer": "\n".join(moves),
        "metadata": {"num_disks": 13, "num_pegs": 3, "start_peg": 1, "target_peg": 3, "solution_length": len(moves)},
    }
    assert len(entry["answer"]) == 262_126
    assert_quick("tower_of_hanoi", entry, {}, 500)
    info = info_of("tower_of_hanoi", entry)
    there_and_back = "\n".join(["Move disk 1 from Peg 1 to Peg 2", "Move disk 1 from Peg 2 to Peg 1"] * 8_100)
    for text in (there_and_back, f"{there_and_back}.", f"**{there_and_back}**.", "1. \n" * 100_000):
        assert cpu_s(text, info, LIMIT_OF_LONG_S) < LIMIT_OF_LONG_S


def test_a_long_value_of_codeio_is_graded_in_time() -> None:
    """The longest values that the library stores have about 30,000 characters."""
    entry = {"question": "", "answer": json.dumps([[0, 1, 2]] * 3_030), "metadata": {}}
    assert_quick("codeio", entry, {}, 150)
    for literal in ("[1," * 10_000, "['a'," * 5_000, "[" + "'a'," * 10_000 + "]", str([(0, 1, 3)] * 3_030)):
        assert cpu_s(literal, info_of("codeio", entry), LIMIT_S) < LIMIT_S
