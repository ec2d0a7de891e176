"""What is run next, and when it ends."""

import pytest

pytest.importorskip("scipy")

from msgspec.structs import replace

from harness.planner.launcher_options import Sampler, SweepOptions
from harness.sweeps.history import Expected, History, Outcome, Task
from harness.sweeps.priority import Ask, End, Ending, Measure, PriorPolicy, Wait
from harness.sweeps.space import Point
from harness.trial.result import TrialStatus
from tests.harness.sweeps.conftest import measured

POINTS = [
    Point(layout="dp1", micro_batch_size=size, recompute=spec)
    for size in (1, 2)
    for spec in ("none", "selective:mlp", "full:uniform:1")
]
EXPECTED = {
    point: Expected(rank=k, step_seconds=1.0 + 0.1 * k, peak_bytes=100 - k, fit_probability=1.0)
    for k, point in enumerate(POINTS, start=1)
}
OPTIONS = SweepOptions(trials=100, first=2, repeats=3)
Finished = dict[Point, dict[int, Outcome]]


def policy(**options: object) -> PriorPolicy:
    return PriorPolicy(EXPECTED, replace(OPTIONS, **options))


def as_predicted(*points: Point, factor: float = 1.0) -> Finished:
    """First processes that took what was predicted, times `factor`."""
    return {
        point: {
            0: measured(point, factor * EXPECTED[point].step_seconds, EXPECTED[point].peak_bytes)
        }
        for point in points
    }


def test_the_advisor_s_best_first_of_what_may_run_and_is_not_running() -> None:
    assert policy().next(History()) == Measure(task=Task(POINTS[0]))
    running = History(running=frozenset({Task(POINTS[0])}))
    assert policy().next(running) == Measure(task=Task(POINTS[1]))
    expected = EXPECTED | {POINTS[0]: Expected(skip="does not fit")}
    assert PriorPolicy(expected, OPTIONS).next(History()) == Measure(task=Task(POINTS[1]))


def test_predictions_that_hold_settle_it_soon() -> None:
    action = policy().next(History(finished=as_predicted(*POINTS[:4])))
    assert isinstance(action, End)
    assert action.why is Ending.SETTLED
    assert action.words.startswith("dp1 mbs1 none leads:")


def test_a_micro_batch_that_is_faster_than_predicted_is_looked_at_next() -> None:
    slow = as_predicted(*POINTS[:3], factor=1.3)
    seen = History(finished=slow | as_predicted(POINTS[4], factor=0.8))
    action = policy().next(seen)
    assert isinstance(action, Measure)
    assert action.task == Task(POINTS[3]), "the other of the fast micro batch that may lead"
    assert action.limit_seconds > 0.8 * (EXPECTED[POINTS[4]].step_seconds or 0.0)
    assert policy(prune=False).next(seen) == Measure(task=action.task)


def test_leaders_that_overlap_are_repeated_in_turn_until_they_may_not() -> None:
    finished = {p: {0: measured(p, 1.0 + 0.001 * k)} for k, p in enumerate(POINTS[:2])}
    finished |= {p: {0: measured(p, 2.0)} for p in POINTS[2:]}
    tasks = []
    action = policy().next(History(finished=finished))
    while isinstance(action, Measure):
        tasks.append(action.task)
        again = finished[action.task.point]
        again[action.task.repeat] = again[0]
        action = policy().next(History(finished=finished))
    first, second = POINTS[:2]
    assert tasks[:2] == [Task(first, 1), Task(second, 1)]
    assert set(tasks) <= {Task(p, n) for p in (first, second) for n in (1, 2)}
    assert isinstance(action, End)
    tied = policy(repeats=1).next(History(finished={p: {0: finished[p][0]} for p in POINTS}))
    assert isinstance(tied, End)
    assert tied.why is Ending.TIED
    assert tied.tied == (first, second)
    pair = f"{first.label} leads, tied within the noise (1 % between processes) with {second.label}"
    assert tied.words == f"After sweep.repeats = 1 {pair}: take any of them."


def test_a_repeat_that_runs_elsewhere_is_waited_for() -> None:
    finished = {p: {0: measured(p, 1.0)} for p in POINTS[:2]}
    finished |= {p: {0: measured(p, 2.0)} for p in POINTS[2:]}
    running = frozenset({Task(POINTS[0], 1), Task(POINTS[1], 1)})
    assert policy().next(History(finished=finished, running=running)) == Wait()


def test_the_budget_and_the_number_of_trials_end_it() -> None:
    spent = policy(budget="60s").next(History(spent_seconds=60.0))
    assert isinstance(spent, End)
    assert spent.why is Ending.BUDGET
    assert spent.words == (
        "The sweep.budget is used up. Nothing is settled: no point was measured. Points not yet "
        f"measured: {len(POINTS)}. The same command with a larger --budget goes on from here."
    )
    one = policy(budget="60s").next(History(finished=as_predicted(POINTS[0]), spent_seconds=60.0))
    assert f"Nothing is settled: {POINTS[0].label} leads so far. Points not yet" in one.words
    close = {p: {0: measured(p, 1.0 + 0.001 * k)} for k, p in enumerate(POINTS[:2])}
    two = policy(budget="60s").next(History(finished=close, spent_seconds=60.0))
    assert f"{POINTS[0].label} leads so far, tied within the noise" in two.words
    assert two.tied == tuple(POINTS[:2])
    few = policy(trials=1, first=1).next(History(finished=as_predicted(POINTS[5])))
    assert isinstance(few, End)
    assert few.why is Ending.TRIALS
    assert "Points not yet measured: " in few.words
    assert "Nothing is settled" in few.words
    assert "a larger sweep.trials goes on from here" in few.words
    all_ = {point: {0: measured(point, 1.0 + (point != POINTS[0]))} for point in POINTS}
    done = policy(budget="60s").next(History(finished=all_, spent_seconds=60.0))
    assert done.words == "The sweep.budget is used up."


def test_where_nothing_is_measured_it_ends_without_a_leader() -> None:
    oom = {p: {0: Outcome(name=p.label, status=TrialStatus.OOM)} for p in POINTS}
    action = policy().next(History(finished=oom))
    assert isinstance(action, End)
    assert (action.why, action.words) == (Ending.EXHAUSTED, "No point was measured.")


def test_another_sampler_is_asked_once_the_first_points_are_run() -> None:
    asked = policy(sampler=Sampler.TPE)
    assert isinstance(asked.next(History()), Measure)
    action = asked.next(History(finished=as_predicted(*POINTS[:2])))
    assert isinstance(action, Ask)
    limit = action.otherwise.limit_seconds
    assert action == Ask(otherwise=Measure(task=Task(POINTS[2]), limit_seconds=limit))


def test_points_without_any_prediction_are_all_measured() -> None:
    blind = {point: Expected(rank=one.rank) for point, one in EXPECTED.items()}
    finished: Finished = {}
    for point in POINTS:
        action = PriorPolicy(blind, OPTIONS).next(History(finished=finished))
        assert isinstance(action, Measure)
        assert action.task.point not in finished
        finished[action.task.point] = {0: measured(point, 1.0)}
