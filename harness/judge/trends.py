"""Does a short series drift, or does it jump? By tests that ask for no distribution."""

from collections.abc import Sequence
from itertools import accumulate, pairwise
from random import Random
from statistics import mean
from typing import Final

from msgspec import Struct

from advisor.base.errors import require

_DRIFT_LEVEL: Final = 0.1  # four sessions that all rise, or all fall, are a drift: 2 / 4!
_STEP_LEVEL: Final = 0.05
_PERMUTATIONS: Final = 999
_SEED: Final = 20_140_331


class Trend(Struct, frozen=True):
    """A line through a series that drifts. p: of a series without a trend."""

    slope: float
    start: float
    p: float


class Step(Struct, frozen=True):
    """A jump of the mean before place `at`. p: of a series without a step."""

    at: int
    p: float


def find_trend(values: Sequence[float]) -> Trend | None:
    """Mann (1945) and Kendall's test, two-sided at 10 %, and the line of Theil and Sen (1968)."""
    if len(values) < 4:
        return None
    stats = require("scipy.stats", "harness compare", "harness")
    p, line = stats.kendalltau(range(len(values)), values).pvalue, stats.theilslopes(values)
    return Trend(float(line.slope), float(line.intercept), float(p)) if p < _DRIFT_LEVEL else None


def find_steps(values: Sequence[float], start: int = 0) -> tuple[Step, ...]:
    """The split that explains most of the squares, where at most 5 % of shuffled series have a
    better one; then of both halves. As E-Divisive (Matteson and James 2014, arXiv 1306.4933), which
    finds changes of performance in MongoDB's CI (Daly et al. 2020, arXiv 2003.00584)."""
    if len(values) < 4:
        return ()
    gain, at = _best_split(values)
    random, shuffled, better = Random(_SEED), list(values), 0
    for _ in range(_PERMUTATIONS):
        random.shuffle(shuffled)
        better += _best_split(shuffled)[0] >= gain
    p = (better + 1) / (_PERMUTATIONS + 1)
    if p > _STEP_LEVEL:
        return ()
    after = find_steps(values[at:], start + at)
    return (*find_steps(values[:at], start), Step(start + at, p), *after)


def _best_split(values: Sequence[float]) -> tuple[float, int]:
    """The squares that it explains, and its place; two values or more on each side."""
    count, sums = len(values), list(accumulate(values))
    return max(
        ((sums[k - 1] / k - (sums[-1] - sums[k - 1]) / (count - k)) ** 2 * k * (count - k), k)
        for k in range(2, count - 1)
    )


def explain(values: Sequence[float]) -> tuple[tuple[Step, ...], Trend | None, list[float]]:
    """Steps or a drift, of what was found what Schwarz's criterion prefers; the values by it."""
    steps, trend = find_steps(values), find_trend(values)
    ends = [0, *(step.at for step in steps), len(values)]
    level = [mean(values[a:b]) for a, b in pairwise(ends) for _ in range(a, b)]
    line = [trend.start + trend.slope * k for k in range(len(values))] if trend else level
    squares = [sum((a - b) ** 2 for a, b in zip(values, one, strict=True)) for one in (level, line)]
    more = len(values) ** ((2 * len(steps) - 1) / len(values))
    if trend and (not steps or squares[1] < squares[0] * more):
        return (), trend, line
    return steps, None, level
