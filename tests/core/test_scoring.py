"""Scoring: one path from a completion to a score."""

import asyncio
import json
import logging
from typing import Any

import pytest
from sample_rows import SORTING

from rg_env.core.grading import scoring, upstream
from rg_env.core.grading.extraction import extract
from rg_env.core.grading.graders import GRADERS
from rg_env.core.grading.scoring import Score, partial_score, score, score_extraction_async
from rg_env.errors import InputError, UnknownNameError

INFO = {
    "rg_task": "leg_counting",
    "config": "{}",
    "entry": json.dumps({"question": "?", "answer": "12", "metadata": {}}),
}


def _info(task: str, answer: str | None, **metadata: Any) -> dict[str, str]:
    entry = {"question": "?", "answer": answer, "metadata": metadata}
    return {"rg_task": task, "config": "{}", "entry": json.dumps(entry)}


@pytest.mark.parametrize(
    ("completion", "expected"),
    [
        ("so <answer>12</answer>", Score(1.0, "12", "correct", "leg_counting")),
        ("so <answer> 12\n</answer>", Score(1.0, "12", "correct", "leg_counting")),
        ("so <answer>13</answer>", Score(0.0, "13", "wrong", "leg_counting")),
        ("so 12", Score(0.0, None, "no_answer", "leg_counting")),
        ("<answer> </answer>", Score(0.0, None, "no_answer", "leg_counting")),
        ([{"role": "assistant", "content": "<answer>12</answer>"}], Score(1.0, "12", "correct", "leg_counting")),
    ],
)
def test_scores_distinguish_right_wrong_and_missing_answers(completion: Any, expected: Score) -> None:
    assert score(completion, INFO) == expected


def test_partial_credit_is_given_only_if_requested() -> None:
    """A half-sorted list is wrong by default and `partial` with partial credit. Mentioning the answer earns nothing."""
    completion = "<answer>['1', '2', '4', '3']</answer>"
    assert score(completion, SORTING) == Score(0.0, "['1', '2', '4', '3']", "wrong", "number_sorting")
    result = score(completion, {**SORTING, "grading": "partial"})
    assert result.status == "partial"
    assert 0 < result.value == partial_score(extract(completion), SORTING) < 1
    assert score("<answer>12 or 13</answer>", {**INFO, "grading": "partial"}).status == "wrong"
    assert score(completion, {**SORTING, "grading": "hardened"}).value == 0.0
    assert partial_score(extract("no answer"), SORTING) == 0.0


@pytest.mark.slow
def test_upstream_grading_uses_the_librarys_formulas_in_a_worker() -> None:
    """Scores include the library's credit for mentions and its minimum scores. Nine tasks use its formulas with our own
    parsers, and an answer that hangs is `timed_out`."""

    def upstream_score(task: str, answer: str, gold: str | None, **metadata: Any) -> Score:
        return score(f"<answer>{answer}</answer>", {**_info(task, gold, **metadata), "grading": "upstream"})

    assert upstream_score("leg_counting", "12 legs", "12").value == pytest.approx(2 / 7)
    assert upstream_score("countdown", "1+2+3", "", numbers=[1, 2, 3], target=7).value == 0.05
    assert upstream_score("countdown", "1*2*3 + 1", "", numbers=[1, 2, 3, 1], target=7).status == "correct"
    assert upstream_score("countdown", "__import__('os')._exit(1)", "", numbers=[1], target=1).value == 0.01
    assert upstream_score("puzzle24", "6*4*1*1", "", numbers=[3, 3, 8, 8]).status == "correct"
    assert upstream_score("binary_matrix", "[[1, 2], [3, 4]]", "1 2\n3 4").value == 0.1
    assert upstream_score("n_queens", "[['Q']]", "Q", valid_answers=["Q"]).value == 0.5
    assert upstream_score("spiral_matrix", "[1, 2]", "1 2").value == 0.1
    assert upstream_score("string_insertion", "['A', 'B']", "AB").value == 0.1
    failed = upstream_score("prime_factorization", "six", "2 × 3", number=6, factors=[2, 3])
    assert (failed.status, failed.detail[:10]) == ("ungradable", "ValueError")
    hung = upstream_score("coin_flip", "1e999999999", "0.5")
    assert (hung.value, hung.status) == (0.0, "timed_out")
    assert upstream_score("leg_counting", "12", "12").status == "correct"  # a spare worker took over
    late = upstream_score("time_intervals", "6 days, 18:01:32", "6 days, 18:01:31", task_type="datetime")
    assert late.status == "partial"
    assert late.value > 1 - 1e-6  # off by one second, on a scale of 100 days


