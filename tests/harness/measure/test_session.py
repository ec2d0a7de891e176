"""A whole measurement of toy steps on the CPU."""

import gc
import time
from itertools import pairwise
from typing import Any

import pytest
import torch
from msgspec.structs import replace

from harness.measure import session
from harness.measure.memory import StorageMeter
from harness.measure.session import measure
from harness.measure.timing import Stopwatch
from harness.measure.training_step import Silent
from harness.trial.result import Phase
from harness.trial.trial import Device, MeasurementPlan
from tests.harness.steps import PHASES, LinearStep, Step

PLAN = MeasurementPlan(steps=6, min_warmup_steps=2, max_warmup_steps=4)


def test_steps_are_dropped_timed_and_then_weighed() -> None:
    step = Step(lambda _: time.sleep(0.002))
    measured = measure(step, PLAN, Device.CPU)
    warmup, timed = measured.times.warmup_seconds, measured.times.seconds
    assert len(warmup) == PLAN.min_warmup_steps, "on a CPU as many on every machine"
    assert len(timed) == PLAN.steps
    assert step.runs == len(warmup) + PLAN.steps + 1, "one more for the memory"
    assert all(seconds >= 0.006 for seconds in (*warmup, *timed))
    assert measured.times.clock == "host"
    first = len(warmup) + 1
    assert measured.loss == tuple(1.0 / n for n in range(first, first + PLAN.steps))


def test_an_idle_step_holds_what_was_there_before() -> None:
    held = torch.ones(5000)
    meter = StorageMeter()
    gc.collect()
    meter.count_existing()
    measured = measure(Step(), PLAN, Device.CPU)
    assert measured.memory[0].allocated == meter.live_bytes >= held.nbytes
    assert measured.memory[0].stage == 3
    assert measured.memory[0].rank == 0
    assert measured.memory[0].reserved is None


def test_the_peak_of_a_training_step_to_the_byte() -> None:
    step = LinearStep(16, 64, 32)
    gc.collect()
    base = StorageMeter()
    base.count_existing()
    measured = measure(step, PLAN, Device.CPU)
    # In the backward of square: output, the loss and its gradient (scalars), the expanded factors
    # 2 x output that pow's formula makes, and the product. The weight's gradient is smaller.
    output, weight_gradient = 16 * 32 * 4, 32 * 64 * 4
    peak = measured.memory[0].allocated - base.live_bytes
    assert max(3 * output, weight_gradient) <= peak <= 4 * output + weight_gradient
    assert peak == measured_peak(step)


def measured_peak(step: Step) -> int:
    """The same step once more: the count is exact, so it is equal."""
    gc.collect()
    meter = StorageMeter()
    meter.count_existing()
    start = meter.live_bytes
    with meter.measuring():
        step.run(Silent())
    return meter.peak_bytes - start


def test_the_rank_is_torchruns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "5")
    assert measure(Step(), PLAN, Device.CPU).memory[0].rank == 5


def test_the_timeline_has_phases_in_order_and_the_peak() -> None:
    kept: list[Any] = []

    def work(phase: Phase) -> None:
        if phase is Phase.FORWARD:
            kept.append(torch.empty(1_000_000))
        elif phase is Phase.BACKWARD:
            kept.append(torch.empty(2_000_000))
        else:
            kept.clear()
            torch.empty(0)

    measured = measure(Step(work), PLAN, Device.CPU)
    phases = [point.phase for point in measured.timeline]
    assert [phases[0], *(b for a, b in pairwise(phases) if a != b)] == list(PHASES)
    peaks = {p: max(x.allocated for x in measured.timeline if x.phase is p) for p in PHASES}
    assert peaks[Phase.BACKWARD] - peaks[Phase.FORWARD] == 8_000_000
    assert peaks[Phase.BACKWARD] == measured.memory[0].allocated
    assert measured.timeline[-1].allocated == peaks[Phase.FORWARD] - 4_000_000
    times = [point.seconds for point in measured.timeline]
    assert times == sorted(times)


def test_no_timeline_where_none_is_wanted() -> None:
    plan = MeasurementPlan(steps=2, min_warmup_steps=1, max_warmup_steps=1, memory_timeline=False)
    measured = measure(Step(), plan, Device.CPU)
    assert measured.timeline == ()
    assert measured.memory[0].allocated >= 0


def test_concerns_come_with_the_measurement() -> None:
    plan = MeasurementPlan(steps=2, min_warmup_steps=1, max_warmup_steps=1)
    assert "few_steps" in {c.name for c in measure(Step(), plan, Device.CPU).concerns}


def test_what_a_step_raises_is_the_callers() -> None:
    def explode(_: Phase) -> None:
        raise MemoryError("DefaultCPUAllocator: not enough memory")

    with pytest.raises(MemoryError):
        measure(Step(explode), PLAN, Device.CPU)


def test_a_step_that_is_clearly_slower_than_a_limit_is_timed_no_longer() -> None:
    step = Step(lambda _: time.sleep(0.001))
    pruned = measure(step, replace(PLAN, steps=9), Device.CPU, limit_seconds=0.0)
    assert pruned.pruned
    assert len(pruned.times.seconds) == len(pruned.loss) == 5, "the fewest that tell"
    assert len(pruned.memory) == 1
    assert pruned.timeline == ()
    whole = measure(step, PLAN, Device.CPU, limit_seconds=60.0)
    assert not whole.pruned
    assert len(whole.times.seconds) == PLAN.steps


def test_phases_are_of_one_more_step_whose_failure_loses_nothing(monkeypatch, capsys) -> None:
    monkeypatch.setattr(session, "stopwatch", lambda _: Stopwatch())
    assert [one.phase for one in session.phases(Step())] == list(PHASES)

    def out_of_memory(phase: Phase) -> None:
        raise torch.OutOfMemoryError("one more was too many")

    assert session.phases(Step(out_of_memory)) == ()
    assert "no phase times" in capsys.readouterr().err
