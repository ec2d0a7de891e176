"""How likely a point that was not run is to fit, after the peaks that were measured of others."""

from collections.abc import Mapping
from math import hypot, log
from statistics import NormalDist
from typing import Final

from harness.sweeps.history import Expected, History, Outcome
from harness.sweeps.prior import BYTES, Observed, beliefs
from harness.sweeps.space import Point
from harness.trial.result import TrialStatus

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
            peak = _peak(outcome, one.peak_bytes or 0, room_bytes)
            if peak:
                peaks[point] = Observed(log(peak), _NOISE**2)
    believed = beliefs({p: one.peak_bytes for p, one in expected.items()}, peaks, BYTES)
    normal, chances = NormalDist(), {}
    for point, one in expected.items():
        if one.fit_probability is None or not one.peak_bytes:
            chances[point] = 1.0
            continue
        clipped = min(max(one.fit_probability, _CERTAIN), 1 - _CERTAIN)
        more = believed[point].log - log(one.peak_bytes)
        chances[point] = normal.cdf(normal.inv_cdf(clipped) - more / _SPREAD)
    return chances


def _peak(outcome: Outcome, predicted: int, room_bytes: int | None) -> int | None:
    """What a process tells of a peak; None where that is nothing."""
    if outcome.status is TrialStatus.OOM:
        return max(predicted, room_bytes) if room_bytes else None
    return outcome.peak_bytes
