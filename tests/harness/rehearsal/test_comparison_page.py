from msgspec.structs import replace

from harness.rehearsal.comparison_page import dry_page, page
from harness.trial.result import Evidence, Phase, TrialStatus
from tests.harness.rehearsal.toys import GIB, PEAKS, plan, result


def test_predicted_next_to_rehearsed() -> None:
    wanted = plan(PEAKS, replace(PEAKS, stage=1))
    found = replace(PEAKS, stage=1, backward=15 * GIB)
    trial = wanted.settings[0].trial
    shown = page(wanted, {trial.name: result(trial, PEAKS, found)})
    lines = shown.splitlines()
    assert "fake tensors, no device" in lines[0]
    assert all(len(line) <= 100 for line in lines)
    (first,) = (line for line in lines if line.startswith("none") and "  0 %" in line)
    assert "  0  6.00 / 6.00  10.00 / 10.00  12.00 / 12.00" in first
    assert any(line.split()[-2:] == ["-20.0", "%"] for line in lines)
    assert "none, stage 1: the difference is in the activations: 6.00 GiB predicted" in shown
    assert "Note: said." in shown


def test_a_real_device_tells_time_and_reserved_memory() -> None:
    wanted = plan(PEAKS)
    found = replace(PEAKS, reserved=13 * GIB, compute_seconds=0.25)
    shown = page(wanted, {wanted.settings[0].trial.name: result(wanted.settings[0].trial, found)})
    assert "none, stage 0: 13.00 GiB reserved" in shown
    assert "none, stage 0: 250.0 ms of compute per step" in shown
    timed = plan(replace(PEAKS, compute_seconds=0.2))
    shown = page(timed, {timed.settings[0].trial.name: result(timed.settings[0].trial, found)})
    assert "250.0 ms of compute per step, 200.0 ms predicted (-20.0 %)" in shown


def test_a_failure_is_reported() -> None:
    wanted = plan(PEAKS)
    trial = wanted.settings[0].trial
    evidence = Evidence(phase=Phase.FORWARD, message="out of memory")
    failed = replace(result(trial), status=TrialStatus.OOM, evidence=evidence)
    assert "none: oom [forward] out of memory" in page(wanted, {trial.name: failed})


def test_a_dry_run_shows_what_is_predicted() -> None:
    shown = dry_page(plan(PEAKS, replace(PEAKS, stage=1, backward=20 * GIB)))
    assert "  none  stage 0  12.00" in shown
    assert "  none  stage 1  20.00" in shown
