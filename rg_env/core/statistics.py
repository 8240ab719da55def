"""Statistics for evaluations: uncertainty of means, pass@k, and paired comparisons of models.

    mean, error = mean_and_error([[1, 0, 1, 1], [0, 0, 0, 0]])    # four answers to each of two problems
    share_interval([[1, 0, 1, 1], [0, 0, 0, 0]])                  # a mean of values from 0 to 1, such as accuracies
    runs_interval([0.8, 0.9, 0.7], 100)                           # accuracies of three runs on 100 questions
    mean_interval([[35.0, 20.0], [18.0]])                         # a mean of other values, such as token counts
    wilson_interval(0.5, 100)                                     # a share of a known number of answers
    paired_difference([(first, second)])                          # two models on the same problems
    pass_at_k(n=4, c=3, k=2)                                      # 1.0: of four answers, three were right
    with_interval(0.5, (0.4, 0.6))                                # "0.500 [0.400, 0.600]"

This module computes all intervals that rg_env reports. All intervals are 95% confidence intervals, and intervals for
proportions are within [0, 1]. Proportions are shown as fractions, and differences are the first value minus the second.
`t_critical`, `mean_interval`, `share_interval`, `runs_interval` and `paired_difference` need scipy, which the extras
"eval" and "train" install. Other functions need only the standard library.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from statistics import NormalDist, fmean
from typing import Any

from rg_env.errors import InputError, MissingExtraError, how_to_install

RESAMPLES = 9999
"""Maximum number of permutations. With few problems, the test enumerates all permutations."""
_Z = NormalDist().inv_cdf(0.975)
"""The two-sided critical value of the normal distribution at 95%."""
Interval = tuple[float, float]
"""Lower and upper bounds."""
Answers = Mapping[str, Sequence[float]]
"""Values of the answers to each problem: 1 or True for right, 0 or False for wrong."""


def mean_and_error(values_by_problem: Sequence[Sequence[float]]) -> tuple[float, float]:
    """Return the mean over all values and its standard error, clustered by problem.

    Answers to one problem resemble each other, so treating them as independent would make the error too small. The
    clustered error (Liang and Zeger, 1986) adds up the deviations within each problem before squaring, and multiplies
    the variance by the usual correction factor, problems / (problems - 1). With one value per problem, the error is the
    sample standard deviation divided by sqrt(problems). With a single problem, the error is unknown, and the function
    returns 0 for it.

    Raises:
        InputError: there are no values.
    """
    problems = [values for values in values_by_problem if len(values)]
    if not problems:
        raise InputError("there are no values to average")
    count = sum(map(len, problems))
    mean = math.fsum(value for values in problems for value in values) / count
    if len(problems) == 1:
        return mean, 0.0
    deviations = [math.fsum(value - mean for value in values) for values in problems]
    return mean, math.hypot(*deviations) * math.sqrt(len(problems) / (len(problems) - 1)) / count


def mean_interval(values_by_problem: Sequence[Sequence[float]]) -> Interval | None:
    """Return a confidence interval for a mean of arbitrary values, clustered by problem. The half-width of the interval
    is Student's t times the standard error.

    The result is None for a single problem because the variation between problems is unknown.

    Raises:
        InputError: there are no values.
    """
    mean, error = mean_and_error(values_by_problem)
    problems = sum(map(bool, map(len, values_by_problem)))
    if problems < 2:
        return None
    half = t_critical(problems - 1) * error
    return mean - half, mean + half


def t_critical(degrees: int) -> float:
    """Return the two-sided 95% critical value of Student's t with `degrees` degrees of freedom (at least 1)."""
    return float(_scipy("special").stdtrit(degrees, 0.975))  # importing scipy.stats would take ten times as long


def share_interval(values_by_problem: Sequence[Sequence[float]]) -> tuple[float, float]:
    """Return a confidence interval, within [0, 1], for a mean of values in [0, 1], clustered by problem.

    The interval is Wilson's (1927) score interval with Korn and Graubard's (1998) effective sample size for clustered
    samples. The effective size is `mean * (1 - mean) / error^2`, corrected for the degrees of freedom. It is smaller
    than the number of answers if answers to the same problem resemble each other, and it is never larger. If all
    answers are right, or all are wrong, the sample size is the number of problems, because ten right answers to one
    problem reveal little about other problems.

    Raises:
        InputError: there are no values, or some are outside [0, 1].
    """
    problems = [values for values in values_by_problem if len(values)]
    answers = sum(map(len, problems))
    mean, _ = mean_and_error(problems)
    certain = len(problems) if mean in (0, 1) or len(problems) == 1 else answers
    return _clustered_share(problems, answers, certain)


