"""`harness snapshot`: what is printed and drawn, and what is refused in one line."""

import pickle
from pathlib import Path

import pytest

from advisor.cli.main import main as advise
from harness.cli.main import main
from harness.report.snapshot_figure import thinned
from tests.harness.logs.snapshot_by_hand import recorded_by_hand

JOB = ["--model", "llama3_8b", "--gpus", "8xH100", "--recompute", "full:uniform:8"]


@pytest.fixture
def measured(tmp_path: Path) -> Path:
    path = tmp_path / "rank0.pickle"
    path.write_bytes(pickle.dumps(recorded_by_hand()))
    return path


@pytest.fixture
def predicted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    path = tmp_path / "predicted.pickle"
    assert advise([*JOB, "--memory-snapshot", str(path)]) == 0
    assert f"wrote {path}" in capsys.readouterr().err
    return path


def test_one_is_described(measured: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["snapshot", str(measured)]) == 0
    first, peak, reserved, head, *kinds = capsys.readouterr().out.splitlines()
    assert first == f"measured: {measured}, device 0, 6 events"
    assert peak == "  peak 5.58 KiB (5,712 bytes) at 1.600 s"
    assert reserved == "  peak reserved memory 2.00 MiB (2,101,036 bytes)"
    assert head.split() == ["alive", "at", "the", "peak,", "MiB", "measured"]
    assert len(kinds) == 3


def test_what_a_recording_lacks_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recorded = recorded_by_hand()
    recorded["device_traces"] = [[recorded["device_traces"][0][2]] * 1000]
    path = tmp_path / "skipped.pickle"
    path.write_bytes(pickle.dumps(recorded))
    assert main(["snapshot", str(path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[3] == (
        "  300 B (300 bytes) were freed without an event: the peak may be too high by as much"
    )
    assert lines[4] == (
        "  the file has 1,000 entries: if max_entries was 1,000, the oldest are missing"
    )


def test_two_are_compared_and_drawn(measured: Path, predicted: Path, tmp_path, capsys) -> None:
    pytest.importorskip("matplotlib")
    picture = tmp_path / "both.svg"
    assert main(["snapshot", str(measured), str(predicted), "--plot", str(picture)]) == 0
    captured = capsys.readouterr()
    *_, second, difference = captured.out.splitlines()[:6]
    peak = int(second.partition("(")[2].partition(" bytes")[0].replace(",", ""))
    words = f"difference, predicted minus measured: {peak - 5712:+,} bytes ("
    assert difference.startswith(words)
    assert captured.err.endswith(f"wrote {picture}\n")
    text = picture.read_text()
    assert "measured: peak 5.58 KiB at 1.60 s" in text
    assert "predicted: peak" in text


def test_the_flag_that_was_given_is_named(measured: Path, capsys) -> None:
    assert main(["snapshot", str(measured), str(measured), "--stage", "9"]) == 2
    reported = f"--stage = 9: has no events in {measured}; devices with events: 0\n"
    assert capsys.readouterr().err.endswith(reported)
    assert main(["snapshot"]) == 2
    reported = "harness snapshot: SNAPSHOT: is missing; see harness snapshot --help\n"
    assert capsys.readouterr().err == reported


def test_a_stage_of_a_single_predicted_snapshot(measured: Path, predicted: Path, capsys) -> None:
    assert main(["snapshot", str(predicted), "--stage", "0"]) == 0
    assert capsys.readouterr().out.startswith(f"predicted: {predicted}, stage 0, ")
    for words, relation in (
        ([str(predicted), "--stage", "1"], f"has no events in {predicted}; stages with events: 0"),
        ([str(measured), "--stage", "0"], "needs a predicted snapshot; use --device"),
        ([str(predicted), "--stage", "0", "--device", "0"], "cannot be combined with --stage"),
    ):
        assert main(["snapshot", *words]) == 2
        assert relation in capsys.readouterr().err


def test_a_hostile_file_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "hostile.pickle"
    path.write_bytes(b"cos\nsystem\n(S'true'\ntR.")
    assert main(["snapshot", str(path)]) == 2
    assert "holds more than dicts, lists, strings and numbers" in capsys.readouterr().err


def test_thinning_loses_no_peak() -> None:
    levels = [(k * 7919) % 10_007 for k in range(50_000)]
    kept = thinned(levels, 1000)
    assert len(kept) <= 1001
    assert max(levels[k] for k in kept) == max(levels)
    assert kept[0] == 0
    assert kept[-1] == len(levels) - 1
