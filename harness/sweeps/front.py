"""Points of a sweep that no other beats."""

from collections.abc import Mapping

from harness.base.collections import front
from harness.sweeps.history import Outcome
from harness.sweeps.space import Point


def pareto_front(outcomes: Mapping[Point, Outcome], budget: int | None) -> list[Point]:
    """Points with figures within `budget` that no other beats in both objectives, fastest first."""
    rows = [
        (o.step_seconds, o.peak_bytes, point)
        for point, o in outcomes.items()
        if o.step_seconds is not None and o.peak_bytes is not None
    ]
    within = [row for row in rows if budget is None or row[1] <= budget]
    return [point for _, _, point in front(within, lambda row: row[:2])]
