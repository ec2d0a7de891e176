"""Robust statistics of repeated runs: one number each, and how far two settings are apart.

Samples are ``process -> steps``. Steps of one process are correlated (same clocks, same memory
layout, same node), so a process counts once: its median. Two settings are compared by the ratio
new / golden of these medians, combined as the median over all pairs of a new and a golden process
(the Hodges-Lehmann shift of the logarithms: robust, and 95 % as efficient as means).

Intervals come from a bootstrap that resamples whole processes. A bootstrap of few clusters is too
narrow, so its percentiles are moved outward by sqrt(n / (n - 1)) and by t / z (the expanded
percentile interval of Hesterberg 2015, arXiv 1411.5279, section 6). Where a side has one process,
blocks of its steps are resampled; they cannot show how processes differ, so that part is taken from
the other side, or assumed where neither shows it. scipy.stats.bootstrap has no blocks, refuses a
side of one process, and cannot draw one side's noise from the other: the draws are our own.
"""

import math
from collections.abc import Sequence
from statistics import NormalDist, median, quantiles, stdev
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from advisor.base.errors import require

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array = NDArray[np.float64]


Samples = Sequence[Sequence[float]]
"""process -> steps"""


DRAWS: Final = 1000
NORMAL_IQR: Final = 1.349


class SampledSetting(Struct, frozen=True, kw_only=True):
    """Processes of one setting."""

    samples: Samples

    @property
    def count(self) -> int:
        """Number of processes."""
        return len(self.samples)

    @property
    def drawn_variance(self) -> float:
        """Variance of a draw's centre over that of one process: (n-1)/n^2 by resampling n values,
        1 where the difference between processes is drawn from a normal distribution."""
        return (self.count - 1) / self.count**2 if self.count > 1 else 1.0

    def centres(self) -> "Array":
        """Logarithms of the medians, [count]."""
        logs: Array = numpy().log([median(steps) for steps in self.samples])
        return logs

    def draw(self, random: Any, noise: float) -> "Array":
        """Logarithms of medians, [DRAWS, count]: processes resampled, or one process's blocks."""
        np = numpy()
        if self.count > 1:
            resampled: Array = self.centres()[random.integers(self.count, size=(DRAWS, self.count))]
            return resampled
        medians = np.median(_blocks(self.samples[0], random), axis=1, keepdims=True)
        drawn: Array = np.log(medians) + random.normal(0.0, noise, size=(DRAWS, 1))
        return drawn


def _blocks(steps: Sequence[float], random: Any) -> "Array":
    """Circular block bootstrap, [DRAWS, steps]: blocks of n^(1/2) steps keep their correlation."""
    np = numpy()
    count = len(steps)
    length = max(1, round(math.sqrt(count)))
    starts = random.integers(count, size=(DRAWS, math.ceil(count / length), 1))
    places = (starts + np.arange(length)).reshape(DRAWS, -1)[:, :count] % count
    resampled: Array = np.asarray(steps, dtype=float)[places]
    return resampled


def shifts(new: "Array", golden: "Array") -> "Array":
    """Median over all pairs of new - golden of every row."""
    np = numpy()
    pairs = new[:, :, None] - golden[:, None, :]
    ordered = np.sort(pairs.reshape(len(pairs), -1), axis=1)  # of short rows faster than median
    count = ordered.shape[1]
    medians: Array = 0.5 * (ordered[:, (count - 1) // 2] + ordered[:, count // 2])
    return medians


def pooled_noise(sides: Sequence[SampledSetting]) -> float:
    """Pooled standard deviation of the logarithms of medians between processes."""
    squares = [
        float(side.centres().var(ddof=1)) * (side.count - 1) for side in sides if side.count > 1
    ]
    return math.sqrt(sum(squares) / sum(side.count - 1 for side in sides))


def step_noise(side: SampledSetting) -> float:
    """Relative standard deviation of the steps of one process, from their IQR (1.349 of a normal
    distribution's standard deviations): noisy steps come from noisy machines."""
    return max(iqr(steps) / NORMAL_IQR / median(steps) for steps in side.samples)


def quartiles(values: Sequence[float]) -> tuple[float, float]:
    """First and third quartile of at least one value: linear interpolation, as numpy does it."""
    if len(values) == 1:
        return values[0], values[0]
    low, _, high = quantiles(values, n=4, method="inclusive")
    return low, high


def iqr(values: Sequence[float]) -> float:
    """Distance of the quartiles, in the unit of the values."""
    low, high = quartiles(values)
    return high - low


def numpy() -> Any:
    """numpy, imported on first use; UserError where it is not installed."""
    return require("numpy", "harness compare", "harness")


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
    random = numpy().random.default_rng(_SEED)
    mine, old = SampledSetting(samples=new), SampledSetting(samples=golden)
    sides = [mine] if exact_golden else [mine, old]
    freedom = sum(side.count - 1 for side in sides)
    noise = pooled_noise(sides) if freedom else max(assumed_noise, *map(step_noise, sides))
    first, second = mine.centres()[None], old.centres()[None]
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
