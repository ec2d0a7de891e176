"""One trial in one process: every way it can end becomes a result with evidence."""

import json
import math
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from advisor.base.errors import UserError
from harness.backends.building import factory
from harness.execution.worker import Tools, Worker, main
from harness.measure.training_step import Measured, Recorder
from harness.trial.files import Reservation
from harness.trial.result import (
    Concern,
    Flops,
    MemoryPeak,
    Phase,
    StepTimes,
    TimelinePoint,
    TrialResult,
    TrialStatus,
)
from harness.trial.store import TrialFolder, TrialState
from harness.trial.trial import Backend, Device, MeasurementPlan, Trial, Workload
from tests.harness.backends.native.cases import Phases

ROOT = Path(__file__).parents[3]
MEMORY = MemoryPeak(rank=0, stage=0, allocated=500)
FATAL = Concern(name="throttled", seen="yes", limit="no", advice="cool it", fatal=True)


class FakeStep:
    """Raises `error` in `phase` of step 2; returns `loss`."""

    stage = 0

    def __init__(self, error: Exception | None = None, loss: float = 1.0) -> None:
        self.error, self.loss, self.steps, self.closed = error, loss, 0, False

    def run(self, recorder: Recorder) -> float:
        self.steps += 1
        recorder.phase(Phase.FORWARD)
        recorder.phase(Phase.BACKWARD)
        if self.error is not None and self.steps == 2:
            raise self.error
        recorder.phase(Phase.OPTIMIZER)
        return self.loss

    def saved_bytes_per_layer(self) -> int | None:
        return 77

    def flops(self) -> Flops:
        return Flops(model=1.0, hardware=2.0)

    def close(self) -> None:
        self.closed = True


def tools_of(step: Any, **given: Any) -> Tools:
    def measure(step: Any, plan: MeasurementPlan, device: Device, limit: float | None) -> Measured:
        assert device is Device.CPU
        recorder = Phases()
        for _ in range(plan.steps):
            step.run(recorder)
        assert recorder.seen[:3] == [Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER]
        times = StepTimes(seconds=(0.1,) * plan.steps, warmup_seconds=(), clock="host")
        point = TimelinePoint(seconds=0.0, allocated=1, phase=Phase.FORWARD)
        return Measured(times=times, memory=(MEMORY,), timeline=(point,), loss=(1.0,), **given)

    def build(workload: Workload, seed: int) -> Any:
        if isinstance(step, Exception):
            raise step
        assert seed == 1234
        return step

    return Tools(build=lambda _: build, measure=measure, fingerprint=lambda _: {"host": "here"})


@pytest.fixture
def run(tmp_path: Path, trial: Trial) -> Callable[..., tuple[int, TrialResult]]:
    folder = TrialFolder(tmp_path)
    folder.create(trial)

    def run(tools: Tools) -> tuple[int, TrialResult]:
        code = main([str(tmp_path)], make_tools=lambda: tools)
        result = folder.result()
        assert result is not None
        return code, result

    return run


Run = Callable[..., tuple[int, TrialResult]]


def test_a_measured_trial(run: Run, trial: Trial, tmp_path: Path) -> None:
    step = FakeStep()
    code, result = run(tools_of(step))
    assert (code, result.status, result.name) == (0, TrialStatus.OK, trial.name)
    assert len(result.times.seconds) == 10
    assert result.memory == (replace(MEMORY, saved_bytes_per_layer=77),)
    assert result.flops == Flops(model=1.0, hardware=2.0)
    assert result.environment == {"host": "here"}
    assert result.trial["workload"]["recompute"] == "none"
    assert step.closed
    assert TrialFolder(tmp_path).state() == TrialState(phase=Phase.REPORT, step=10)
    assert sorted(os.listdir(tmp_path)) == ["result.json", "state.json", "trial.json"]


def test_a_count_that_fails_loses_no_measurement(run: Run, monkeypatch, capsys) -> None:
    def fails(_: FakeStep) -> Any:
        raise AssertionError("heads differ")

    monkeypatch.setattr(FakeStep, "flops", fails)
    monkeypatch.setattr(FakeStep, "saved_bytes_per_layer", fails)
    code, result = run(tools_of(FakeStep()))
    assert (code, result.status, result.flops, result.memory) == (0, "ok", None, (MEMORY,))
    assert result.times is not None
    assert "heads differ" in capsys.readouterr().err


def test_a_fatal_concern_is_unstable(run: Run) -> None:
    code, result = run(tools_of(FakeStep(), concerns=(FATAL,)))
    assert (code, result.status, result.concerns) == (0, TrialStatus.UNSTABLE, (FATAL,))
    assert run(tools_of(FakeStep(), concerns=(replace(FATAL, fatal=False),)))[1].status == "ok"


