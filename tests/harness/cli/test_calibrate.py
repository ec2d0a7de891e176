"""The command line of `harness calibrate`."""

import signal
from pathlib import Path

import pytest

from advisor.base.errors import UserError
from harness.base.duration import duration
from harness.calibration import measurement as measured
from harness.cli.calibrate import parse
from harness.cli.main import main as harness
from harness.execution.signals import Stop
from harness.trial.trial import Device


def test_defaults() -> None:
    found = parse([])
    assert (found.budget_seconds, found.device, found.out, found.refit) == (180.0, None, None, None)


def test_flags_with_and_without_an_equals_sign() -> None:
    found = parse(["--budget", "30s", "--device", "cpu", "--out", "x.yaml"])
    assert (found.budget_seconds, found.device, found.out) == (30.0, Device.CPU, Path("x.yaml"))
    assert parse(["--budget=30s", "--device=cpu", "--out=x.yaml"]) == found


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("30s", 30), ("3min", 180), ("3 min", 180), ("1.5h", 5400), ("2m", 120), ("10SEC", 10)],
)
def test_durations(text: str, seconds: float) -> None:
    assert duration(text) == seconds


@pytest.mark.parametrize("text", ["", "3", "min", "0s", "-3min", "3 weeks", "1e3s", "nan s"])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(UserError, match="--budget"):
        duration(text)


def test_a_run_prints_what_it_fitted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "calibration" / "here.yaml"
    assert harness(["calibrate", "--budget", "1s", "--device", "cpu", "--out", str(out)]) == 0
    captured = capsys.readouterr()
    assert "gemm_efficiency" in captured.out
    assert f"wrote {out}" in captured.out
    assert f"--config-dir {tmp_path}" in captured.out
    assert "the budget is used up; run" in captured.err
    assert out.exists()
    assert "note: attention: torch's attention on a CPU" in captured.out


def test_a_stop_is_an_exit_code(monkeypatch, capsys) -> None:
    """With nothing to conclude from; the rest is in tests/harness/calibration."""

    def stopped(*_: object) -> None:
        raise Stop(signal.SIGTERM)

    monkeypatch.setattr(measured, "calibrate", stopped)
    assert harness(["calibrate", "--device", "cpu"]) == 143
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "stopped before enough was measured" in captured.err
