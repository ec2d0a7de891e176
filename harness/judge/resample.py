"""Resampling of repeated runs: whole processes where there are several, else blocks of steps.

scipy.stats.bootstrap has no blocks, refuses a side of one process, and cannot draw one side's noise
from the other: it could serve only where both sides have several, so the draws are our own.
"""

import math
from collections.abc import Sequence
from statistics import median, quantiles
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


class Side(Struct, frozen=True, kw_only=True):
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
        np = numpy()
        logs: Array = np.log([median(steps) for steps in self.samples])
        return logs

    def draw(self, random: Any, noise: float) -> "Array":
        """Logarithms of medians, [DRAWS, count]: processes resampled, or one process's blocks."""
        np = numpy()
        if self.count > 1:
            picked = random.integers(self.count, size=(DRAWS, self.count))
            resampled: Array = self.centres()[picked]
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


def pooled_noise(sides: Sequence[Side]) -> float:
    """Pooled standard deviation of the logarithms of medians between processes."""
    squares = [
        float(side.centres().var(ddof=1)) * (side.count - 1) for side in sides if side.count > 1
    ]
    return math.sqrt(sum(squares) / sum(side.count - 1 for side in sides))


def step_noise(side: Side) -> float:
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