def test_a_pruned_trial_is_a_result_that_keeps_its_figures(run, trial, tmp_path) -> None:
    TrialFolder(tmp_path).create(replace(trial, limit_seconds=0.05))
    code, result = run(tools_of(FakeStep(), concerns=(FATAL,), pruned=True))
    assert (code, result.status) == (0, TrialStatus.PRUNED)
    assert result.times is not None
    assert result.memory
    assert result.evidence.message == (
        "pruned after 10 steps: the median step time of 0.1 s is clearly above the limit of 0.05 s"
    )


class OutOfMemoryError(RuntimeError):
    """As torch calls it."""


CUDA = "CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 79.15 GiB "
CUDA += "of which 8.00 MiB is free."
CPU = "[enforce fail at alloc_cpu.cpp:124] err == 0. DefaultCPUAllocator: can't allocate memory: "
CPU += "you tried to allocate 9 bytes."


@pytest.mark.parametrize(
    ("error", "status", "over"),
    [
        (OutOfMemoryError(CUDA), "oom", 12 * 2**20),
        (RuntimeError(CPU), "oom", None),
        (MemoryError(), "oom", None),
        (RuntimeError("NCCL error in: x.cpp:1, unhandled system error"), "nccl_error", None),
        (UserError("recompute", "op:x", "is not known"), "skipped", None),
        (ValueError("out of memory of what happened"), "failed", None),
    ],
    ids=["cuda", "cpu", "python", "nccl", "user", "other"],
)
def test_an_exception_is_a_status(run, error, status, over) -> None:
    step = FakeStep(error)
    code, result = run(tools_of(step))
    assert (code, result.status) == (0 if status == "skipped" else 1, status)
    assert (result.evidence.phase, result.evidence.rank) == (Phase.BACKWARD, 0)
    assert result.evidence.over_bytes == over
    assert result.environment == {"host": "here"}
    assert result.times is None
    assert step.closed


def test_a_failure_while_building_says_so(run: Run) -> None:
    _, result = run(tools_of(UserError("backend", "native", "cannot run this")))
    assert result.status is TrialStatus.SKIPPED
    assert result.evidence.phase is Phase.BUILD
    assert "cannot run this" in result.evidence.message


@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_a_loss_that_is_no_number_ends_the_trial_at_once(run: Run, loss: float) -> None:
    step = FakeStep(loss=loss)
    code, result = run(tools_of(step))
    assert (code, result.status, step.steps) == (1, TrialStatus.NAN, 1)
    assert result.evidence.message.endswith(f"loss of step 1 is {loss}")


def test_a_step_that_cannot_be_closed_has_been_measured(run: Run, monkeypatch) -> None:
    def close(_: FakeStep) -> None:
        raise RuntimeError("NCCL error while leaving")

    monkeypatch.setattr(FakeStep, "close", close)
    assert run(tools_of(FakeStep()))[1].status is TrialStatus.OK


def test_a_disk_that_fills_up_costs_the_timeline_only(run: Run, monkeypatch) -> None:
    commit = Reservation.commit

    def small(self: Reservation, text: str) -> None:
        if json.loads(text).get("timeline"):
            raise OSError(28, "No space left on device")
        commit(self, text)

    monkeypatch.setattr(Reservation, "commit", small)
    code, result = run(tools_of(FakeStep()))
    assert (code, result.status, result.timeline) == (0, TrialStatus.OK, ())


def test_a_rank_writes_its_own_file(tmp_path: Path, trial: Trial) -> None:
    folder = TrialFolder(tmp_path)
    folder.create(trial)
    Worker(folder, trial, rank=1, world_size=2).run(lambda: tools_of(FakeStep()))
    assert folder.result() is None
    assert list(folder.rank_results()) == [1]
    assert folder.state() == TrialState(), "rank 0 tells where the trial is"


def test_what_cannot_be_worked_on_is_one_line(tmp_path, capsys) -> None:
    with pytest.raises(UserError, match=r"backend = command: cannot run in the harness's worker"):
        factory(Backend.COMMAND)
    assert main([str(tmp_path)]) == 2
    assert "holds no trial.json" in capsys.readouterr().err


def test_the_worker_as_a_process(tmp_path: Path, trial: Trial) -> None:
    """Whatever is installed here, a result comes out: a backend that is not there is skipped."""
    workload = replace(trial.workload, backend=Backend.COMMAND)
    folder = TrialFolder(tmp_path)
    folder.create(replace(trial, workload=workload))
    done = subprocess.run(
        [sys.executable, "-m", "harness.execution.worker", str(tmp_path)], cwd=ROOT, check=False
    )
    result = folder.result()
    assert result is not None, done.returncode
    assert result.status in (TrialStatus.SKIPPED, TrialStatus.FAILED)
