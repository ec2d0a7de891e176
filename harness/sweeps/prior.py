"""What the advisor predicts of a point, corrected by what was measured of others. The residual of a
point is ln(measured / predicted). It is taken as a sum of parts that points share: one of the whole
sweep, one of its layout, of its micro batch, of its kind of recompute, of its setting, and one of
its own, each normally distributed around zero. That is a Gaussian process whose kernel is a sum of
"same group" indicators (Rasmussen and Williams 2006, section 2.2); what is measured of a few points
of a group moves all of it, the less the fewer there are (shrinkage)."""

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from math import hypot, log
from statistics import NormalDist
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from advisor.base.errors import require
from harness.sweeps.history import Expected, History
from harness.sweeps.space import Point
from harness.trial.result import TrialStatus

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array = NDArray[np.float64]

Groups = Mapping[str, float]
"""Part of the residual -> its standard deviation before anything is measured."""

_PARTS: Final = ("sweep", "layout", "micro_batch_size", "kind", "recompute", "point")
SECONDS: Final[Groups] = dict(zip(_PARTS, (0.10, 0.05, 0.04, 0.04, 0.02, 0.01), strict=True))
"""Of step times. results/measured, 43 settings in 9 runs: the medians of runs differ by 6 %, within
a run settings differ by 0.2 to 1 %, by 8 % where experts are small; published rows of other layouts
lie 5 to 9 % off (docs/times.md). Wider than what was seen within a run, so that a sweep does not
end before it has looked at other layouts, micro batches and kinds (docs/sweeps.md)."""
BYTES: Final[Groups] = dict(zip(_PARTS, (0.02, 0.02, 0.01, 0.01, 0.005, 0.005), strict=True))
"""Of reserved peaks. results/measured: -2 to +2 % in the same runs."""
UNKNOWN_SPREAD: Final = math.log(2.0)
"""Of a point that the advisor knows no time of: a factor of two either way."""
_WIDER: Final = (1.0, 2.0, 4.0)
_ROUGHER: Final = (1.0, 3.0, 10.0)
_LEAST_VARIANCE: Final = 1e-12
_OWN: Final = "point"
_MEMBERS: Final[Mapping[str, Callable[[Point], object]]] = {
    "sweep": lambda point: "",
    "layout": lambda point: point.layout,
    "micro_batch_size": lambda point: point.micro_batch_size,
    "kind": lambda point: kind_of(point.recompute),
    "recompute": lambda point: point.recompute,
}


class Belief(Struct, frozen=True):
    """A quantity whose logarithm is normally distributed."""

    log: float
    spread: float

    def below(self, bound: float) -> float:
        """Probability that the logarithm is at most `bound`."""
        return 0.5 * math.erfc((self.log - bound) / (self.spread * math.sqrt(2.0)))

    def improvement(self, bound: float) -> float:
        """Expected amount below `bound` (log), 0 above (Jones, Schonlau and Welch 1998, eq. 15)."""
        gap = bound - self.log
        z = gap / self.spread
        density = math.exp(-0.5 * z * z) / math.sqrt(2.0 * math.pi)
        return gap * self.below(bound) + self.spread * density


class Observed(Struct, frozen=True):
    """A measured quantity: its logarithm, and the variance of that for noise."""

    log: float
    variance: float


def kind_of(recompute: str) -> str:
    """The first word of a setting as it is spelt, and what is offloaded or added: ``full``."""
    first, *added = recompute.split("+")
    return "+".join([first.partition(":")[0], *(word.partition("=")[0] for word in added)])


