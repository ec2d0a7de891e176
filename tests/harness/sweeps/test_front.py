"""The front."""

from harness.sweeps.front import pareto_front
from harness.sweeps.history import Outcome, outcome_of
from harness.sweeps.space import Point
from harness.trial.result import MemoryPeak, StepTimes, TrialResult, TrialStatus
from tests.harness.sweeps.conftest import measured


def point(number: int) -> Point:
    return Point(layout="dp1", micro_batch_size=number, recompute="none")


def test_the_front_is_what_no_other_beats() -> None:
    figures = [(3.0, 10), (1.0, 30), (2.0, 20), (2.5, 20), (2.0, 25), (4.0, 40)]
    outcomes = {point(k): measured(point(k), *pair) for k, pair in enumerate(figures)}
    outcomes[point(9)] = Outcome(name="x", status=TrialStatus.OOM)
    assert pareto_front(outcomes, None) == [point(1), point(2), point(0)]
    assert pareto_front(outcomes, 20) == [point(2), point(0)]
    assert pareto_front(outcomes, 9) == []


def test_an_outcome_is_the_median_step_and_the_worst_peak() -> None:
    result = TrialResult(
        name="x",
        status=TrialStatus.OK,
        trial={},
        environment={},
        started_at="",
        wall_seconds=0.0,
        times=StepTimes(seconds=(3.0, 1.0, 2.0), warmup_seconds=(), clock="host"),
        memory=(
            MemoryPeak(rank=0, stage=0, allocated=5),
            MemoryPeak(rank=1, stage=0, allocated=4, reserved=9),
        ),
    )
    found = outcome_of(result)
    assert (found.step_seconds, found.peak_bytes, found.measured) == (2.0, 9, True)
    bare = TrialResult(
        name="x", status=TrialStatus.OK, trial={}, environment={}, started_at="", wall_seconds=0.0
    )
    assert outcome_of(bare).failed, "a result without figures says nothing"
