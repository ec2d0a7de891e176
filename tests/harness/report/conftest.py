"""Runs on disk, made without running: their numbers are invented, and never leave the tests."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from harness.planner.device import Machine
from harness.planner.planning import make_plan as plan_of
from harness.planner.run_request import compose
from harness.report.facts import Facts, load_facts
from harness.trial.result import (
    Concern,
    Evidence,
    Flops,
    MemoryPeak,
    Phase,
    PhaseTime,
    StepTimes,
    TimelinePoint,
    TrialResult,
    TrialStatus,
)
from harness.trial.store import RunFolder, plain
from harness.trial.trial import Device, PlannedSetting, RunPlan, Trial

GIB = 2**30
ENVIRONMENT = {
    "software": {"torch": "2.9.0", "cuda": "12.8"},
    "gpus": [{"torch_name": "NVIDIA H200"}],
    "variables": {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"},
    "git_commit": "0123",
}
STATUSES = tuple(map(TrialStatus, ("ok", "ok", "unstable", "oom", "timeout", "failed")))


def timeline(seconds: float, low: int, high: int) -> tuple[TimelinePoint, ...]:
    """Up in the forward, down in the backward."""
    shape = [
        (0.0, low, Phase.FORWARD),
        (0.3, high, Phase.FORWARD),
        (0.31, high, Phase.BACKWARD),
        (0.9, low, Phase.BACKWARD),
        (0.95, low, Phase.OPTIMIZER),
        (1.0, low, Phase.OPTIMIZER),
    ]
    return tuple(TimelinePoint(seconds=x * seconds, allocated=y, phase=p) for x, y, p in shape)


def phases(seconds: float) -> tuple[PhaseTime, ...]:
    """A processor that is ahead of the GPU by a fifth of the step, and not at all in the replay."""
    shape = [
        (Phase.FORWARD, 1, 0.4, 0.2, 0.2),
        (Phase.BACKWARD, 2, 0.4, 0.3, 0.1),
        (Phase.REPLAY, 1, 0.1, 0.3, 0.0),
        (Phase.OPTIMIZER, 1, 0.1, 0.2, 0.0),
    ]
    names = ("phase", "stretches", "seconds", "host_seconds", "ahead_seconds")
    rows = ((phase, n, *(share * seconds for share in shares)) for phase, n, *shares in shape)
    return tuple(PhaseTime(**dict(zip(names, row, strict=True))) for row in rows)


def measured(trial: Trial, seconds: float, allocated: int, **more: Any) -> TrialResult:
    """Ten steps that differ by 0.4 %; FLOPs of 400 model and 500 hardware TFLOP/s on one GPU."""
    on_gpu = trial.workload.device is Device.CUDA
    prediction = trial.prediction
    peak = MemoryPeak(
        rank=0,
        stage=0,
        allocated=allocated,
        active=allocated + GIB // 4 if on_gpu else None,
        reserved=allocated + GIB if on_gpu else None,
        nvml_used=allocated + 2 * GIB if on_gpu else None,
        saved_bytes_per_layer=prediction.saved_bytes_per_layer if prediction else None,
    )
    values = {
        "name": trial.name,
        "status": TrialStatus.OK,
        "trial": plain(trial),
        "environment": ENVIRONMENT if on_gpu else {"software": {"torch": "2.9.0"}},
        "started_at": "2026-01-01T00:00:00+00:00",
        "wall_seconds": 9.0,
        "times": StepTimes(
            seconds=tuple(seconds * (1 + 0.001 * (j % 5 - 2)) for j in range(10)),
            warmup_seconds=(9.0, 1.0, 1.0),
            clock="cuda_event" if on_gpu else "host",
        ),
        "memory": (peak,),
        "timeline": timeline(seconds, allocated // 2, allocated),
        "phases": phases(seconds) if on_gpu else (),
        "flops": Flops(model=4e14 * seconds, hardware=5e14 * seconds),
        "loss": (3.0, 2.9),
    }
    return TrialResult(**(values | more))


def ended(trial: Trial, status: TrialStatus, message: str = "", **more: Any) -> TrialResult:
    evidence = Evidence(phase=Phase.BACKWARD, message=message, **more)
    made = measured(trial, 1.0, 0)
    nothing = {"times": None, "memory": (), "timeline": (), "phases": (), "flops": None, "loss": ()}
    return replace(made, status=status, environment={}, evidence=evidence, **nothing)


def write_run(path: Path, plan: RunPlan, results: Sequence[TrialResult]) -> Path:
    folder = RunFolder(path)
    folder.create(plan)
    for (_, trial), result in zip(plan.trials(), results, strict=False):
        folder.trial(trial.name).create(trial)
        folder.trial(trial.name).write_result(result)
    return path


def answer(setting: PlannedSetting, trial: Trial, status: TrialStatus) -> TrialResult:
    """What became of a trial on a GPU: memory 1 % above the prediction, time 5 % above."""
    prediction = trial.prediction
    if setting.skip:
        return ended(trial, TrialStatus.SKIPPED, setting.skip)
    if status is TrialStatus.OOM:
        return ended(trial, status, "CUDA out of memory", over_bytes=3 * GIB, rank=0)
    if status not in (TrialStatus.OK, TrialStatus.UNSTABLE):
        log = ("Traceback", "<b>bold & \x1b[31mred</b>", "| a | b |")
        return ended(trial, status, "last <words> & more", log_tail=log)
    peak = round(prediction.peak_allocated_bytes * 1.01)
    result = measured(trial, prediction.step_time_seconds * 1.05, peak)
    if status is TrialStatus.OK:
        return result
    seen, advice = "+9.0 % over the window", "warm up longer"
    concern = Concern(name="drift", seen=seen, limit="5.0 %", advice=advice, fatal=True)
    return replace(result, status=status, concerns=(concern,))


@pytest.fixture(scope="session")
def gpu_plan() -> RunPlan:
    """The advisor's six best for Llama-3 8B on one H200, and one that a rule forbids."""
    wanted = ("experiment=llama3_8b_1xh200", "recompute.top=6")
    plan = plan_of(compose(wanted), Machine(device=Device.CUDA, gpu_names=("NVIDIA H200",)))
    first = plan.settings[0].trial
    workload = replace(first.workload, recompute="full:block:99")
    forbidden = replace(first, workload=workload, prediction=None)
    skipped = PlannedSetting(trial=forbidden, skip="there are 32 layers")
    return replace(plan, settings=(*plan.settings, skipped))


