"""Statistics of evaluations: how sure a mean is, and pass@k.

    mean, error = mean_and_error([[1, 0, 1, 1], [0, 0, 0, 0]])    # four answers to each of two problems
    mean, half_width = mean_and_interval([0.8, 0.9, 0.7])         # of three runs: 0.8 +- 0.25
    pass_at_k(n=4, c=3, k=2)                                      # 1.0: of four answers, three were right

Standard library only.
"""

import math
from collections.abc import Sequence

from rg_env.errors import InputError


def mean_and_error(values_by_problem: Sequence[Sequence[float]]) -> tuple[float, float]:
    """The mean over all values, and its standard error, clustered by problem.

    Answers to one problem resemble each other: counting them as independent makes the error too small. The clustered
    error (Liang and Zeger, 1986) adds the deviations within a problem before it squares them, with the usual
    correction problems / (problems - 1). With one value a problem it is the sample deviation / sqrt(problems); with one
    problem there is no telling, and it is 0.

    Raises:
        InputError: there are no values.
    """
    problems = [values for values in values_by_problem if len(values)]
    if not problems:
        raise InputError("there are no values to take the mean of")
    count = sum(map(len, problems))
    mean = math.fsum(value for values in problems for value in values) / count
    if len(problems) == 1:
        return mean, 0.0
    squares = math.fsum(math.fsum(value - mean for value in values) ** 2 for values in problems)
    return mean, math.sqrt(squares * len(problems) / (len(problems) - 1)) / count


def mean_and_interval(values: Sequence[float], confidence: float = 0.95) -> tuple[float, float | None]:
    """The mean of independent values, and half of its confidence interval: Student's t times deviation / sqrt(n).

    One value has no interval: None.

    Raises:
        InputError: there are no values.
    """
    mean, error = mean_and_error([[value] for value in values])
    return mean, None if len(values) < 2 else t_critical(len(values) - 1, confidence) * error


def t_critical(degrees: int, confidence: float = 0.95) -> float:
    """Student's t, with so many degrees of freedom, that lies within +- the result by the chance `confidence`.

    By bisection of the series for whole degrees (Abramowitz and Stegun, 1964, 26.7.3 and 26.7.4). Above 10,000 degrees
    it is that of 10,000: at 0.95 that is 0.012 % above the normal distribution's.

    Raises:
        InputError: there are no degrees of freedom, or the chance is not between 0 and 1.
    """
    if degrees < 1 or not 0 < confidence < 1:
        raise InputError(f"no t of {degrees} degrees of freedom at {confidence}: at least 1, and between 0 and 1")
    low, high = 0.0, 1.0
    while _within(high, degrees) < confidence:
        low, high = high, 2 * high
    while low < (middle := (low + high) / 2) < high:  # until floats have none between
        low, high = (middle, high) if _within(middle, degrees) < confidence else (low, middle)
    return high


def _within(t: float, degrees: int) -> float:
    """The chance that Student's t lies between -t and t."""
    degrees = min(degrees, 10_000)
    angle = math.atan2(t, math.sqrt(degrees))
    term = math.cos(angle) if degrees % 2 else 1.0
    terms = []
    for power in range(1 + degrees % 2, degrees, 2):
        terms.append(term)
        term *= math.cos(angle) ** 2 * power / (power + 1)
    total = math.sin(angle) * math.fsum(terms)
    return (angle + total) * 2 / math.pi if degrees % 2 else total


def pass_at_k(n: int, c: int, k: int) -> float:
    """The chance that at least one of `k` answers is right, where `c` of `n` sampled ones were.

    Unbiased: 1 - C(n-c, k) / C(n, k) (Chen et al., 2021, arXiv:2107.03374).

    Raises:
        InputError: not 0 <= c <= n, or not 1 <= k <= n.
    """
    if not 0 <= c <= n:
        raise InputError(f"c={c} right answers of n={n}: must be between 0 and n")
    if not 1 <= k <= n:
        raise InputError(f"k={k}: must be between 1 and the n={n} sampled answers")
    ways = math.comb(n, k)
    return (ways - math.comb(n - c, k)) / ways
