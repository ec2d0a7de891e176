"""Results as a run writes them, without a run."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from advisor.base.record import as_dict
from advisor.job.layout import ParallelLayout
from harness.trial.result import (
    Evidence,
    Flops,
    MemoryPeak,
    Phase,
    StepTimes,
    TrialResult,
    TrialStatus,
)
from harness.trial.trial import Device, MeasurementPlan, Trial, Workload
from tests.advisor.toys import LLAMA
from tests.harness import conftest as toys

GIB = 2**30
WORKLOAD = replace(
    toys.WORKLOAD,
    model=replace(LLAMA, name="toy"),
    layout=ParallelLayout(data_parallel_size=2),
    seq_length=1000,
    global_batch_size=8,
    device=Device.CUDA,
)
ENVIRONMENT = {
    "software": {"torch": "2.9.0", "cuda": "12.8", "nccl": "2.27", "transformer_engine": None},
    "host": {"name_hash": "abc", "cpu": "Xeon", "torch_threads": 8},
    "gpus": [{"torch_name": "NVIDIA H200", "driver": "580.1", "power_limit_watts": 700.0}],
    "variables": {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"},
    "git_commit": "0123",
}

MakeResult = Callable[..., TrialResult]
MakeResults = Callable[..., list[TrialResult]]


@pytest.fixture
def workload() -> Workload:
    return WORKLOAD


@pytest.fixture
def make_result() -> MakeResult:
    """One process: 4 steps of `seconds`, 10 GiB allocated, 12 GiB reserved."""

    def make(
        seconds: float = 0.2,
        repeat: int = 0,
        allocated: int = 10 * GIB,
        loss: Sequence[float] = (3.0, 2.9, 2.8, 2.7),
        environment: dict[str, Any] = ENVIRONMENT,
        recompute: str = "none",
        warmup: int = 3,
        **changes: Any,
    ) -> TrialResult:
        subject = replace(WORKLOAD, recompute=recompute)
        measurement = MeasurementPlan(steps=4, repeats=5)
        trial = Trial(workload=subject, measurement=measurement, repeat=repeat)
        result = TrialResult(
            name=trial.name,
            status=TrialStatus.OK,
            trial=as_dict(trial),
            environment=environment,
            started_at="2026-07-01T10:00:00+00:00",
            wall_seconds=10.0,
            times=StepTimes(
                seconds=tuple(seconds * factor for factor in (0.999, 1.0, 1.0, 1.001)),
                warmup_seconds=(5.0,) * warmup,
                clock="cuda_event",
            ),
            memory=(
                MemoryPeak(rank=0, stage=0, allocated=allocated, reserved=12 * GIB),
                MemoryPeak(rank=1, stage=0, allocated=allocated - GIB, reserved=11 * GIB),
            ),
            flops=Flops(model=4e14 * 2 * 0.2, hardware=5e14 * 2 * 0.2),
            loss=tuple(loss),
        )
        return replace(result, **changes)

    return make


@pytest.fixture
def make_failed(make_result: MakeResult) -> MakeResult:
    """One process without numbers."""

    def make(status: TrialStatus, message: str = "", repeat: int = 0, **more: Any) -> TrialResult:
        measured = {"times": None, "memory": (), "flops": None, "loss": (), "environment": {}}
        recompute = more.pop("recompute", "none")
        evidence = Evidence(phase=Phase.BACKWARD, message=message, **more)
        return make_result(
            repeat=repeat, status=status, recompute=recompute, evidence=evidence, **measured
        )

    return make


@pytest.fixture
def make_repeats(make_result: MakeResult) -> MakeResults:
    """Five processes whose medians differ by about 1 %, all slower by `slower`."""

    def make(slower: float = 0.0, noise: float = 1.0, **changes: Any) -> list[TrialResult]:
        offsets = (-0.012, -0.004, 0.0, 0.005, 0.011)
        return [
            make_result(0.2 * (1 + slower) * (1 + noise * offset), repeat=repeat, **changes)
            for repeat, offset in enumerate(offsets)
        ]

    return make


@pytest.fixture
def golden(make_repeats: MakeResults) -> Any:
    from harness.judge.golden_update import golden_of

    return golden_of(make_repeats(), "first")