def runs_interval(shares: Sequence[float], questions: int) -> Interval:
    """Return a confidence interval, within [0, 1], for the mean of several runs' shares, such as the accuracies for
    several seeds.

    The method is the same as in `share_interval`, with runs as the clusters. Differences between runs determine the
    width, and the interval is never narrower than Wilson's interval for all answers combined. If all runs agree, the
    sample size is one run's number of questions, because all runs use the same questions.

    Args:
        shares: one share per run.
        questions: the number of distinct questions behind each share.

    Raises:
        InputError: there are no shares, or some are outside [0, 1].
    """
    return _clustered_share([[share] for share in shares], len(shares) * questions, questions)


def _clustered_share(values: Sequence[Sequence[float]], most: float, without_error: float) -> Interval:
    """Return Wilson's interval for the effective sample size, or for the sample size `without_error` if the error is 0.
    Both sizes are capped at `most`."""
    mean, error = mean_and_error(values)
    if any(not 0 <= value <= 1 for of_problem in values for value in of_problem):
        raise InputError("a confidence interval for proportions requires values between 0 and 1")
    effective = without_error
    if error:
        effective = mean * (1 - mean) / error**2 * (_Z / t_critical(len(values) - 1)) ** 2
    return wilson_interval(min(max(mean, 0.0), 1.0), max(min(effective, most), 1))


def wilson_interval(share: float, n: float) -> Interval:
    """Return Wilson's score interval (1927), within [0, 1], for a proportion of `n` independent values.

    Raises:
        InputError: `share` is outside [0, 1], or `n` is below 1.
    """
    if not 0 <= share <= 1 or not n >= 1:
        raise InputError(f"share={share} must be between 0 and 1, and n={n} must be at least 1")
    z = _Z
    middle = (share + z**2 / (2 * n)) / (1 + z**2 / n)
    half = z / (1 + z**2 / n) * math.sqrt(share * (1 - share) / n + z**2 / (4 * n**2))
    return min(max(middle - half, 0.0), share), max(min(middle + half, 1.0), share)


def mean_of(means: Sequence[float], intervals: Sequence[Interval]) -> tuple[float, Interval]:
    """Return the unweighted mean of independent means (a macro average), with an interval derived from their intervals.

    The interval uses the method of variance estimates recovery (Zou and Donner, 2008). This method adds the squared
    distances from the means to the bounds of their intervals, which preserves the asymmetry of the original intervals.

    Raises:
        InputError: `means` is empty.
    """
    if not means:
        raise InputError("there are no values to average")
    mean = fmean(means)
    below, above = (math.hypot(*(ends[side] - m for m, ends in zip(means, intervals, strict=True))) for side in (0, 1))
    return mean, (mean - below / len(means), mean + above / len(means))


def guess_adjusted(accuracy: float, floor: float) -> float | None:
    """Return `(accuracy - floor) / (1 - floor)`, which is 0 for the best constant answer and 1 if all answers are
    right. The result is None if the floor is 1."""
    return (accuracy - floor) / (1 - floor) if floor < 1 else None


@dataclass(frozen=True)
class Difference:
    """A comparison of two models on the same problems."""

    n: int
    """Number of problems that both models answered."""
    difference: float
    """The first model's mean minus the second's. Problems within a task have equal weight, and so do tasks."""
    interval: Interval
    p_value: float


