"""Tests of scores against their definitions, of missing answers, and of records that survive interruptions."""

import json
import math
import random
import statistics
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rg_env.core.environment import Environment
from rg_env.core.run_folder import json_lines
from rg_env.core.statistics import mean_and_error, pass_at_k
from rg_env.errors import InputError
from rg_env.evaluation.config import Price
from rg_env.evaluation.questions import Answer, Questions, TaskAnswers, record_file
from rg_env.evaluation.scores import STATUSES, scores_of, usage_of
from rg_env.inference.protocol import Sampling

Made = list[list[tuple[str, float, int | None, bool | None]]]
"""Status, reward, tokens and truncation of each answer, grouped by question."""


def _answers(questions: int, times: int, left_out: frozenset[int] = frozenset()) -> TaskAnswers:
    rows = [{"question": f"q{number}"} for number in range(questions)]
    return TaskAnswers("m", Questions(Environment(eval_rows=rows)), Sampling(), times, left_out=left_out)


def _record(answers: TaskAnswers, number: int, rollout: int, status: str, reward: float = 0.0, tokens: Any = None,
            cut: Any = None) -> dict[str, Any]:  # fmt: skip
    return {
        "draw": "sampled", "row": answers.questions.hashes[number], "problem": number, "rollout": rollout,
        "status": status, "correct": status == "correct", "reward": reward, "truncated": cut,
        "prompt_tokens": tokens and 2 * tokens, "completion_tokens": tokens,
        "error": "no" if status == "failed" else None,
    }  # fmt: skip


Answers = st.tuples(
    st.sampled_from(STATUSES), st.floats(-1, 2), st.none() | st.integers(0, 50), st.none() | st.booleans()
)


@given(
    st.integers(1, 5).flatmap(lambda n: st.lists(st.lists(Answers, min_size=n, max_size=n), min_size=1, max_size=8)),
    st.randoms(use_true_random=False),
)
@settings(max_examples=60, deadline=None)
def test_scores_are_means_of_the_answers(made: Made, rng: random.Random) -> None:
    """The order does not matter. A failed call counts as a wrong answer, and unknown values are excluded from means."""
    times = len(made[0])
    of_model = _answers(len(made), times)
    records = [_record(of_model, n, k, *answer) for n, answers in enumerate(made) for k, answer in enumerate(answers)]
    assert all(map(of_model.load, rng.sample(records, len(records))))
    scores = scores_of([of_model], floor=0.25)
    flat = [answer for answers in made for answer in answers]
    right = [[float(status == "correct") for status, *_ in answers] for answers in made]
    accuracy, error = mean_and_error(right)
    assert (scores.accuracy, scores.errors["accuracy"]) == (pytest.approx(accuracy), pytest.approx(error))
    low, high = scores.measured[1]
    assert 0 <= low <= accuracy <= high <= 1
    assert scores.guess_adjusted == pytest.approx((accuracy - 0.25) / 0.75)
    assert scores.reward == pytest.approx(statistics.fmean(reward for _, reward, *_ in flat))
    if len(made) > 1:
        _, error = mean_and_error([[reward for _, reward, *_ in answers] for answers in made])
        assert scores.intervals["reward"][1] - scores.reward >= 1.9 * error - 1e-9
    known = [tokens for _, _, tokens, _ in flat if tokens is not None]
    assert scores.mean_completion_tokens == (pytest.approx(statistics.fmean(known)) if known else None)
    cuts = [cut for *_, cut in flat if cut is not None]
    assert scores.truncated == (pytest.approx(statistics.fmean(cuts)) if cuts else None)
    assert scores.failed == sum(status == "failed" for status, *_ in flat)
    assert math.fsum(scores.status.values()) == pytest.approx(1)
    assert set(scores.pass_at_k) == {f"pass@{k}" for k in (1, 2, 4) if 1 < times >= k}
    for name, value in scores.pass_at_k.items():
        k = int(name.split("@")[1])
        assert value == pytest.approx(statistics.fmean(pass_at_k(times, int(sum(each)), k) for each in right))