def beliefs(
    predicted: Mapping[Point, float | None], observed: Mapping[Point, Observed], groups: Groups
) -> dict[Point, Belief]:
    """What is believed of every point of `predicted`, those that were measured too. Where some
    points have no prediction, they are taken to be as the median point, with UNKNOWN_SPREAD of
    their own; where none has, as the mean of what was measured."""
    np = require("numpy", "harness sweep", "harness")
    points = list(predicted)
    seen = [point for point in points if point in observed]
    rows = [number for number, point in enumerate(points) if point in observed]
    level = _level([value for value in predicted.values() if value], observed)
    prior = np.array([math.log(predicted[point] or math.exp(level)) for point in points])
    residual = np.array([observed[point].log for point in seen]) - prior[rows]
    noise = np.array([observed[point].variance for point in seen])
    alike = _alike(points, seen, groups)
    own = np.array([groups[_OWN] ** 2 if predicted[p] else UNKNOWN_SPREAD**2 for p in points])
    wider, rougher = _scales(alike[rows], own[rows], noise, residual)
    alike, own = alike * wider**2, own * rougher**2
    total = own + sum(groups[name] ** 2 for name in _MEMBERS) * wider**2
    alike[rows, range(len(rows))] += own[rows]
    weights = np.linalg.solve(alike[rows] + np.diag(noise), alike.T)
    mean = prior + residual @ weights
    spread = np.sqrt(np.maximum(total - (alike.T * weights).sum(axis=0), _LEAST_VARIANCE))
    return {p: Belief(float(m), float(s)) for p, m, s in zip(points, mean, spread, strict=True)}


def _level(predicted: Sequence[float], observed: Mapping[Point, Observed]) -> float:
    """Logarithm of what a point is taken to be of which nothing is predicted."""
    if predicted:
        ordered = sorted(predicted)
        return math.log(ordered[len(ordered) // 2])
    logs = [one.log for one in observed.values()]
    return sum(logs) / len(logs) if logs else 0.0


def _alike(points: Sequence[Point], seen: Sequence[Point], groups: Groups) -> "Array":
    """Covariance before measuring of points with those seen, of shared parts, [points, seen]."""
    np = require("numpy", "harness sweep", "harness")
    covariance: Array = np.zeros((len(points), len(seen)))
    for name, member in _MEMBERS.items():
        numbers: dict[object, int] = {}
        labels = np.array([numbers.setdefault(member(p), len(numbers)) for p in points])
        theirs = np.array([numbers[member(p)] for p in seen], dtype=int)
        covariance += groups[name] ** 2 * (labels[:, None] == theirs[None, :])
    return covariance


def _scales(alike: "Array", own: "Array", noise: "Array", residual: "Array") -> tuple[float, float]:
    """By how much the shared parts and a point's own are wider than assumed: of _WIDER and
    _ROUGHER the pair under which what was measured is most likely, where their logarithms are
    themselves normal around 0, with spreads of ln 2 and ln 4."""
    np = require("numpy", "harness sweep", "harness")

    def cost(scales: tuple[float, float]) -> float:
        wider, rougher = scales
        covariance = alike * wider**2 + np.diag(own * rougher**2 + noise)
        _, determinant = np.linalg.slogdet(covariance)
        fit = residual @ np.linalg.solve(covariance, residual)
        surprise = math.log(wider, 2.0) ** 2 + math.log(rougher, 4.0) ** 2
        return float(fit + determinant + surprise)

    return min(product(_WIDER, _ROUGHER), key=cost) if len(residual) else (1.0, 1.0)


_SPREAD: Final = hypot(*BYTES.values())
_NOISE: Final = 0.005
"""Relative standard deviation of a reserved peak between processes (harness.judge.metrics)."""
_CERTAIN: Final = 1e-12


def fit_chances(
    expected: Mapping[Point, Expected], history: History, room_bytes: int | None
) -> dict[Point, float]:
    """Probability of every point to fit: the advisor's, moved by how far measured peaks lie from
    predicted ones; 1 where it does not say. A point that ran out of memory is taken to need
    `room_bytes`, which is where the advisor's probability is of, where less was predicted."""
    peaks = {}
    for point, one in expected.items():
        for outcome in history.finished.get(point, {}).values():
            peak = outcome.peak_bytes
            if outcome.status is TrialStatus.OOM:
                peak = max(one.peak_bytes or 0, room_bytes) if room_bytes else None
            if peak:
                peaks[point] = Observed(log(peak), _NOISE**2)
    believed = beliefs({p: one.peak_bytes for p, one in expected.items()}, peaks, BYTES)
    normal, chances = NormalDist(), {}
    for point, one in expected.items():
        chances[point] = 1.0
        if one.fit_probability is not None and one.peak_bytes:
            clipped = min(max(one.fit_probability, _CERTAIN), 1 - _CERTAIN)
            more = believed[point].log - log(one.peak_bytes)
            chances[point] = normal.cdf(normal.inv_cdf(clipped) - more / _SPREAD)
    return chances
