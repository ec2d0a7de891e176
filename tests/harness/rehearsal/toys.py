"""Peaks, plans and results of rehearsals that nobody ran."""

from msgspec.structs import replace

from advisor.job.layout import ParallelLayout
from harness.trial.result import StagePeaks, TrialResult
from harness.trial.store import plain
from harness.trial.trial import (
    Backend,
    Device,
    MeasurementPlan,
    PlannedSetting,
    Prediction,
    RunPlan,
    Trial,
)
from tests.advisor.jobs import parallel
from tests.harness.backends.megatron_core.workloads import LLAMA, workload
from tests.harness.conftest import RAN

GIB = 2**30
PEAKS = StagePeaks(
    stage=0,
    weights=GIB,
    gradients=2 * GIB,
    optimizer=3 * GIB,
    forward=10 * GIB,
    backward=12 * GIB,
    optimizer_step=7 * GIB,
)
LAYOUT = ParallelLayout(**parallel(tp=2, sp=True, pp=2, dp=2))
TRIAL = Trial(
    workload=workload(
        LLAMA, layout=LAYOUT, global_batch_size=8, backend=Backend.REHEARSAL, device=Device.FAKE
    ),
    measurement=MeasurementPlan(steps=1),
    stages=(0, 1),
)


def prediction(*stages: StagePeaks) -> Prediction:
    return Prediction(
        step_time_seconds=None,
        peak_allocated_bytes=max(one.peak for one in stages),
        peak_reserved_bytes=None,
        saved_bytes_per_layer=None,
        replayed_flops_per_layer=None,
        calibration="none",
        stages=stages,
    )


def plan(*predicted: StagePeaks) -> RunPlan:
    trial = replace(TRIAL, prediction=prediction(*predicted))
    return RunPlan(
        experiment="toy",
        device_name="fake",
        settings=(PlannedSetting(trial=trial),),
        assumptions=("said",),
    )


def result(trial: Trial, *rehearsed: StagePeaks) -> TrialResult:
    return TrialResult(**RAN | {"name": trial.name, "trial": plain(trial)}, stages=rehearsed)