@pytest.fixture(scope="session")
def gpu_run(gpu_plan: RunPlan, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run in which everything that can become of a setting became of one."""
    statuses = (*STATUSES, TrialStatus.SKIPPED)
    results = [
        answer(setting, trial, status)
        for (setting, trial), status in zip(gpu_plan.trials(), statuses, strict=True)
    ]
    return write_run(tmp_path_factory.mktemp("runs") / "gpu", gpu_plan, results)


@pytest.fixture
def swept_run(tmp_path: Path, gpu_plan: RunPlan) -> Path:
    """A sweep's: one setting at two micro batches, of which the second was pruned."""
    first = gpu_plan.settings[0]
    larger = replace(first.trial.workload, micro_batch_size=2)
    second = replace(first, trial=replace(first.trial, workload=larger), rank=2)
    plan = replace(gpu_plan, settings=(first, second), ended="The sweep.budget is used up.")
    plan = replace(plan, tied=(first.trial.name,))
    why = Evidence(phase=Phase.TRAINING, message="pruned after 5 steps")
    slow = measured(second.trial, 1.5, GIB // 2, status=TrialStatus.PRUNED, evidence=why)
    results = [measured(first.trial, 1.0, GIB), slow]
    return write_run(tmp_path / "sweep", plan, results)


@pytest.fixture
def cpu_run(tmp_path: Path, make_plan: Callable[..., RunPlan]) -> Path:
    """Three settings of the toy, two repeats each, on the CPU; predicted are bytes alone."""
    made = make_plan(3, 2)
    unknown = dict.fromkeys(("step_time_seconds", "peak_allocated_bytes", "peak_reserved_bytes"))
    settings = []
    for one in made.settings:
        bytes_alone = replace(one.trial.prediction, **unknown, calibration="none")
        settings.append(replace(one, trial=replace(one.trial, prediction=bytes_alone)))
    plan = replace(made, settings=tuple(settings))
    results = [
        measured(trial, 0.1 * (setting.rank or 1), 2**20 * (10 - (setting.rank or 1)))
        for setting, trial in plan.trials()
    ]
    return write_run(tmp_path / "run", plan, results)


@pytest.fixture
def cpu_facts(cpu_run: Path) -> Facts:
    return load_facts(cpu_run)


@pytest.fixture(scope="session")
def gpu_facts(gpu_run: Path) -> Facts:
    return load_facts(gpu_run)
