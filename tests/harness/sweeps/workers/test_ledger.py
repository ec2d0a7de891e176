"""Time that several workers spent at once counts once."""

import math

import pytest

from harness.sweeps.history import Expected, Outcome, Task
from harness.sweeps.space import Point
from harness.sweeps.workers.ledger import (
    constraints,
    covered_seconds,
    measured_attributes,
    predicted_attributes,
    values,
)
from harness.trial.result import TrialStatus


@pytest.mark.parametrize(
    ("spans", "seconds"),
    [
        ([], 0.0),
        ([(1.0, 3.0)], 2.0),
        ([(4.0, 5.0), (1.0, 3.0)], 3.0),
        ([(1.0, 3.0), (2.0, 5.0), (2.0, 4.0)], 4.0),
        ([(1.0, 9.0), (2.0, 3.0), (10.0, 11.0)], 9.0),
    ],
)
def test_the_union_of_spans(spans: list[tuple[float, float]], seconds: float) -> None:
    assert covered_seconds(spans) == seconds


POINT = Point(layout="dp1", micro_batch_size=1, recompute="none")
EXPECTED = Expected(rank=3, step_seconds=0.5, peak_bytes=3 * 2**30, fit_probability=0.9)
PRUNED = Outcome(
    name="x-r0",
    status=TrialStatus.PRUNED,
    step_seconds=0.6,
    peak_bytes=2**30,
    reason="slower",
    steps=(0.6,) * 5,
    wall_seconds=7.0,
)
OOM = Outcome(name="x-r0", status=TrialStatus.OOM)


def test_objectives_are_seconds_and_gib_of_a_pruned_trial_too() -> None:
    assert values(PRUNED) == [0.6, 1.0]
    assert values(OOM) == [math.inf, math.inf]


def test_a_point_is_infeasible_by_its_peak_measured_or_else_predicted() -> None:
    room = 2 * 2**30
    assert constraints(EXPECTED, PRUNED, room) == {"memory_over_budget": -0.5, "does_not_run": 0.0}
    assert constraints(EXPECTED, OOM, room) == {"memory_over_budget": 0.5, "does_not_run": 1.0}
    assert constraints(EXPECTED, OOM, None)["memory_over_budget"] == 0.0


def test_predictions_stand_next_to_what_was_measured() -> None:
    assert predicted_attributes(Task(POINT, 1), EXPECTED) == {
        "repeat": 1,
        "rank": 3,
        "predicted_step_seconds": 0.5,
        "predicted_peak_bytes": 3 * 2**30,
        "predicted_fit_probability": 0.9,
    }
    assert measured_attributes(PRUNED) == {
        "status": "pruned",
        "result": "x-r0",
        "measured_step_seconds": 0.6,
        "measured_peak_bytes": 2**30,
        "measured_steps": 5,
        "wall_seconds": 7.0,
        "reason": "slower",
    }
    assert predicted_attributes(Task(POINT), Expected()) == {"repeat": 0}
