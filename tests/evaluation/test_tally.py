"""Figures of rollouts, against what they are by definition."""

import math
import random
import statistics
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rg_env.core.statistics import mean_and_error, pass_at_k
from rg_env.errors import InputError
from rg_env.evaluation.counts import STATUSES, Tally

Made = list[list[tuple[str, float, int | None, bool | None]]]
"""By question, of each answer: status, reward, tokens, whether it was cut off."""


def _record(row: str, rollout: int, status: str, reward: float, tokens: int | None, cut: bool | None) -> dict[str, Any]:
    return {
        "row": row, "rollout": rollout, "status": status, "reward": reward, "truncated": cut,
        "prompt_tokens": tokens and 2 * tokens, "completion_tokens": tokens,
    }  # fmt: skip


def _tally(made: Made, rng: random.Random) -> Tally:
    """With its records in any order."""
    tally = Tally([f"q{number}" for number in range(len(made))], len(made[0]))
    records = [_record(f"q{n}", k, *answer) for n, answers in enumerate(made) for k, answer in enumerate(answers)]
    for record in rng.sample(records, len(records)):
        assert tally.put(record)
    return tally


Answers = st.tuples(
    st.sampled_from(STATUSES), st.floats(-1, 2), st.none() | st.integers(0, 50), st.none() | st.booleans()
)


@given(
    st.integers(1, 5).flatmap(lambda n: st.lists(st.lists(Answers, min_size=n, max_size=n), min_size=1, max_size=8)),
    st.randoms(use_true_random=False),
)
@settings(max_examples=60, deadline=None)
def test_scores_are_means_of_the_records(made: Made, rng: random.Random) -> None:
    """Whatever their order; a failed call is a wrong answer that is counted."""
    tally = _tally(made, rng)
    scores, times = tally.scores(0.25), len(made[0])
    flat = [answer for answers in made for answer in answers]
    right = [[float(status == "correct") for status, *_ in answers] for answers in made]
    accuracy = sum(map(sum, right)) / len(flat)
    assert scores.accuracy == pytest.approx(accuracy)
    assert scores.guess_adjusted == pytest.approx((accuracy - 0.25) / 0.75)
    assert scores.reward == pytest.approx(statistics.fmean(reward for _, reward, *_ in flat))
    if len(made) > 1:
        _, error = mean_and_error([[reward for _, reward, *_ in answers] for answers in made])
        assert scores.reward_interval[1] - scores.reward == pytest.approx(scores.reward - scores.reward_interval[0])
        assert scores.reward_interval[1] - scores.reward >= 1.9 * error - 1e-9
    known = [tokens for _, _, tokens, _ in flat if tokens is not None]
    assert scores.mean_completion_tokens == (pytest.approx(statistics.fmean(known)) if known else None)
    cuts = [cut for *_, cut in flat if cut is not None]
    assert scores.truncated == (pytest.approx(statistics.fmean(cuts)) if cuts else None)
    assert scores.failed == sum(status == "failed" for status, *_ in flat)
    assert math.fsum(scores.status.values()) == pytest.approx(1)
    for name, share in scores.status.items():
        assert share == pytest.approx(sum(status == name for status, *_ in flat) / len(flat))
    assert set(scores.pass_at_k) == {f"pass@{k}" for k in (2, 4) if k <= times}
    for name, value in scores.pass_at_k.items():
        k = int(name.split("@")[1])
        assert value == pytest.approx(statistics.fmean(pass_at_k(times, int(sum(each)), k) for each in right))
    assert tally.correct() == {f"q{n}": [bool(each) for each in answers] for n, answers in enumerate(right)}


@given(st.lists(st.sampled_from(STATUSES), min_size=1, max_size=6), st.data())
def test_what_is_open_is_what_was_not_made_or_failed(statuses: list[str], data: st.DataObject) -> None:
    """A record that comes again takes the place of the first."""
    times = 2
    tally = Tally([f"q{number}" for number in range(len(statuses))], times)
    assert tally.open() == [(n, k) for n in range(len(statuses)) for k in range(times)]
    for number, status in enumerate(statuses):
        tally.put(_record(f"q{number}", 0, status, 0.0, None, None))
    failed = [(n, 0) for n, status in enumerate(statuses) if status == "failed"]
    assert sorted(tally.open()) == sorted([*failed, *((n, 1) for n in range(len(statuses)))])
    assert tally.open(failed_too=False) == [(n, 1) for n in range(len(statuses))]
    for number in range(len(statuses)):
        tally.put(_record(f"q{number}", 0, "correct", 1.0, None, None))
    assert (tally.made, tally.failed) == (len(statuses), 0)


def test_questions_that_were_trained_on_are_left_out() -> None:
    """Not asked, not counted, and their records are of no account."""
    tally = Tally(["a", "b", "c"], 2, frozenset({"b", "z"}))
    assert (tally.asked, tally.left_out) == (4, 1)
    assert tally.open() == [(0, 0), (0, 1), (2, 0), (2, 1)]
    assert not tally.put(_record("b", 0, "correct", 1.0, None, None))
    for row in "ac":
        for rollout in range(2):
            tally.put(_record(row, rollout, "correct" if row == "a" else "wrong", 1.0, 3, False))
    scores = tally.scores(None)
    assert (scores.n, scores.rollouts, scores.accuracy, scores.left_out) == (2, 4, 0.5, 1)
    assert scores.guess_adjusted is None
    assert tally.correct() == {"a": [True, True], "c": [False, False]}
    with pytest.raises(InputError, match="no question is left"):
        Tally(["a"], 2, frozenset("a")).scores(None)


@pytest.mark.parametrize(("row", "rollout"), [("other", 0), ("a", 2), ("a", -1)])
def test_records_of_nothing_that_was_asked_do_not_count(row: str, rollout: int) -> None:
    tally = Tally(["a"], 2)
    assert not tally.put(_record(row, rollout, "correct", 1.0, None, None))
    assert tally.made == 0


def test_costs_are_known_where_tokens_and_prices_are() -> None:
    tally = Tally(["a", "b"], 1)
    assert tally.usage((1.0, 2.0)).cost is None
    tally.put(_record("a", 0, "correct", 1.0, 1000, False))
    tally.put(_record("b", 0, "wrong", 1.0, 3000, False))
    usage = tally.usage((1.0, 2.0))
    assert (usage.prompt_tokens, usage.completion_tokens) == (8000, 4000)
    assert usage.cost == pytest.approx(0.016)
    assert tally.usage(None).cost is None
