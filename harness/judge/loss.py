"""Losses are compared step by step: with the same seed they follow the same curve."""

import math
from collections.abc import Sequence
from statistics import median

from msgspec import Struct

from harness.base.collections import grouped
from harness.judge.goldens.series import Process
from harness.judge.metrics import LOSS


class LossDeviation(Struct, frozen=True, kw_only=True):
    """The training step at which two loss curves are furthest apart, and how many were compared.

    change: new / golden - 1; infinite where one of them is not a number.
    """

    step: int
    golden: float
    new: float
    change: float
    steps: int


def furthest(new: Sequence[Process], golden: Sequence[Process]) -> LossDeviation | None:
    """The worst step of those that both have; None where they share none.

    Of several processes the median counts, step by step.
    """
    old, now = _curve(golden), _curve(new)
    shared = sorted(old.keys() & now.keys())
    if not shared:
        return None
    changes = {step: _change(old[step], now[step]) for step in shared}
    worst = max(shared, key=lambda step: abs(changes[step]))
    return LossDeviation(
        step=worst, golden=old[worst], new=now[worst], change=changes[worst], steps=len(shared)
    )


def _curve(processes: Sequence[Process]) -> dict[int, float]:
    """Training step -> median loss over processes; NaN where one of them is."""
    series = (process.series[LOSS] for process in processes if LOSS in process.series)
    found = grouped(pair for one in series for pair in zip(one.steps, one.values, strict=True))
    return {
        step: median(values) if all(map(math.isfinite, values)) else math.nan
        for step, values in found.items()
    }


def _change(old: float, new: float) -> float:
    if not math.isfinite(new) or not math.isfinite(old):
        return math.inf
    return (new - old) / abs(old) if old else (0.0 if new == old else math.inf)
