"""Means with errors clustered by problem, and pass@k, against independent computations."""

import itertools
import math
import random
import statistics

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rg_env.core.statistics import mean_and_error, mean_and_interval, pass_at_k, t_critical
from rg_env.errors import InputError

Values = st.lists(st.lists(st.floats(-10, 10), min_size=1, max_size=5), min_size=2, max_size=12)


@given(st.lists(st.floats(-10, 10), min_size=2, max_size=50))
def test_one_value_a_problem_gives_the_plain_standard_error(values: list[float]) -> None:
    """Sample deviation / sqrt(n), as in any textbook."""
    mean, error = mean_and_error([[value] for value in values])
    assert mean == pytest.approx(statistics.fmean(values), abs=1e-9)
    assert error == pytest.approx(statistics.stdev(values) / math.sqrt(len(values)), abs=1e-9)


@given(st.lists(st.lists(st.floats(0, 1), min_size=4, max_size=4), min_size=2, max_size=20))
def test_with_equally_many_answers_only_the_problems_means_count(values: list[list[float]]) -> None:
    """Then the clustered error is the plain one of the means."""
    mean, error = mean_and_error(values)
    means = [statistics.fmean(each) for each in values]
    assert mean == pytest.approx(statistics.fmean(means), abs=1e-9)
    assert error == pytest.approx(statistics.stdev(means) / math.sqrt(len(means)), abs=1e-9)


@given(Values, st.integers(2, 4))
def test_repeating_answers_makes_nothing_surer(values: list[list[float]], times: int) -> None:
    """The same answers several times over say no more about other problems."""
    once, repeated = mean_and_error(values), mean_and_error([each * times for each in values])
    assert repeated == pytest.approx(once, abs=1e-9)


@given(Values, st.randoms(use_true_random=False), st.floats(-5, 5), st.floats(0.1, 5))
def test_order_shift_and_scale(values: list[list[float]], rng: random.Random, shift: float, scale: float) -> None:
    """Order is of no account, a shift moves the mean alone, a scale multiplies both; empty problems do not count."""
    mean, error = mean_and_error(values)
    shuffled = [rng.sample(each, len(each)) for each in rng.sample(values, len(values))]
    assert mean_and_error([*shuffled, []]) == pytest.approx((mean, error), abs=1e-9)
    moved = mean_and_error([[value * scale + shift for value in each] for each in values])
    assert moved == pytest.approx((mean * scale + shift, error * scale), abs=1e-8)


def test_the_error_is_that_of_a_bootstrap_over_problems() -> None:
    """Problems of unlike difficulty and unlike numbers of answers, drawn again 4,000 times."""
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


def test_one_problem_has_no_error_and_none_is_refused() -> None:
    """No deviation between problems can be known."""
    assert mean_and_error([[1.0, 0.0]]) == (0.5, 0.0)
    for nothing in ([], [[], []]):
        with pytest.raises(InputError, match="no values"):
            mean_and_error(nothing)


@pytest.mark.parametrize("n", range(1, 8))
def test_pass_at_k_counts_all_choices(n: int) -> None:
    """The share of all choices of k of the n answers that hold a right one."""
    for c, k in itertools.product(range(n + 1), range(1, n + 1)):
        answers = [True] * c + [False] * (n - c)
        choices = list(itertools.combinations(answers, k))
        assert pass_at_k(n, c, k) == pytest.approx(sum(map(any, choices)) / len(choices), abs=1e-12)


@given(st.integers(1, 12), st.integers(1, 12), st.floats(0, 1))
@settings(max_examples=50)
def test_pass_at_k_is_unbiased(n: int, k: int, chance: float) -> None:
    """Its mean over all outcomes of n answers is the chance that one of k is right."""
    k = min(k, n)
    mean = sum(math.comb(n, c) * chance**c * (1 - chance) ** (n - c) * pass_at_k(n=n, c=c, k=k) for c in range(n + 1))
    assert mean == pytest.approx(1 - (1 - chance) ** k, abs=1e-9)


