"""Figures of answers, against their definitions, and which answers are still to be made."""

import math
import random
import statistics
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rg_env.core.statistics import mean_and_error, pass_at_k
from rg_env.evaluation.scores import STATUSES, Tally, scores_of, usage_of

Made = list[list[tuple[str, float, int | None, bool | None]]]
"""By question, of each answer: status, reward, tokens, whether it was cut off."""


def _record(number: int, rollout: int, status: str, reward: float = 0.0, tokens: Any = None, cut: Any = None) -> Any:
    return {
        "row": f"q{number}", "problem": number, "rollout": rollout, "status": status, "correct": status == "correct",
        "reward": reward, "truncated": cut, "prompt_tokens": tokens and 2 * tokens, "completion_tokens": tokens,
    }  # fmt: skip


def _tally(questions: int, times: int, left_out: frozenset[int] = frozenset()) -> Tally:
    return Tally([f"q{number}" for number in range(questions)], times, left_out)


Answers = st.tuples(
    st.sampled_from(STATUSES), st.floats(-1, 2), st.none() | st.integers(0, 50), st.none() | st.booleans()
)


@given(
    st.integers(1, 5).flatmap(lambda n: st.lists(st.lists(Answers, min_size=n, max_size=n), min_size=1, max_size=8)),
    st.randoms(use_true_random=False),
)
@settings(max_examples=60, deadline=None)
def test_scores_are_means_of_the_answers(made: Made, rng: random.Random) -> None:
    """Whatever their order; a failed call is a wrong answer that is counted; what is not known is left out."""
    times = len(made[0])
    tally = _tally(len(made), times)
    records = [_record(n, k, *answer) for n, answers in enumerate(made) for k, answer in enumerate(answers)]
    assert all(map(tally.put, rng.sample(records, len(records))))
    scores = scores_of([tally.answers(number) for number in range(len(made))], floor=0.25)
    flat = [answer for answers in made for answer in answers]
    right = [[float(status == "correct") for status, *_ in answers] for answers in made]
    accuracy, error = mean_and_error(right)
    assert (scores.accuracy, scores.accuracy_se) == (pytest.approx(accuracy), pytest.approx(error))
    low, high = scores.measured[1]
    assert 0 <= low <= accuracy <= high <= 1
    assert scores.guess_adjusted == pytest.approx((accuracy - 0.25) / 0.75)
    assert scores.reward == pytest.approx(statistics.fmean(reward for _, reward, *_ in flat))
    if len(made) > 1:
        _, error = mean_and_error([[reward for _, reward, *_ in answers] for answers in made])
        assert scores.reward_interval
        assert scores.reward_interval[1] - scores.reward >= 1.9 * error - 1e-9
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


@given(st.lists(st.sampled_from(STATUSES), min_size=1, max_size=6))
def test_missing_and_failed_answers_are_open(statuses: list[str]) -> None:
    """A record that comes again replaces the first."""
    tally = _tally(len(statuses), 2)
    assert tally.open() == [(n, k) for n in range(len(statuses)) for k in range(2)]
    for number, status in enumerate(statuses):
        tally.put(_record(number, 0, status))
    failed = [(n, 0) for n, status in enumerate(statuses) if status == "failed"]
    assert sorted(tally.open()) == sorted([*failed, *((n, 1) for n in range(len(statuses)))])
    for number in range(len(statuses)):
        tally.put(_record(number, 0, "correct"))
    assert (tally.made, tally.failed) == (len(statuses), 0)


def test_questions_that_were_trained_on_are_left_out() -> None:
    """Neither asked nor counted; nor are records of anything else that was not asked."""
    tally = _tally(3, 2, frozenset({1}))
    assert (tally.asked, tally.open()) == (4, [(0, 0), (0, 1), (2, 0), (2, 1)])
    others = [_record(1, 0, "correct"), _record(3, 0, "correct"), _record(0, 2, "correct"), _record(0, -1, "correct")]
    assert not any(map(tally.put, [*others, {**_record(0, 0, "correct"), "row": "another question"}]))
    assert (tally.made, tally.answers(1)) == (0, [])


def test_costs_are_known_where_tokens_and_prices_are() -> None:
    records = [_record(0, 0, "correct", tokens=1000), _record(1, 0, "wrong", tokens=3000)]
    usage = usage_of(records, (1.0, 2.0))
    assert (usage.prompt_tokens, usage.completion_tokens, usage.cost) == (8000, 4000, pytest.approx(0.016))
    assert usage_of(records, None).cost is None
    assert usage_of([_record(0, 0, "failed")], (1.0, 2.0)).cost is None
