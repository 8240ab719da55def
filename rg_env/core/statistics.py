"""Statistics of evaluations: how sure a mean is, and pass@k.

    mean, error = mean_and_error([[1, 0, 1, 1], [0, 0, 0, 0]])    # four answers to each of two problems
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