@given(st.integers(1, 2000), st.data())
def test_pass_at_k_grows(n: int, data: st.DataObject) -> None:
    """With k and with c; pass@1 is the accuracy."""
    c, k = data.draw(st.integers(0, n)), data.draw(st.integers(1, n))
    value = pass_at_k(n, c, k)
    assert 0 <= value <= 1
    assert pass_at_k(n, c, 1) == pytest.approx(c / n)
    assert c == n or pass_at_k(n, c + 1, k) >= value
    assert k == n or pass_at_k(n, c, k + 1) >= value


@pytest.mark.parametrize(("n", "c", "k"), [(4, 5, 1), (4, -1, 1), (4, 2, 0), (4, 2, 5), (0, 0, 1)])
def test_counts_that_cannot_be(n: int, c: int, k: int) -> None:
    """More right answers than answers, or no or more choices than answers."""
    with pytest.raises(InputError, match="must be between"):
        pass_at_k(n, c, k)


@pytest.mark.parametrize(
    ("degrees", "t95", "t99"),
    [(1, 12.706, 63.657), (2, 4.303, 9.925), (3, 3.182, 5.841), (4, 2.776, 4.604), (9, 2.262, 3.250),
     (30, 2.042, 2.750), (120, 1.980, 2.617)],
)  # fmt: skip
def test_t_is_that_of_the_printed_tables(degrees: int, t95: float, t99: float) -> None:
    """Two-sided 95 % and 99 %: Abramowitz and Stegun, table 26.10."""
    assert t_critical(degrees) == pytest.approx(t95, abs=5e-4)
    assert t_critical(degrees, 0.99) == pytest.approx(t99, abs=5e-4)


@given(st.integers(1, 60), st.floats(0.05, 0.99))
@settings(max_examples=40)
def test_t_encloses_so_much_of_the_density(degrees: int, confidence: float) -> None:
    """By Simpson's rule over Student's density, of which the series knows nothing."""
    t, parts = t_critical(degrees, confidence), 2000
    scale = math.gamma((degrees + 1) / 2) / math.gamma(degrees / 2) / math.sqrt(degrees * math.pi)
    # Over the angle: for one degree of freedom t reaches far out.
    end = math.atan(t)
    heights = [
        scale * (1 + math.tan(a) ** 2 / degrees) ** (-(degrees + 1) / 2) / math.cos(a) ** 2
        for a in (end * i / parts for i in range(parts + 1))
    ]
    weights = [1, *[4, 2] * (parts // 2 - 1), 4, 1]
    area = sum(weight * height for weight, height in zip(weights, heights, strict=True))
    assert 2 * area * end / parts / 3 == pytest.approx(confidence, abs=1e-6)


def test_with_many_degrees_t_is_the_normal_distributions() -> None:
    """To the difference that its docstring tells, and never below."""
    normal = statistics.NormalDist().inv_cdf(0.975)
    assert t_critical(10**9) == t_critical(10_000)
    assert 1.0001 < t_critical(10**9) / normal < 1.00013
    values = [t_critical(degrees) for degrees in range(1, 200)]
    assert values == sorted(values, reverse=True)


def test_the_interval_holds_the_true_mean_as_often_as_it_says() -> None:
    """Of 4,000 samples of three: 95 in a hundred, where the normal distribution's would hold it 82 times."""
    rng = random.Random(0)
    held = 0
    for _ in range(4000):
        mean, half = mean_and_interval([rng.gauss(5, 2) for _ in range(3)])
        assert half is not None
        held += abs(mean - 5) <= half
    assert held / 4000 == pytest.approx(0.95, abs=0.011)  # three standard errors


def test_one_value_has_no_interval_and_chances_must_be_some() -> None:
    assert mean_and_interval([0.5]) == (0.5, None)
    assert mean_and_interval([1, 1]) == (1, 0)
    with pytest.raises(InputError, match="no values"):
        mean_and_interval([])
    for degrees, confidence in ((0, 0.95), (1, 0.0), (1, 1.0)):
        with pytest.raises(InputError, match="no t of"):
            t_critical(degrees, confidence)
