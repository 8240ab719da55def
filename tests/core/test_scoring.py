"""Scoring and graders."""

import json
import logging
from typing import Any

import pytest

from rg_env.core import scoring
from rg_env.core.dataset import build_rows
from rg_env.core.graders import RUN_TEXT_AS_CODE, gold_answer, grade
from rg_env.core.graders import library as library_grader
from rg_env.core.scoring import Score, score
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
def test_scores_tell_right_wrong_and_missing_apart(completion: Any, expected: Score) -> None:
    """Value, answer and status for the common cases."""
    assert score(completion, INFO) == expected


def test_part_of_the_way_is_partial() -> None:
    """A value between 0 and 1 is `partial`, and a value a hair under 1 is `correct`."""
    assert score("<answer>12 legs</answer>", INFO).status == "partial"
    assert score("<answer>desrever</answer>", _info("spell_backward", "desrever", word="reversed")).status == "correct"


def test_long_answers_are_not_graded() -> None:
    """An answer over the limit is `too_long`, with its length."""
    result = score(f"<answer>{'1' * 10_001}</answer>", INFO)
    assert (result.status, result.value) == ("too_long", 0.0)
    assert "10001 characters" in result.detail
    assert score(f"<answer>{'1' * 10_000}</answer>", INFO).status == "wrong"


def test_what_a_grader_cannot_read_is_ungradable(caplog: pytest.LogCaptureFixture) -> None:
    """A grader that raises gives `ungradable` with the reason, logged once for each task and kind of error."""
    scoring._logged.clear()
    info = _info("prime_factorization", "2 × 3", number=6, factors=[2, 3])
    with caplog.at_level(logging.WARNING):
        results = [score(f"<answer>{text}</answer>", info) for text in ("six", "a × b")]
    assert {(result.status, result.value) for result in results} == {("ungradable", 0.0)}
    assert "ValueError" in results[0].detail
    assert len(caplog.records) == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rg_task": None}, "lacks 'rg_task'"),
        ({"config": None}, "lacks 'config'"),
        ({"entry": None}, "lacks 'entry'"),
        ({"entry": "{"}, r"info\['entry'\] of a row is not JSON"),
        ({"entry": "[]"}, "must be a JSON object, not list"),
        ({"entry": "{}"}, "lacks 'answer' or 'metadata'"),
        ({"config": "nonsense"}, r"info\['config'\] of a row is not JSON"),
        ({"config": '{"min_animals": 0}'}, "does not work with config"),
    ],
)
def test_an_edited_info_is_an_input_error(change: dict[str, Any], message: str) -> None:
    """A missing key, broken JSON or a bad config is the row's fault, and said so."""
    info = {key: value for key, value in {**INFO, **change}.items() if value is not None}
    with pytest.raises(InputError, match=message):
        score("<answer>12</answer>", info)


def test_an_info_as_json_and_an_unknown_task() -> None:
    """`info` may be JSON text; a task that does not exist is told."""
    assert score("<answer>12</answer>", json.dumps(INFO)).status == "correct"
    with pytest.raises(UnknownNameError, match="unknown task 'legs'"):
        score("<answer>12</answer>", {**INFO, "rg_task": "legs"})


@pytest.mark.parametrize("task", sorted(RUN_TEXT_AS_CODE))
def test_model_text_never_reaches_a_grader_that_runs_it(task: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The nine graders of the library that run the answer as code are not called, and hostile answers score 0."""
    monkeypatch.setattr(library_grader, "_dataset", lambda *args: pytest.fail("the library's grader was called"))
    info = _info(task, "1 2\n3 4", valid_answers=["1 2\n3 4"])
    assert score("<answer>1 2 \n3 4</answer>", info).status == "correct"
    for answer in ("__import__('os')._exit(1)", "9**9**9", "[[1, 2], [3, 4]]"):
        assert score(f"<answer>{answer}</answer>", info).status == "wrong"


def test_gold_answers_that_stand_in_the_metadata() -> None:
    """graph_color, rubiks_cube and propositional_logic keep theirs elsewhere; some entries have none."""
    assert gold_answer("graph_color", {"answer": None, "metadata": {"possible_answer": {0: 1}}}) == '{"0": 1}'
    assert gold_answer("rubiks_cube", {"answer": None, "metadata": {"example_correct_answer": ""}}) is None
    logic = {"answer": None, "metadata": {"variables": ["P", "Q"], "example_answer": "P"}}
    assert gold_answer("propositional_logic", logic) is None
    assert gold_answer("rush_hour", {"answer": None, "metadata": {}}) is None
    assert gold_answer("maze", {"answer": 3, "metadata": {}}) == "3"


@pytest.mark.parametrize(("raw", "value"), [(1.0000000002, 1.0), (-0.5, 0.0), (1, 1.0)])
def test_values_are_clamped_plain_floats(raw: float, value: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a grader returns, the value is a float in [0, 1]; NaN is an error."""
    monkeypatch.setattr(library_grader, "grade", lambda *args: raw)
    result = grade("maze", {}, {}, "x")
    assert (result, type(result)) == (value, float)
    monkeypatch.setattr(library_grader, "grade", lambda *args: float("nan"))
    with pytest.raises(ValueError, match="nan"):
        grade("maze", {}, {}, "x")


@pytest.mark.parametrize("task", ["arc_1d", "rearc", "graph_color", "propositional_logic", "word_ladder", "n_queens"])
def test_gold_scores_one(task: str) -> None:
    """Tasks with a special form of gold answer or grader (the tier `slow` covers all)."""
    for row in build_rows(task, "train", 3, seed=3):
        assert score(f"<answer>{row['answer']}</answer>", row["info"]).status == "correct"
