"""Quantiles of Student's t distribution, without scipy."""

import math
from functools import cache
from statistics import NormalDist

_LARGEST = 1e4
_BISECTIONS = 80


def normal_quantile(level: float) -> float:
    """z such that a standard normal lies within [-z, z] with probability `level`."""
    return NormalDist().inv_cdf((1 + level) / 2)


@cache
def t_quantile(level: float, degrees_of_freedom: int) -> float:
    """t such that Student's t lies within [-t, t] with probability `level`.

    Found by bisection on the exact series; degrees_of_freedom of at least 1.
    """
    low, high = 0.0, _LARGEST
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        if within(middle, degrees_of_freedom) < level:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def within(t: float, degrees_of_freedom: int) -> float:
    """Probability that Student's t lies within [-t, t].

    Abramowitz and Stegun 26.7.3 (odd) and 26.7.4 (even degrees of freedom): finite series.
    """
    angle = math.atan(t / math.sqrt(degrees_of_freedom))
    odd = degrees_of_freedom % 2 == 1
    term = math.cos(angle) if odd else 1.0
    total = 0.0 if degrees_of_freedom == 1 else term
    for k in range(3 if odd else 2, degrees_of_freedom - 1, 2):
        term *= (k - 1) / k * math.cos(angle) ** 2
        total += term
    if odd:
        return 2 / math.pi * (angle + math.sin(angle) * total)
    return math.sin(angle) * total
