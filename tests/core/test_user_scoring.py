"""Answers to the user's own tasks, graded by their code in workers that can be killed."""

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from user_code import TASK, nothing_left

from rg_env.core.grading.extraction import extract
from rg_env.core.grading.scoring import UPSTREAM_WALL_S, Rollout, Score, partial_score, score, score_extraction_async
from rg_env.core.rewards import resolve_rewards
from rg_env.core.user_code import import_user_code
from rg_env.errors import InputError


@pytest.fixture(scope="module", autouse=True)
def own_sums(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The file that registers the task own_sums, imported once so that all tests share its workers."""
    path = tmp_path_factory.mktemp("own") / "own_scored.py"
    path.write_text(TASK, encoding="utf-8")
    with nothing_left():
        import_user_code([str(path)])
        yield path


def info(
    grading: str = "hardened", answer: str | None = " 12\n", config: dict[str, Any] | None = None
) -> dict[str, str]:
    entry = {"question": "5 + 7 = ?", "answer": answer, "metadata": {}}
    return {
        "rg_task": "own_sums", "config": json.dumps(config or {}), "entry": json.dumps(entry), "grading": grading
    }  # fmt: skip


def graded(text: str, grading: str = "hardened", **changes: Any) -> Score:
    return score(f"so <answer>{text}</answer>", info(grading, **changes))


@pytest.mark.parametrize(
    ("grading", "answer", "value", "status", "progress"),
    [
        *(("hardened", "12", 1.0, "correct", 1.0), ("hardened", "13", 0.0, "wrong", 0.25)),
        *(("hardened", "x", 0.0, "wrong", 0.0), ("partial", "12", 1.0, "correct", 1.0)),
        *(("partial", "13", 0.25, "partial", 0.25), ("upstream", "13", 0.25, "partial", 0.25)),
        *(("hardened", "-3", 0.0, "wrong", 0.0), ("hardened", "7e9", 1.0, "correct", 1.0)),
        ("upstream", "7e9", 1.0, "correct", 1.0),
    ],
)
def test_the_users_own_grader_decides(grading: str, answer: str, value: float, status: str, progress: float) -> None:
    """Values are limited to [0, 1], and are 0 or 1 with `hardened` grading. Whitespace around the gold answer does not
    matter."""
    found = graded(answer, grading)
    assert (found.value, found.status, found.progress, found.task) == (value, status, progress, "own_sums")
    assert partial_score(extract(f"<answer>{answer}</answer>"), info(grading)) == progress


def test_hostile_answers_do_not_stop_the_others() -> None:
    """A grader that hangs is `timed_out`; one that raises, ends its process or does not return a number is
    `ungradable`."""
    hostile = ["hang", "raise", "end", "nan", "inf", "nothing"]
    answers = [*hostile, *(["12", "13"] * 20)]

    async def main() -> list[Score]:
        tasks = [score_extraction_async(extract(f"<answer>{answer}</answer>"), info()) for answer in answers]
        return await asyncio.gather(*tasks)

    graded("12")  # starts the workers
    begin = time.monotonic()
    scores = asyncio.run(main())
    assert time.monotonic() - begin < 30 * UPSTREAM_WALL_S
    statuses = dict(zip(hostile, [(each.status, each.value) for each in scores], strict=False))
    assert statuses.pop("hang") == ("timed_out", 0.0)
    assert set(statuses.values()) == {("ungradable", 0.0)}
    assert [each.status for each in scores[len(hostile) :]] == ["correct", "wrong"] * 20
    details = dict(zip(hostile, [each.detail for each in scores], strict=False))
    assert details["raise"] == "KeyError: 'none such'"
    assert details["inf"] == "the grader must return a finite number, not inf"
    assert "TypeError" in details["nothing"]
    assert "exit code 3" in details["end"]


def test_a_dataset_that_opens_slowly_still_grades() -> None:
    """The time limit for an answer does not include the dataset's `__init__`."""
    assert graded("12", config={"opens_in_s": UPSTREAM_WALL_S + 0.2}).status == "correct"


@pytest.mark.parametrize(("gold", "says"), [("raise", "ungradable"), ("-3", "wrong"), ("1x", None), ("", None)])
def test_a_gold_answer_that_its_own_grader_refuses(gold: str, says: str | None) -> None:
    """Wrong answers to such a row are ungradable, except with `upstream` grading or without a gold answer. So are all
    answers to a row whose options the dataset refuses. Missing and overlong answers do not reach a grader."""
    found = graded("13", answer=gold)
    expected = ("ungradable", f"the row's own gold answer is {says}") if says else ("wrong", "")
    assert (found.status, found.detail) == expected
    assert graded("13", "upstream", answer=gold).status == "partial"
    assert "terms must be above 1" in graded("12", config={"terms": 1}).detail
    assert (score("none", info()).status, graded("1" * 20_000).status) == ("no_answer", "too_long")
    assert partial_score(extract("none"), info()) == 0.0


def test_rewards_see_correctness_and_partial_credit() -> None:
    """`correctness` and `partial` can be used together."""
    rewards = {reward.name: reward for reward in resolve_rewards(["correctness", "partial"])}
    rollout = Rollout("?", "<answer>13</answer>", "12", info())
    assert {name: reward.value(rollout, {}) for name, reward in rewards.items()} == {"correctness": 0, "partial": 0.25}


def test_rows_of_a_task_that_is_not_imported_are_refused() -> None:
    with pytest.raises(InputError, match="unknown task 'own_other'"):
        score("<answer>1</answer>", {**info(), "rg_task": "own_other"})


@pytest.mark.slow
def test_workers_grade_tasks_that_are_imported_later(tmp_path: Path, write: Callable[..., Path]) -> None:
    """A task without a grader of its own gets the library's default one, which requires an exact match."""
    text = TASK.replace("own_sums", "own_later").replace("def score_answer", "def other")
    import_user_code([str(write("own_later.py", text))])
    later = {**info("partial"), "rg_task": "own_later"}
    assert score("<answer>12</answer>", later).status == "correct"
    assert score("<answer>is 12, no</answer>", {**later, "grading": "hardened"}).status == "wrong"
    assert graded("12").status == "correct"
