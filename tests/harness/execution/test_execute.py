"""What a trial came to, from how its processes ended and what they left."""

import json
import signal
import time
from pathlib import Path

import pytest
from msgspec.structs import replace

from harness.execution.execute import Attempt, conclude, conclude_log, merged
from harness.execution.launchers.local import Exit
from harness.trial.result import (
    Concern,
    Evidence,
    MemoryPeak,
    Phase,
    StepTimes,
    TimelinePoint,
    TrialResult,
    TrialStatus,
    merge,
)
from harness.trial.store import StateWriter, TrialFolder, encode
from harness.trial.trial import Backend, MeasurementPlan, TrainingCommand, Trial
from tests.harness.conftest import RAN, WORKLOAD
from tests.harness.logs import lines


def attempt() -> Attempt:
    return Attempt(started_at="2026-01-01", clock=time.monotonic())


def result(rank: int = 0, **changes: object) -> TrialResult:
    whole = TrialResult(
        **RAN,
        times=StepTimes(seconds=(1.0, 2.0), warmup_seconds=(9.0,), clock="host"),
        memory=(MemoryPeak(rank=rank, stage=rank // 2, allocated=100 + rank),),
        timeline=(TimelinePoint(seconds=0.0, allocated=rank, phase=Phase.FORWARD),),
        loss=(float(rank),),
    )
    return replace(whole, **changes)


@pytest.mark.parametrize(
    ("ended", "status", "says"),
    [
        (Exit(signal=signal.SIGKILL, host_oom=True), "oom", "the host ran out of memory"),
        (Exit(signal=signal.SIGKILL), "oom", "the host may have run out of memory"),
        (Exit(signal=signal.SIGKILL, host_oom=False), "failed", "SIGKILL from outside"),
        (Exit(signal=signal.SIGABRT), "failed", "ended by SIGABRT"),
        (Exit(signal=64), "failed", "ended by"),
        (Exit(code=0), "no_data", "result.json is missing"),
        (Exit(code=2), "failed", "ended with exit code 2"),
        (Exit(code=1, host_oom=True), "failed", "exit code 1"),
        (Exit(signal=signal.SIGKILL, timed_out=True), "timeout", "at step 4"),
    ],
)
def test_ends_without_a_result(tmp_path, trial: Trial, ended: Exit, status: str, says: str) -> None:
    folder = TrialFolder(tmp_path)
    folder.create(trial)
    StateWriter(folder).write(Phase.BACKWARD, 4)
    found = conclude(folder, trial, attempt(), ended)
    assert found.status == status
    assert says in found.evidence.message
    assert found.evidence.phase is Phase.BACKWARD
    assert found.name == trial.name
    assert json.loads(encode(found))["trial"] == found.trial


def test_a_written_result_stands_whatever_came_after(tmp_path: Path, trial: Trial) -> None:
    folder = TrialFolder(tmp_path)
    folder.write_result(result())
    for ended in (Exit(signal=signal.SIGSEGV), Exit(signal=9, timed_out=True)):
        assert conclude(folder, trial, attempt(), ended) == result()


def test_ranks_are_merged_once_all_are_there_or_one_failed(tmp_path: Path, trial: Trial) -> None:
    layout = replace(trial.workload.layout, data_parallel_size=2)
    two = replace(trial, workload=replace(trial.workload, layout=layout))
    folder = TrialFolder(tmp_path)
    killed = conclude(folder, two, attempt(), Exit(code=1, host_oom=True))
    assert killed.status is TrialStatus.OOM, "a rank that the kernel ended follows from its count"

    def write(rank: int, given: TrialResult) -> None:
        with folder.reserve(rank) as reservation:
            reservation.commit(encode(given))

    assert merged(folder, two) is None
    write(1, result(1))
    assert merged(folder, two) is None
    write(0, result(0))
    assert len(merged(folder, two).memory) == 2
    (tmp_path / "rank0.json").unlink()
    evidence = Evidence(phase=Phase.FORWARD, message="", rank=1)
    write(1, result(1, status=TrialStatus.OOM, evidence=evidence))
    assert merged(folder, two).status is TrialStatus.OOM


def test_merging_takes_the_slowest_the_fullest_and_the_last() -> None:
    slow = StepTimes(seconds=(1.5, 1.0), warmup_seconds=(8.0,), clock="host")
    found = merge({1: result(1, times=slow, wall_seconds=5.0), 0: result(0)})
    assert found.times == StepTimes(seconds=(1.5, 2.0), warmup_seconds=(9.0,), clock="host")
    assert [peak.rank for peak in found.memory] == [0, 1]
    assert found.timeline[0].allocated == 1
    assert (found.loss, found.wall_seconds) == ((1.0,), 5.0)
    long = StepTimes(seconds=(3.0,), warmup_seconds=(), clock="host")
    assert merge({0: result(0), 1: result(1, times=long)}).times == long
    assert merge({0: result(0, times=None)}).times is None
    one = Concern(name="a", seen="", limit="", advice="")
    two = replace(one, name="b")
    found = merge({0: result(0, concerns=(one,)), 1: result(1, concerns=(one, two))})
    assert found.concerns == (one, two), "each once"


@pytest.mark.parametrize(
    ("statuses", "worst"),
    [
        (["ok", "nccl_error", "oom"], "oom"),
        (["nccl_error", "failed"], "failed"),
        (["ok", "unstable"], "unstable"),
        (["ok", "ok"], "ok"),
        (["nan", "nccl_error"], "nan"),
    ],
)
def test_causes_come_before_consequences(statuses: list[str], worst: str) -> None:
    ranks = {n: result(n, status=TrialStatus(status)) for n, status in enumerate(statuses)}
    assert merge(ranks).status == worst


COMMAND = TrainingCommand(
    template="x", framework="other", words=("recompute=",), gpu="H100", variables=("A=1",)
)
TRIAL = Trial(
    workload=replace(WORKLOAD, backend=Backend.COMMAND, global_batch_size=32),
    measurement=MeasurementPlan(steps=3),
    command=COMMAND,
)
ATTEMPT = Attempt(started_at="2026-01-15T10:20:31+00:00", clock=0.0)
OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\n"
CRASH = "Traceback (most recent call last):\nValueError: no\n"


def steps(upto: int = 8) -> str:
    return "".join(lines.megatron(n, 50) for n in range(1, upto + 1))


def concluded(tmp_path: Path, log: str, ended: Exit) -> TrialResult | None:
    folder = TrialFolder(tmp_path)
    folder.create(TRIAL)
    folder.log.write_text(log)
    return conclude_log(folder, TRIAL, COMMAND, ATTEMPT, ended)


@pytest.mark.parametrize(
    ("log", "ended", "status"),
    [
        (steps(), Exit(code=0), "ok"),
        (steps() + OOM, Exit(code=0), "oom"),
        (steps() + OOM, Exit(code=1), "oom"),
        (steps() + OOM, Exit(signal=15, timed_out=True), "oom"),
        (steps() + CRASH, Exit(code=1), "failed"),
        (steps() + CRASH, Exit(signal=15, timed_out=True), "timeout"),
        (steps() + CRASH, Exit(code=1, host_oom=True), None),
        (steps() + "NCCL error in: x\n", Exit(code=1), "nccl_error"),
        (steps() + lines.megatron(9, 50, loss=None, nans=1) + CRASH, Exit(code=1), "nan"),
        (steps(), Exit(code=1), None),
        (steps(), Exit(signal=9), None),
        ("", Exit(code=0), "no_data"),
    ],
)
def test_status(tmp_path: Path, log: str, ended: Exit, status: str | None) -> None:
    """None: how it ended says more, and is judged as any trial's."""
    result = concluded(tmp_path, log, ended)
    assert (result.status if result else None) == status
    if result is not None and result.status is not TrialStatus.OK:
        assert result.times is None
        assert (result.evidence.exit_code, result.evidence.signal) == (ended.code, ended.signal)


def test_what_is_known_of_the_environment(tmp_path: Path) -> None:
    result = concluded(tmp_path, steps(), Exit(code=0))
    assert result.environment == {
        "gpus": [{"name": "H100"}],
        "variables": {"A": "1"},
        "source": {"provenance": "parsed from log", "framework": "megatron_lm"},
    }
    assert "incomplete" not in [concern.name for concern in result.concerns], "its end was seen"
