"""`harness accuracy` from the command line, over a real campaign of this machine."""

import csv
import json
from pathlib import Path

import pytest

from harness.cli.main import main
from research.campaign.__main__ import main as run_campaign


@pytest.fixture(scope="module")
def campaign(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("campaign")
    assert run_campaign(["cpu", "--budget", "5min", "--out", str(out)]) == 0
    return out


def test_the_cpu_campaign_is_done_once(campaign: Path, capsys: pytest.CaptureFixture[str]) -> None:
    done = [json.loads(line)["item"] for line in (campaign / "campaign.jsonl").open()]
    assert done == ["calibrate", "corners", "policy", "probe"]
    assert run_campaign(["cpu", "--budget", "1min", "--out", str(campaign)]) == 0
    page = capsys.readouterr().out
    assert page.count("done before") == 4
    assert "needs transformer_engine" in page


def test_later_items_find_the_calibration_of_the_first(campaign: Path, capsys) -> None:
    (record,) = (campaign / "calibrated" / "hardware").glob("*.yaml")
    wanted = ["--model", "llama3.2_1b", "--gpus", f"1x{record.stem}", "--format", "json"]
    from advisor.cli.main import main as advise

    assert advise([*wanted, "--config-dir", str(campaign / "calibrated")]) in (0, 1)
    answer = json.loads(capsys.readouterr().out)
    used = answer["calibration"]
    assert (used["name"], used["provenance"]) == ("cpu", "measured")


def test_kept_bytes_of_a_cpu_are_judged_and_its_times_are_not(campaign: Path, capsys) -> None:
    assert main(["accuracy", str(campaign)]) == 0
    page = capsys.readouterr().out
    assert "CPU times, which say nothing about a GPU." in page
    assert "2 cells, 3 settings" in page
    lines = list(csv.DictReader((campaign / "accuracy.csv").read_text().splitlines()))
    for line in lines:
        assert line["status"] in ("ok", "unstable"), line["why"]  # this machine may be loaded
        assert line["predicted_step_time_seconds"] == ""
        assert line["measured_saved_bytes_per_layer"]
        assert line["predicted_saved_bytes_per_layer"] == line["measured_saved_bytes_per_layer"]
    assert (campaign / "accuracy.md").read_text().startswith("# Accuracy")


def test_one_half_is_a_part_of_the_whole(campaign: Path, tmp_path: Path) -> None:
    counts = []
    for half in ("fit", "held_out"):
        out = tmp_path / half
        assert main(["accuracy", str(campaign), "--half", half, "--out", str(out)]) == 0
        counts.append(len((out / "accuracy.csv").read_text().splitlines()) - 1)
    assert sum(counts) == 3
