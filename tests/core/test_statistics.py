"""Means with errors clustered by problem, intervals, and pass@k, compared with independent computations."""

import itertools
import math
import random
import statistics
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rg_env.core.statistics import (
    guess_adjusted,
    mean_and_error,
    mean_interval,
    mean_of,
    paired_difference,
    pass_at_k,
    runs_interval,
    share_interval,
    t_critical,
    wilson_interval,
    with_interval,
)
from rg_env.errors import InputError

Values = st.lists(st.lists(st.floats(-10, 10), min_size=1, max_size=5), min_size=2, max_size=12)


@given(st.lists(st.floats(-10, 10), min_size=2, max_size=50))
def test_one_value_per_problem_gives_the_plain_standard_error(values: list[float]) -> None:
    """The error is the sample standard deviation divided by sqrt(n)."""
    mean, error = mean_and_error([[value] for value in values])
    assert mean == pytest.approx(statistics.fmean(values), abs=1e-9)
    assert error == pytest.approx(statistics.stdev(values) / math.sqrt(len(values)), abs=1e-9)


@given(Values, st.randoms(use_true_random=False), st.floats(-5, 5), st.floats(0.1, 5))
def test_order_shift_and_scale(values: list[list[float]], rng: random.Random, shift: float, scale: float) -> None:
    """Order does not matter, a shift changes only the mean, and a scale multiplies both; empty problems do not
    count."""
    mean, error = mean_and_error(values)
    shuffled = [rng.sample(each, len(each)) for each in rng.sample(values, len(values))]
    assert mean_and_error([*shuffled, []]) == pytest.approx((mean, error), abs=1e-9)
    moved = mean_and_error([[value * scale + shift for value in each] for each in values])
    assert moved == pytest.approx((mean * scale + shift, error * scale), abs=1e-8)


def test_the_error_matches_a_bootstrap_over_problems() -> None:
    """Problems differ in difficulty and number of answers, and are resampled 4,000 times."""
    rng = random.Random(0)
    values = []
    for _ in range(120):
        chance = rng.random()
        values.append([float(rng.random() < chance) for _ in range(rng.randint(1, 8))])
    mean, error = mean_and_error(values)
    means = []
    for _ in range(4000):
        drawn = list(itertools.chain.from_iterable(rng.choices(values, k=len(values))))
        means.append(statistics.fmean(drawn))
    assert mean == pytest.approx(statistics.fmean(itertools.chain.from_iterable(values)))
    assert error == pytest.approx(statistics.stdev(means), rel=0.06)
    naive = list(itertools.chain.from_iterable(values))
    assert error > 1.2 * statistics.stdev(naive) / math.sqrt(len(naive))


def test_one_problem_has_no_error() -> None:
    """One problem says nothing about the deviation between problems."""
    assert mean_and_error([[1.0, 0.0]]) == (0.5, 0.0)


@pytest.mark.parametrize("n", range(1, 8))
def test_pass_at_k_counts_all_choices(n: int) -> None:
    """pass@k is the share of all choices of k of the n answers that include a right one."""
    for c, k in itertools.product(range(n + 1), range(1, n + 1)):
        answers = [True] * c + [False] * (n - c)
        choices = list(itertools.combinations(answers, k))
        assert pass_at_k(n, c, k) == pytest.approx(sum(map(any, choices)) / len(choices), abs=1e-12)


@pytest.mark.parametrize(
    ("function", "arguments", "message"),
    [
        *((mean_and_error, [values], "no values") for values in ([], [[], []])),
        *((pass_at_k, each, "must be between") for each in ((4, 5, 1), (4, -1, 1), (4, 2, 0), (4, 2, 5), (0, 0, 1))),
        (runs_interval, ([0.5, 1.5], 10), "between 0 and 1"),
        *((share_interval, [values], "between 0 and 1") for values in ([[1.5]], [[-0.1, 0.0]])),
        (mean_of, ([], []), "no values"),
        *((paired_difference, [pairs], "no questions in common") for pairs in ([], [({"a": [1.0]}, {"b": [1.0]})])),
        *((wilson_interval, values, "must be between 0 and 1")
          for values in [(-0.1, 10), (1.1, 10), (0.5, 0), (math.nan, 10)]),
    ],
)  # fmt: skip
def test_impossible_values_are_refused(function: Callable[..., Any], arguments: Iterable[Any], message: str) -> None:
    """No values, values that are not shares, and counts of right answers or k that are out of range."""
    with pytest.raises(InputError, match=message):
        function(*arguments)


