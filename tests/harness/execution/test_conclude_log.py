"""What a command's end and its log mean together."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from harness.execution.conclude import Attempt, conclude_log
from harness.execution.launchers.launcher import Exit
from harness.trial.result import TrialResult, TrialStatus
from harness.trial.store import TrialFolder
from harness.trial.trial import Backend, Command, MeasurementPlan, Trial
from tests.harness.conftest import WORKLOAD
from tests.harness.logs import lines

COMMAND = Command(
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


def conclude(tmp_path: Path, log: str, ended: Exit) -> TrialResult | None:
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
        (steps() + OOM, Exit(signal=15, stopped=True, timed_out=True), "oom"),
        (steps() + CRASH, Exit(code=1), "failed"),
        (steps() + CRASH, Exit(signal=15, stopped=True, timed_out=True), "timeout"),
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
    result = conclude(tmp_path, log, ended)
    assert (result.status if result else None) == status
    if result is not None and result.status is not TrialStatus.OK:
        assert result.times is None
        assert result.evidence is not None
        assert (result.evidence.exit_code, result.evidence.signal) == (ended.code, ended.signal)


def test_what_is_known_of_the_environment(tmp_path: Path) -> None:
    result = conclude(tmp_path, steps(), Exit(code=0))
    assert result is not None
    assert result.environment == {
        "gpus": [{"name": "H100"}],
        "variables": {"A": "1"},
        "source": {"provenance": "parsed from log", "framework": "megatron_lm"},
    }
    assert "incomplete" not in [concern.name for concern in result.concerns], "its end was seen"
