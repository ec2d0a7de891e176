"""The rule that ends a warm-up. No torch here: it also judges the steps of a log."""

from collections.abc import Sequence
from statistics import median
from typing import Final

from harness.trial.trial import MeasurementPlan

_AGREEING_STEPS: Final = 3


def is_warm(seconds: Sequence[float], plan: MeasurementPlan) -> bool:
    """Whether the steps so far are enough: min_warmup_steps were run and the last three agree
    within warmup_tolerance, or max_warmup_steps were run."""
    if len(seconds) >= max(plan.min_warmup_steps, plan.max_warmup_steps):
        return True
    return len(seconds) >= plan.min_warmup_steps and settled(seconds, plan.warmup_tolerance)


def settled(seconds: Sequence[float], tolerance: float) -> bool:
    """Whether the last three steps lie within `tolerance` of their median."""
    last = seconds[-_AGREEING_STEPS:]
    if len(last) < _AGREEING_STEPS:
        return False
    return max(last) - min(last) <= tolerance * median(last)