def test_missing_and_failed_answers_are_open() -> None:
    """Questions that are left out are not open, and records of other rollouts are ignored. A later record replaces an
    earlier one."""
    answers = _answers(3, 2, frozenset({1}))
    assert [key[1:] for key in answers.missing()] == [(0, 0), (0, 1), (2, 0), (2, 1)]
    assert (len(answers.keys), answers.left_out) == (4, 1)
    good = _record(answers, 0, 0, "correct")
    others = [{"problem": 1}, {"problem": 3}, {"rollout": 2}, {"rollout": -1}, {"row": "other"}, {"draw": "greedy"}]
    assert not any(answers.load({**good, **other}) for other in others)
    assert (len(answers.by_key), answers.of(1)) == (0, [])
    answers.load(good)
    answers.load({**good, "rollout": 1, "error": "no"})
    assert [key[1:] for key in answers.missing()] == [(0, 1), (2, 0), (2, 1)]
    answers.load({**good, "rollout": 1})
    assert (len(answers.by_key), answers.failed) == (2, 0)


def test_costs_are_known_where_tokens_and_prices_are() -> None:
    answers = [Answer(prompt_tokens=2000, completion_tokens=1000), Answer(prompt_tokens=6000, completion_tokens=3000)]
    usage = usage_of(answers, Price(input=1.0, output=2.0))
    assert (usage.prompt_tokens, usage.completion_tokens, usage.cost) == (8000, 4000, pytest.approx(0.016))
    assert usage_of(answers, None).cost is None
    assert usage_of([Answer()], Price(input=1.0, output=2.0)).cost is None


# Records


QUESTIONS = Questions(Environment(eval_rows=[{"question": "q"}]), label="t")
KNOWN = {**Answer()._asdict(), "model": "m", "task": "t", "draw": "sampled", "row": QUESTIONS.hashes[0], "problem": 0}


def _added(path: Path, *texts: str) -> list[str]:
    """Add texts to the file and return all texts read back from it."""
    with record_file(path, [answers := TaskAnswers("m", QUESTIONS, Sampling(), 9)]):
        for text in texts:
            answers.on_record({**KNOWN, "rollout": 0, "completion": text})
    with record_file(path, [answers := TaskAnswers("m", QUESTIONS, Sampling(), 9)]) as unmatched:
        assert (unmatched, len(answers.by_key)) == (0, path.stat().st_size > 0)
    return [record["completion"] for record in json_lines(path)]


@given(st.lists(st.text(), max_size=4), st.integers(0, 1500))
def test_any_text_survives_and_a_broken_line_does_not(tmp_path_factory: Any, texts: list[str], cut: int) -> None:
    """If the file is cut at any byte, complete lines are kept, and new records start on their own lines."""
    path = tmp_path_factory.mktemp("rollouts") / "rollouts.jsonl"
    assert _added(path, *texts) == texts
    content = path.read_bytes()
    path.write_bytes(content[: min(cut, len(content))])
    whole = content[: min(cut, len(content))].count(b"\n")
    *before, last = _added(path, "a\ud800b")  # a lone surrogate, which a server can send in JSON
    assert (before, last[0]) == (texts[:whole], "a")


@pytest.mark.parametrize("line", ["{", "[]", "null", '{"model": "m", "task": "t"}', '{"model": []}', "\x00"])
def test_a_damaged_line_is_an_error(tmp_path: Path, line: str) -> None:
    """Damaged lines are never skipped silently."""
    path = tmp_path / "rollouts.jsonl"
    path.write_text(f"{json.dumps({**KNOWN, 'rollout': 0, 'completion': ''})}\n{line}\n")
    with pytest.raises(InputError, match=r"rollouts\.jsonl is damaged: (line 2|a record)"):
        _added(path)
