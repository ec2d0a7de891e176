"""What a study is told of a trial: objectives in the units that people read, constraints, and what
was predicted beside what was measured. Optuna stays out of it."""

import math
from typing import Final

from advisor.base.units import GIB
from harness.sweeps.history import Expected, Outcome, Task

METRICS: Final = ("step time, s", "peak memory, GiB")
"""Names of the two objectives, both to be small."""
MEMORY: Final = "memory_over_budget"
RUNS: Final = "does_not_run"


def values(outcome: Outcome) -> list[float]:
    """The objectives; infinite where there are no figures."""
    if outcome.step_seconds is None or outcome.peak_bytes is None:
        return [math.inf, math.inf]
    return [outcome.step_seconds, outcome.peak_bytes / GIB]


def constraints(expected: Expected, outcome: Outcome, room_bytes: int | None) -> dict[str, float]:
    """Positive where the point is infeasible, by how much of `room_bytes` (None: there is room for
    everything): by the peak that was measured, else, where it did not run, by the one predicted."""
    peak = outcome.peak_bytes or expected.peak_bytes
    over = 0.0 if peak is None or room_bytes is None else peak / room_bytes - 1.0
    return {MEMORY: over, RUNS: 0.0 if outcome.timed else 1.0}


def attributes(
    task: Task, expected: Expected, outcome: Outcome | None = None
) -> dict[str, str | int | float]:
    """What stands beside a trial: seconds, bytes, a probability; what is not known is left out.
    outcome: once it has ended."""
    found: dict[str, str | int | float | None] = {
        "repeat": task.repeat,
        "rank": expected.rank,
        "predicted_step_seconds": expected.step_seconds,
        "predicted_peak_bytes": expected.peak_bytes,
        "predicted_fit_probability": expected.fit_probability,
    }
    if outcome is not None:
        found |= {
            "status": str(outcome.status),
            "result": outcome.name,
            "measured_step_seconds": outcome.step_seconds,
            "measured_peak_bytes": outcome.peak_bytes,
            "measured_steps": len(outcome.steps),
            "wall_seconds": outcome.wall_seconds,
            "reason": outcome.reason or None,
        }
    return {name: value for name, value in found.items() if value is not None}
