"""Robust statistics of repeated runs: one number each, and how far two settings are apart.

Samples are ``process -> steps``. Steps of one process are correlated (same clocks, same memory
layout, same node), so a process counts once: its median. Two settings are compared by the ratio
new / golden of these medians, combined as the median over all pairs of a new and a golden process
(the Hodges-Lehmann shift of the logarithms: robust, and 95 % as efficient as means).

Intervals come from a bootstrap that resamples whole processes. A bootstrap of few clusters is too
narrow, so its percentiles are moved outward by sqrt(n / (n - 1)) and by t / z (the expanded
percentile interval of Hesterberg 2015, arXiv 1411.5279, section 6). Where a side has one process,
blocks of its steps are resampled; they cannot show how processes differ, so that part is taken from
the other side, or assumed where neither shows it.
"""

import math
from statistics import NormalDist, median, stdev
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from advisor.base.errors import require
from harness.judge.resample import (
    Samples,
    Side,
    iqr,
    numpy,
    pooled_noise,
    shifts,
    step_noise,
)

if TYPE_CHECKING:
    from harness.judge.resample import Array

LEVEL: Final = 0.95
STRICT_LEVEL: Final = 0.99
SAFETY: Final = 2.0
"""How much the strict interval of an assumed noise is widened: a guess must not raise an alarm on
a machine that is twice as noisy as it says."""
_SEED: Final = 20_140_331
_MOST_REPEATS: Final = 100


class Summary(Struct, frozen=True, kw_only=True):
    """What a set of samples says, in their unit. spread: IQR / median of the steps within a
    process, the median process; process_spread: standard deviation of the processes' medians over
    their median, None for a single process."""

    median: float
    iqr: float
    spread: float
    process_spread: float | None
    processes: int
    steps: int


class Interval(Struct, frozen=True, kw_only=True):
    """Bounds of a ratio new / golden."""

    low: float
    high: float


class Shift(Struct, frozen=True, kw_only=True):
    """How far new samples are from golden ones.

    ratio: new / golden. interval, strict: where it lies with 95 % and 99 % confidence. noise:
    relative standard deviation between processes; assumed where no side has two of them, and the
    strict interval is then twice as wide.
    golden_processes is 0 where the golden is one number taken as exact.
    """

    ratio: float
    interval: Interval
    strict: Interval
    noise: float
    noise_assumed: bool
    processes: int
    golden_processes: int


class Repeats(Struct, frozen=True, kw_only=True):
    """How many processes would settle a comparison; golden_too: of the golden as well."""

    count: int
    golden_too: bool = False


def centre(samples: Samples) -> float:
    """The median of the processes' medians."""
    return median([median(steps) for steps in samples])


def summarise(samples: Samples) -> Summary:
    """Summary of at least one process with at least one step each."""
    centres = [median(steps) for steps in samples]
    width = median([iqr(steps) for steps in samples])
    between = stdev(centres) if len(centres) > 1 else None
    scale = abs(centre(samples)) or 1.0
    return Summary(
        median=centre(samples),
        iqr=width,
        spread=width / scale,
        process_spread=None if between is None else between / scale,
        processes=len(samples),
        steps=sum(len(steps) for steps in samples),
    )


def relative_shift(
    new: Samples, golden: Samples, assumed_noise: float, exact_golden: bool = False
) -> Shift:
    """The shift of `new` against `golden`; all samples positive.

    assumed_noise: relative standard deviation between processes where it cannot be seen; the
    steps' own, where that is more.
    exact_golden: the golden is a number to be held, not a measurement with noise of its own. The
    draws are seeded: the same samples always give the same intervals.
    """
    np = numpy()
    random = np.random.default_rng(_SEED)
    sides = [Side(samples=new)] + ([] if exact_golden else [Side(samples=golden)])
    freedom = sum(side.count - 1 for side in sides)
    noise = pooled_noise(sides) if freedom else max(assumed_noise, *map(step_noise, sides))
    first, second = Side(samples=new).centres()[None], Side(samples=golden).centres()[None]
    estimate = float(shifts(first, second)[0])
    drawn = [side.draw(random, noise) for side in sides]
    errors = shifts(drawn[0], second if exact_golden else drawn[1]) - estimate
    errors *= math.sqrt(sum(1 / s.count for s in sides) / sum(s.drawn_variance for s in sides))
    return Shift(
        ratio=math.exp(estimate),
        interval=_interval(estimate, errors, LEVEL, freedom),
        strict=_interval(estimate, errors * (1 if freedom else SAFETY), STRICT_LEVEL, freedom),
        noise=noise,
        noise_assumed=not freedom,
        processes=len(new),
        golden_processes=0 if exact_golden else len(golden),
    )


def _interval(estimate: float, errors: "Array", level: float, freedom: int) -> Interval:
    """Percentiles of the drawn errors, moved outward by t / z, around the estimate."""
    factor = multiplier(level, freedom) / multiplier(level, 0)
    low, high = numpy().quantile(errors, ((1 - level) / 2, (1 + level) / 2))
    return Interval(
        low=math.exp(estimate + factor * min(low, 0.0)),
        high=math.exp(estimate + factor * max(high, 0.0)),
    )


def repeats_to_settle(shift: Shift, gap: float, level: float = LEVEL) -> Repeats | None:
    """Processes that would narrow the interval's half width below `gap` (relative).

    From the noise seen: half width = t(n + m - 2) * noise * sqrt(1/n + 1/m) for n new and m golden
    processes. First with the golden as it is; if that cannot do, with as many golden processes.
    None where a hundred of both would not do.
    """
    golden = shift.golden_processes
    for count in range(max(2, shift.processes + 1), _MOST_REPEATS + 1):
        if half_width(shift.noise, count, golden, level) < gap:
            return Repeats(count=count)
    for count in range(2, _MOST_REPEATS + 1) if golden else ():
        if half_width(shift.noise, count, count, level) < gap:
            return Repeats(count=count, golden_too=True)
    return None


def half_width(noise: float, processes: int, golden_processes: int, level: float = LEVEL) -> float:
    """Half the interval of a comparison to be made; golden_processes = 0: an exact golden."""
    golden = 1 / golden_processes if golden_processes else 0.0
    freedom = processes - 1 + max(golden_processes - 1, 0)
    return multiplier(level, freedom) * noise * math.sqrt(1 / processes + golden)


def multiplier(level: float, freedom: int) -> float:
    """Standard errors within which the truth lies with probability `level`: by Student's t for
    `freedom` degrees, by the normal distribution for 0. UserError without scipy.
    """
    upper = (1 + level) / 2
    if not freedom:
        return NormalDist().inv_cdf(upper)
    special = require("scipy.special", "harness compare", "harness")  # a third of scipy.stats' time
    return float(special.stdtrit(freedom, upper))
