"""What the harness adds to a step that it times: below 1 % of a measured CPU step, in one run.

The addition is the difference of an empty step under the harness and in a bare loop: of a step that
computes, a shared machine changes the time by more than what is looked for.
"""

import time
from statistics import median
from typing import Any

import torch
from torch import nn

from harness.measure.session import _time, measure
from harness.measure.training_step import Recorder, Silent
from harness.trial.result import Phase
from harness.trial.trial import Device, MeasurementPlan
from tests.harness.steps import Step

STEPS = 200
ROUNDS = 20
LIMIT = 0.01


class SmallStep(Step):
    """An MLP of two layers of width 256 on 256 rows: as small as training steps get."""

    def __init__(self) -> None:
        self.model = nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 256))
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        self.x = torch.randn(256, 256)

    def run(self, recorder: Recorder) -> float:
        recorder.phase(Phase.FORWARD)
        loss = self.model(self.x).square().mean()
        recorder.phase(Phase.BACKWARD)
        torch.autograd.backward(loss)
        recorder.phase(Phase.OPTIMIZER)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return float(loss.detach())


def bare() -> float:
    """Seconds of an empty step in a loop that does nothing else."""
    step, recorder = Step(), Silent()
    before = time.perf_counter()
    for _ in range(STEPS):
        step.run(recorder)
    return (time.perf_counter() - before) / STEPS


def timed() -> float:
    """Seconds of an empty step as the harness reports them."""
    window = _time(Step(), MeasurementPlan(steps=STEPS), Device.CPU, None)
    return sum(window.seconds) / STEPS


def test_bench_overhead_of_a_measured_step(benchmark: Any) -> None:
    added = min(timed() for _ in range(ROUNDS)) - min(bare() for _ in range(ROUNDS))
    plan = MeasurementPlan(steps=20)
    measured = benchmark.pedantic(measure, (SmallStep(), plan, Device.CPU), rounds=1)
    step = median(measured.times.seconds)
    benchmark.extra_info.update(
        added_microseconds=added * 1e6, step_milliseconds=step * 1e3, overhead=added / step
    )
    assert 0 <= added / step < LIMIT