@pytest.mark.slow
def test_a_worker_leaves_the_event_loop_free() -> None:
    """While an answer hangs until its timeout, the event loop keeps running."""

    async def graded() -> tuple[Score, int]:
        info = {**_info("coin_flip", "0.5"), "grading": "upstream"}
        await score_extraction_async(extract("<answer>0.5</answer>"), info)  # starts the workers
        task = asyncio.ensure_future(score_extraction_async(extract("<answer>1e999999999</answer>"), info))
        turns = 0
        while not task.done():
            await asyncio.sleep(0.001)
            turns += 1
        return await task, turns

    result, turns = asyncio.run(graded())
    assert result.status == "timed_out"
    assert turns > 10, "a loop that waits for the worker would turn once"


def test_long_answers_are_not_graded() -> None:
    """An answer over the limit is `too_long`, and the detail gives its length."""
    result = score(f"<answer>{'1' * 10_001}</answer>", INFO)
    assert (result.status, result.value) == ("too_long", 0.0)
    assert "10001 characters" in result.detail
    assert score(f"<answer>{'1' * 10_000}</answer>", INFO).status == "wrong"


def test_a_long_solution_of_the_tower_of_hanoi_is_graded() -> None:
    """The classic solution of 9 disks with 4 pegs is longer than the usual limit, and right. Ten times its length is
    still too long."""

    def moves(disks: int, a: int, b: int, c: int) -> list[str]:
        if not disks:
            return []
        return [*moves(disks - 1, a, c, b), f"Move disk {disks} from Peg {a} to Peg {b}", *moves(disks - 1, c, b, a)]

    info = _info("tower_of_hanoi", "-", num_disks=9, num_pegs=4, start_peg=1, target_peg=2)
    text = "\n".join(moves(9, 1, 2, 3))
    assert len(text) > scoring.MAX_ANSWER_CHARS
    assert score(f"<answer>{text}</answer>", info).status == "correct"
    assert score(f"<answer>{text * 10}</answer>", info).status == "too_long"
    assert score("<answer>" + "\n".join(moves(8, 1, 2, 3)) * 2 + "</answer>", info).value == 0.0


def test_an_entry_that_no_grader_can_read_is_ungradable(caplog: pytest.LogCaptureFixture) -> None:
    """The entry may be from another version of the library. The reason is in the score, and is logged once with the
    answer's text."""
    scoring._logged.clear()
    info = _info("graph_color", None, puzzle="not a graph")
    with caplog.at_level(logging.WARNING):
        results = [score(f"<answer>{{{text}}}</answer>", info) for text in ('"0": 1', '"0": 2')]
    assert {(result.status, result.value) for result in results} == {("ungradable", 0.0)}
    assert "TypeError" in results[0].detail
    (record,) = caplog.records
    assert '{"0": 1}' in record.getMessage()


def test_a_wrong_answer_is_ungradable_if_the_entrys_own_answer_is_wrong() -> None:
    """This holds whether the entry is text or a dict."""
    info = _info("sudoku", "5 3")
    for entry in (info["entry"], json.loads(info["entry"])):
        result = score("<answer>1</answer>", {**info, "entry": entry})
        assert result.status == "ungradable"
        assert "own gold answer" in result.detail
        assert "comes from another reasoning-gym version" in result.detail


@pytest.mark.parametrize(
    ("change", "message"),
    [
        *(({"rg_task": None}, "lacks 'rg_task'"), ({"config": None}, "lacks 'config'")),
        *(({"entry": None}, "lacks 'entry'"), ({"entry": "{"}, r"a row's info\['entry'\] is not valid JSON")),
        *(({"entry": "[]"}, "must be a JSON object, not list"), ({"entry": "{}"}, "lacks 'answer' or 'metadata'")),
        ({"config": "nonsense"}, r"a row's info\['config'\] is not valid JSON"),
        ({"grading": "lenient"}, "unknown grading 'lenient'.*hardened"),
    ],
)
def test_an_edited_info_is_an_input_error(change: dict[str, Any], message: str) -> None:
    """A missing key, invalid JSON or an unknown grading is reported as an error of the row."""
    info = {key: value for key, value in {**INFO, **change}.items() if value is not None}
    with pytest.raises(InputError, match=message):
        score("<answer>12</answer>", info)


def test_an_info_as_json_and_an_unknown_task() -> None:
    """`info` may be JSON text; a task that does not exist is named in the error."""
    assert score("<answer>12</answer>", json.dumps(INFO)).status == "correct"
    with pytest.raises(UnknownNameError, match="unknown task 'legs'"):
        score("<answer>12</answer>", {**INFO, "rg_task": "legs"})


def test_model_text_never_reaches_a_grader_that_runs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The library's nine graders that run answers as code are not called, whatever the grading."""
    monkeypatch.setattr(upstream, "_dataset", lambda *args: pytest.fail("the library's grader was called"))
    facts = {
        "numbers": [1, 2],
        "target": 3,
        "valid_answers": ["x"],
        "variable": "x",
        "integrand": "x",
        "variables": ["x"],
    }
    for task in upstream._FORMULAS:
        entry = {"question": "?", "answer": "x", "metadata": facts}
        assert upstream.grade(task, {}, entry, "__import__('os')._exit(1)") <= 0.05
        assert GRADERS[task].__module__ != upstream.__name__