@pytest.mark.parametrize(
    ("degrees", "t95"), [(1, 12.706), (2, 4.303), (3, 3.182), (4, 2.776), (9, 2.262), (30, 2.042), (120, 1.980)]
)
def test_t_matches_printed_tables(degrees: int, t95: float) -> None:
    """The values are two-sided 95% ones from Abramowitz and Stegun, table 26.10."""
    assert t_critical(degrees) == pytest.approx(t95, abs=5e-4)
    values = [[1.0, 3.0], *[[5.0]] * degrees]  # `mean_interval` uses t, clustered by problem
    mean, error = mean_and_error(values)
    assert mean_interval(values) == pytest.approx((mean - t95 * error, mean + t95 * error), rel=1e-3)
    assert mean_interval(values[:1]) is None


@given(st.lists(st.integers(0, 50).map(lambda right: right / 50), min_size=1, max_size=6))
def test_the_interval_of_runs_is_at_least_that_of_all_answers(shares: list[float]) -> None:
    """The interval is within [0, 1], and contains Wilson's interval of all answers together."""
    mean = statistics.fmean(shares)
    low, high = runs_interval(shares, 50)
    least_low, least_high = wilson_interval(min(max(mean, 0.0), 1.0), 50 * len(shares))
    assert 0 <= low <= least_low + 1e-9
    assert least_high - 1e-9 <= high <= 1


def test_the_interval_of_runs_grows_with_their_differences() -> None:
    assert runs_interval([0.0], 10) == pytest.approx((0, 0.2775), abs=1e-4)
    close, apart = runs_interval([0.8, 0.8, 0.82], 1000), runs_interval([0.6, 0.8, 0.95], 1000)
    assert apart[0] < close[0] < close[1] < apart[1]


def test_a_figure_is_shown_with_its_interval() -> None:
    assert with_interval(0.5, (0.4, 0.61)) == "0.500 [0.400, 0.610]"
    assert with_interval(0.1, (-0.02, 0.2), 2, sign=True) == "+0.10 [-0.02, +0.20]"
    assert with_interval(31.4, None, 0) == "31"


def _answers(rng: random.Random, problems: int, times: int, difficulty: float = 0.0) -> list[list[float]]:
    """Answers to problems of different difficulty, so that answers to the same problem are correlated."""
    chances = [min(max(rng.betavariate(1, 1) - difficulty, 0), 1) for _ in range(problems)]
    return [[float(rng.random() < chance) for _ in range(times)] for chance in chances]


@pytest.mark.parametrize(
    ("right", "n", "low", "high"),
    [(0, 10, 0.0, 0.2775), (10, 10, 0.7225, 1.0), (1, 29, 0.0061, 0.1718), (81, 263, 0.2553, 0.3662)],
)
def test_with_one_answer_per_problem_the_interval_is_wilsons(right: int, n: int, low: float, high: float) -> None:
    """The intervals agree except for a correction for the degrees of freedom. 81 of 263 and 1 of 29 are from Newcombe
    (1998), table I."""
    values = [[1.0]] * right + [[0.0]] * (n - right)
    found = share_interval(values)
    assert found == pytest.approx((low, high), abs=0.015 if right == 1 else 0.002)
    assert found[0] <= low + 1e-3  # the correction makes it wider
    assert found[1] >= high - 1e-3