def paired_difference(tasks: Sequence[tuple[Answers, Answers]], seed: int = 0) -> Difference:
    """Compare two models, task by task, on the problems that both answered.

    The interval is Newcombe's interval for paired shares (1998, Statistics in Medicine 17, 2635, method 10). It is
    derived from the models' own intervals (`share_interval`) and the correlation between their results, with Newcombe's
    continuity correction. `mean_of` combines the results for several tasks. The p-value comes from a two-sided
    permutation test that swaps the models' answers problem by problem. The test is exact if there are few problems.
    With more problems, the test uses `RESAMPLES` random permutations, drawn with `seed`.

    Raises:
        InputError: the models have no problems in common in some task, or a value is outside [0, 1].
    """
    import numpy as np

    firsts, seconds, weights, values, intervals = [], [], [], [], []
    for first, second in tasks:
        common = [problem for problem in first if problem in second and first[problem] and second[problem]]
        if not common:
            raise InputError("the two models have no questions in common")
        a, b = ([fmean(each[problem]) for problem in common] for each in (first, second))
        firsts += a
        seconds += b
        weights += [1 / len(common) / len(tasks)] * len(common)
        values.append(fmean(a) - fmean(b))
        intervals.append(_newcombe([first[each] for each in common], [second[each] for each in common], a, b))
    if not tasks:
        raise InputError("the two models have no questions in common")
    value, interval = mean_of(values, intervals)
    # Swapping does not affect ties, so dropping them makes the test exact more often.
    differing = [row for row in zip(firsts, seconds, weights, strict=True) if row[0] != row[1]]
    p_value = 1.0
    if len(differing) > 1:
        x, y, weight = np.array(differing).T
        test = _scipy("stats").permutation_test(
            (x, y),
            lambda x, y, axis: np.round(np.sum(weight * (x - y), axis=axis), 12),  # rounding keeps ties exact
            permutation_type="samples",
            vectorized=True,
            n_resamples=RESAMPLES,
            batch=1000,
            rng=np.random.default_rng(seed),
        )
        p_value = float(test.pvalue)
    return Difference(len(firsts), value, interval, p_value)


def _newcombe(
    first: Sequence[Sequence[float]], second: Sequence[Sequence[float]], a: Sequence[float], b: Sequence[float]
) -> Interval:
    """Return Newcombe's interval. `first` and `second` are the models' answers to each problem, and `a` and `b` contain
    the mean of each problem's answers."""
    p, q = fmean(a), fmean(b)
    (p_low, p_high), (q_low, q_high) = share_interval(first), share_interval(second)
    product = math.fsum((x - p) * (y - q) for x, y in zip(a, b, strict=True))
    # Method 10 subtracts half a problem because models that agree on a few problems may not agree on others.
    together = max(product - 0.5, 0.0) if product > 0 else product
    size = math.hypot(*(x - p for x in a)) * math.hypot(*(y - q for y in b))
    correlation = together / size if size else 0.0

    def distance(one: float, other: float) -> float:
        return math.sqrt(max(one**2 - 2 * correlation * one * other + other**2, 0.0))

    low, high = p - q - distance(p - p_low, q_high - q), p - q + distance(p_high - p, q - q_low)
    return max(low, -1.0), min(high, 1.0)


def _scipy(module: str) -> Any:
    try:
        return import_module(f"scipy.{module}")
    except ImportError as error:
        raise MissingExtraError(f"intervals need scipy, which is not installed: {how_to_install('eval')}") from error


def pass_at_k(n: int, c: int, k: int) -> float:
    """Return the probability that at least one of `k` answers is right, given `c` right answers among `n` samples.

    The result is the unbiased estimator 1 - C(n-c, k) / C(n, k) (Chen et al., 2021, arXiv:2107.03374).

    Raises:
        InputError: `c` is not between 0 and `n`, or `k` is not between 1 and `n`.
    """
    if not 0 <= c <= n:
        raise InputError(f"c={c} right answers out of n={n}: c must be between 0 and n")
    if not 1 <= k <= n:
        raise InputError(f"k={k} out of n={n} sampled answers: k must be between 1 and n")
    ways = math.comb(n, k)
    return (ways - math.comb(n - c, k)) / ways


def with_interval(value: float, interval: Interval | None, digits: int = 3, *, sign: bool = False) -> str:
    """Format a value with its interval, as in all tables: "0.500 [0.400, 0.600]", or "+0.100 [-0.020, +0.220]" with
    `sign`."""
    form = f"{'+' if sign else ''}.{digits}f"
    return f"{value:{form}}" + ("" if interval is None else f" [{interval[0]:{form}}, {interval[1]:{form}}]")


def p_shown(p_value: float) -> str:
    """Format a p-value, as in all tables: "0.030" or "< 0.001"."""
    return "< 0.001" if p_value < 0.001 else f"{p_value:.3f}"
