"""Does a series drift, or does it jump? Tests that ask for no distribution, for short series."""

import math
from collections.abc import Sequence
from itertools import accumulate, combinations, pairwise
from random import Random
from statistics import mean, median
from typing import Final

from msgspec import Struct

_DRIFT_LEVEL: Final = 0.1
"""Of four sessions in a row, all rising or all falling are a drift: p = 2 / 4!."""
_STEP_LEVEL: Final = 0.05
_PERMUTATIONS: Final = 999
_SEED: Final = 20_140_331


class Trend(Struct, frozen=True, kw_only=True):
    """A drift. slope: a place; next_value: where the line is one place after the last; p: of a
    series without a trend."""

    slope: float
    next_value: float
    p: float


class Step(Struct, frozen=True, kw_only=True):
    """A jump before place `at`. change: of the mean of the stretch before to that of the one after;
    p: of a series without a step."""

    at: int
    change: float
    p: float


def find_trend(values: Sequence[float]) -> Trend | None:
    """Mann (1945, doi:10.2307/1907187) and Kendall's test, exact and two-sided, at 10 %; the line
    is Theil's and Sen's (1968, doi:10.1080/01621459.1968.10480934). None below four values."""
    pairs = list(combinations(range(len(values)), 2))
    differences = [values[b] - values[a] for a, b in pairs]
    score = abs(sum((one > 0) - (one < 0) for one in differences))
    p = _kendall(len(values), score)
    if p >= _DRIFT_LEVEL:
        return None
    slope = median(one / (b - a) for one, (a, b) in zip(differences, pairs, strict=True))
    start = median(value - slope * place for place, value in enumerate(values))
    return Trend(slope=slope, next_value=start + slope * len(values), p=p)


def _kendall(count: int, score: int) -> float:
    """Share of orders of `count` different values whose score is at least so far from 0."""
    orders = [1]  # by number of inversions
    for size in range(2, count + 1):
        longer = len(orders) + size - 1
        orders = [sum(orders[max(0, k - size + 1) : k + 1]) for k in range(longer)]
    most = len(orders) - 1
    far = sum(number for k, number in enumerate(orders) if abs(most - 2 * k) >= score)
    return far / sum(orders)


def find_steps(values: Sequence[float], start: int = 0) -> tuple[Step, ...]:
    """Jumps of the mean, in order: the split that explains most of the squares, kept where at most
    5 % of shuffled series have a better one; then of both halves. A stretch has two values or more.

    As E-Divisive (Matteson and James 2014, arXiv 1306.4933), which finds changes of performance in
    MongoDB's CI (Daly et al. 2020, arXiv 2003.00584), here with squares as its distance.
    """
    if len(values) < 4:
        return ()
    gain, at = _best_split(values)
    random, shuffled, better = Random(_SEED), list(values), 0
    for _ in range(_PERMUTATIONS):
        random.shuffle(shuffled)
        better += _best_split(shuffled)[0] >= gain
    p = (better + 1) / (_PERMUTATIONS + 1)
    if gain <= 0 or p > _STEP_LEVEL:
        return ()
    change = mean(values[at:]) - mean(values[:at])
    inner = find_steps(values[:at], start), find_steps(values[at:], start + at)
    return (*inner[0], Step(at=start + at, change=change, p=p), *inner[1])


def _best_split(values: Sequence[float]) -> tuple[float, int]:
    """The squares that the best split in two explains, and its place."""
    count, sums = len(values), list(accumulate(values))
    return max(
        ((sums[k - 1] / k - (sums[-1] - sums[k - 1]) / (count - k)) ** 2 * k * (count - k), k)
        for k in range(2, count - 1)
    )


def stretches(values: Sequence[float], steps: Sequence[Step]) -> list[tuple[int, int, float]]:
    """First place, place after the last, and mean of every stretch between steps."""
    ends = [0, *(step.at for step in steps), len(values)]
    return [(a, b, mean(values[a:b])) for a, b in pairwise(ends)]


def explain(values: Sequence[float]) -> tuple[tuple[Step, ...], Trend | None]:
    """Steps, or a drift: of what was found, what Schwarz's criterion prefers."""
    steps, trend = find_steps(values), find_trend(values)
    if not steps or trend is None:
        return steps, trend
    level = [centre for a, b, centre in stretches(values, steps) for _ in range(a, b)]
    start = trend.next_value - trend.slope * len(values)
    line = [start + trend.slope * place for place in range(len(values))]
    jumps = _criterion(values, level, 2 * len(steps) + 1) <= _criterion(values, line, 2)
    return (steps, None) if jumps else ((), trend)


def _criterion(values: Sequence[float], fitted: Sequence[float], parameters: int) -> float:
    count = len(values)
    squares = sum((a - b) ** 2 for a, b in zip(values, fitted, strict=True)) / count
    return count * math.log(max(squares, 1e-300)) + parameters * math.log(count)