def test_share_intervals_include_the_true_share() -> None:
    """Over 600 evaluations of 60 problems with 4 answers each, intervals clustered by problem include the true share
    often enough; those without clusters do not."""
    rng, held, naive = random.Random(1), 0, 0
    for _ in range(600):
        values = _answers(rng, 60, 4)  # chances are uniform, so the true share is 0.5
        low, high = share_interval(values)
        held += low <= 0.5 <= high
        low, high = share_interval([[value] for each in values for value in each])
        naive += low <= 0.5 <= high
    assert held / 600 > 0.92
    assert naive / 600 < 0.88


@given(st.lists(st.lists(st.sampled_from([0.0, 1.0]), min_size=1, max_size=4), min_size=1, max_size=30))
def test_share_intervals_include_the_mean(values: list[list[float]]) -> None:
    """Intervals are within [0, 1], always have a width, and are mirrored if right and wrong are exchanged."""
    mean, _ = mean_and_error(values)
    low, high = share_interval(values)
    assert 0 <= low <= mean <= high <= 1
    assert high - low > 0.01
    mirrored = share_interval([[1 - value for value in each] for each in values])
    assert mirrored == pytest.approx((1 - high, 1 - low), abs=1e-9)


def test_more_answers_to_the_same_problems_do_not_narrow_the_interval() -> None:
    """Ten right answers to each of five problems count as much as one."""
    assert share_interval([[1.0] * 10] * 5) == share_interval([[1.0]] * 5)
    assert share_interval([[1.0] * 10] * 5)[0] < share_interval([[1.0]] * 50)[0]


def test_a_macro_average_combines_the_intervals_of_its_parts() -> None:
    """For symmetric intervals, the half-width is the root of the sum of squared half-widths, divided by their number. A
    single interval is unchanged."""
    assert mean_of([0.4], [(0.3, 0.6)]) == (0.4, pytest.approx((0.3, 0.6)))
    mean, (low, high) = mean_of([0.2, 0.6], [(0.1, 0.3), (0.5, 0.7)])
    assert mean == pytest.approx(0.4)
    assert (low, high) == pytest.approx((0.4 - math.sqrt(0.02) / 2, 0.4 + math.sqrt(0.02) / 2))


def test_guessing_is_adjusted_to_zero() -> None:
    assert guess_adjusted(0.5, 0.5) == 0
    assert guess_adjusted(1.0, 0.3) == 1
    assert guess_adjusted(0.2, 0.5) == pytest.approx(-0.6)
    assert guess_adjusted(1.0, 1.0) is None


def _by_problem(values: list[list[float]]) -> dict[str, list[float]]:
    return {str(number): each for number, each in enumerate(values)}


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), min_size=1, max_size=9))
@example([(0, 0), (0, 0), (0, 0), (0, 1), (0, 2), (0, 2), (1, 0), (2, 0), (2, 0)])  # ties, up to rounding of floats
@settings(max_examples=60, deadline=None)
def test_the_p_value_counts_all_ways_to_swap(counts: list[tuple[int, int]]) -> None:
    """For few problems, the p-value matches brute force: twice the share of swaps whose difference is at least as
    extreme in the same direction, up to 1."""
    first = _by_problem([[1.0] * a + [0.0] * (2 - a) for a, _ in counts])
    second = _by_problem([[1.0] * b + [0.0] * (2 - b) for _, b in counts])
    found = paired_difference([(first, second)])
    differences = [(a - b) / 2 for a, b in counts]
    sums = [sum(d * s for d, s in zip(differences, signs, strict=True))
            for signs in itertools.product((1, -1), repeat=len(counts))]  # fmt: skip
    seen = sum(differences)
    tail = min(sum(each >= seen - 1e-9 for each in sums), sum(each <= seen + 1e-9 for each in sums)) / len(sums)
    assert found.p_value == pytest.approx(min(1.0, 2 * tail))
    assert found.difference == pytest.approx(statistics.fmean(differences))
    low, high = found.interval
    assert -1 <= low <= found.difference + 1e-9
    assert found.difference - 1e-9 <= high <= 1


