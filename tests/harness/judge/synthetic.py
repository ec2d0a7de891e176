"""Results as trials leave them, made of numbers that can be reckoned by hand."""

from typing import Any

from msgspec.structs import replace

from harness.trial.result import (
    Concern,
    Evidence,
    MemoryPeak,
    Phase,
    StepTimes,
    TrialResult,
    TrialStatus,
)
from harness.trial.store import plain
from harness.trial.trial import Device, MeasurementPlan, Prediction, Trial, Workload
from tests.advisor.jobs import batches
from tests.advisor.toys import LLAMA
from tests.harness import conftest as toys

WORKLOAD = replace(
    toys.WORKLOAD, model=replace(LLAMA, name="toy"), **batches(64, 2, 4), device=Device.CUDA
)
ENVIRONMENT: dict[str, Any] = {
    "gpus": [{"torch_name": "NVIDIA H200"}],
    "software": {"torch": "2.11.0"},
    "variables": {},
}
GIB = 2**30


def prediction(seconds: float | None, peak: int, probability: float = 1.0) -> Prediction:
    return Prediction(
        step_time_seconds=seconds,
        peak_allocated_bytes=peak,
        peak_reserved_bytes=peak + GIB,
        saved_bytes_per_layer=1000,
        replayed_flops_per_layer=0,
        calibration="h200",
        fit_probability=probability,
    )


def result(
    setting: str,
    seconds: float | None,
    *,
    predicted: Prediction | None = None,
    peak: int = 10 * GIB,
    status: TrialStatus = TrialStatus.OK,
    repeat: int = 0,
    workload: Workload = WORKLOAD,
    environment: dict[str, Any] | None = None,
    concern: str = "spread",
) -> TrialResult:
    """`seconds` of three equal steps; None for a trial that gave none. concern: why unstable."""
    trial = Trial(
        workload=replace(workload, recompute=setting),
        measurement=MeasurementPlan(),
        prediction=predicted,
        repeat=repeat,
        variables=("X=expandable_segments:True",),
    )
    least = MemoryPeak(
        rank=0, stage=0, allocated=peak, reserved=peak + GIB, saved_bytes_per_layer=1000
    )
    whole = TrialResult(
        name=trial.name,
        status=status,
        trial=plain(trial),
        environment=ENVIRONMENT if environment is None else environment,
        started_at=f"2026-01-01T00:00:0{repeat}",
        wall_seconds=1.0,
    )
    if seconds is None:
        over = Evidence(phase=Phase.FORWARD, message="CUDA out of memory", over_bytes=GIB)
        return replace(whole, evidence=over)
    times = StepTimes(seconds=(seconds,) * 3, warmup_seconds=(), clock="cuda_event")
    fatal = Concern(name=concern, seen="9 %", limit="5 %", advice="", fatal=True)
    concerns = (fatal,) if status is TrialStatus.UNSTABLE else ()
    return replace(whole, times=times, memory=(least,), concerns=concerns)
