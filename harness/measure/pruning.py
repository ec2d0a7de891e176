"""When a trial need not go on: its running median step is clearly above a limit.

Optuna's pruners compare one intermediate value with those of other trials at the same step, and
refuse studies of two objectives; steps of one trial are samples of one number, whose confidence is
known."""

from collections.abc import Sequence
from math import comb
from typing import Final

LEVEL: Final = 0.95


def median_at_least(seconds: Sequence[float], level: float = LEVEL) -> float | None:
    """The median of what `seconds` are drawn from is not below this with probability `level`,
    whatever their distribution: the largest order statistic with a binomial tail below 1 - level
    (David and Nagaraja 2003, Order Statistics, section 7.1). None for fewer than five of them at
    95 %. Steps of one process are correlated: the limit must leave room for how processes differ.
    """
    count, below, tail = len(seconds), 0, 0.0
    while below < count:
        tail += comb(count, below) * 0.5**count
        if tail > 1 - level:
            break
        below += 1
    return sorted(seconds)[below - 1] if below else None