@pytest.mark.slow
def test_equal_models_differ_rarely_and_better_ones_always() -> None:
    """If a model is compared with itself, p is rarely below 0.05, and the interval nearly always includes 0."""
    rng, small, held = random.Random(2), 0, 0
    for seed in range(200):
        chances = [rng.random() for _ in range(40)]
        first, second = (
            _by_problem([[float(rng.random() < chance) for _ in range(2)] for chance in chances]) for _ in range(2)
        )
        found = paired_difference([(first, second)], seed=seed)
        small += found.p_value < 0.05
        held += found.interval[0] <= 0 <= found.interval[1]
    assert small / 200 < 0.1
    assert held / 200 > 0.9
    better = paired_difference([(_by_problem([[1.0]] * 40), _by_problem([[0.0]] * 40))])
    assert better.p_value < 0.001
    assert better.difference == 1
    assert 0.7 < better.interval[0] < better.interval[1] == 1


@pytest.mark.parametrize(
    "counts", [(2, 0, 0, 2), (4, 0, 1, 3), (30, 5, 9, 36), (5, 6, 4, 5), (1, 8, 9, 2), (6, 2, 0, 0)]
)
def test_the_interval_of_pairs_is_newcombes(counts: tuple[int, int, int, int]) -> None:
    """The correlation is Newcombe's, from the counts of pairs with both, one or neither right (Altman 2000, page
    52)."""
    both, one, other, none = counts
    n = sum(counts)
    first = [1.0] * (both + one) + [0.0] * (other + none)
    second = [1.0] * both + [0.0] * one + [1.0] * other + [0.0] * none
    found = paired_difference([tuple(_by_problem([[each] for each in side]) for side in (first, second))])
    table = both * none - one * other
    product = (both + one) * (other + none) * (both + other) * (one + none)
    phi = 0.0 if not product else (max(table - n / 2, 0.0) if table > 0 else table) / math.sqrt(product)
    p, q = (both + one) / n, (both + other) / n
    (p_low, p_high), (q_low, q_high) = (share_interval([[each] for each in side]) for side in (first, second))
    below = math.sqrt((p - p_low) ** 2 - 2 * phi * (p - p_low) * (q_high - q) + (q_high - q) ** 2)
    above = math.sqrt((p_high - p) ** 2 - 2 * phi * (p_high - p) * (q - q_low) + (q - q_low) ** 2)
    assert found.interval == pytest.approx((p - q - below, p - q + above))


@pytest.mark.parametrize("right", [0, 1, 2, 4])
def test_equal_answers_do_not_prove_that_models_are_equal(right: int) -> None:
    """With only four questions, the interval is wide however many are right."""
    answers = _by_problem([[float(number < right)] for number in range(4)])
    low, high = paired_difference([(answers, answers)]).interval
    assert low < -0.1 < 0.1 < high


def test_only_common_problems_count_and_tasks_count_alike() -> None:
    """One task with two problems weighs as much as one with twenty."""
    small = ({"a": [1.0], "b": [1.0], "c": [1.0]}, {"a": [0.0], "b": [0.0], "z": [1.0]})
    large = (_by_problem([[1.0]] * 20), _by_problem([[1.0]] * 20))
    found = paired_difference([small, large])
    assert (found.n, found.difference) == (22, 0.5)
    assert found.p_value == pytest.approx(0.5)  # from the four ways to swap the two problems that differ


@given(st.integers(0, 60), st.integers(1, 60))
def test_the_ends_of_wilsons_interval_satisfy_its_definition(right: int, n: int) -> None:
    """The ends solve |p - share| = z sqrt(p (1 - p) / n)."""
    share = min(right, n) / n
    z = statistics.NormalDist().inv_cdf(0.975)
    low, high = wilson_interval(share, n)
    for end in (low, high):
        if 0 < end < 1:
            assert abs(end - share) == pytest.approx(z * math.sqrt(end * (1 - end) / n), abs=1e-9)
    assert 0 <= low <= share <= high <= 1
