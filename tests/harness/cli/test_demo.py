"""What a newcomer types on a machine without a GPU, one command after the other: trials are real
processes, and no verdict depends on how fast they were."""

import json
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from harness.trial.trial import MeasurementPlan

pytest.importorskip("hydra")
pytest.importorskip("torch")
pytest.importorskip("scipy")

Harness = Callable[..., CompletedProcess[str]]
SMALL = ("recompute=full_uniform_1", "device=cpu", "model.num_layers=1", "measure.steps=2")
"""The demo, cut down: one setting, one layer, two steps."""


def test_the_demo_gives_a_verdict(tmp_path: Path, harness_in: Harness) -> None:
    def harness(*words: str) -> CompletedProcess[str]:
        return harness_in(tmp_path, *words)

    assert harness("run", *SMALL, "name=first", "--no-report").returncode == 0
    (file,) = (tmp_path / "runs/first/trials").glob("*/result.json")
    warmup = json.loads(file.read_text())["times"]["warmup_seconds"]
    assert len(warmup) == MeasurementPlan().min_warmup_steps, "losses of the same steps everywhere"
    assert harness("compare", "runs/first").returncode == 3, "there is no golden yet"

    update = harness("golden", "update", "--reason", "first", "runs/first")
    assert update.returncode == 0
    assert "CPU times are not judged: memory and loss are the baseline" in update.stderr
    assert "few processes" not in update.stderr

    found = harness("run", *SMALL, "name=first", "--no-report")
    assert found.returncode == 0
    assert "nothing was run: all trials have results; name=ANOTHER measures again" in found.stderr

    assert harness("run", *SMALL, "name=second", "--no-report").returncode == 0
    verdict = harness("compare", "runs/second")
    assert verdict.returncode == 0, verdict.stdout
    assert verdict.stdout.splitlines()[0] == "Pass (exit 0): 2 PASS, 1 INFO"
    assert harness("report", "runs/second", "--golden", "results/golden").returncode == 0
    page = (tmp_path / "runs/second/report/report.md").read_text()
    assert "Pass (exit 0): 2 PASS, 1 INFO" in page

    (golden,) = (tmp_path / "results/golden").iterdir()
    _hold_half_the_memory(golden)
    worse = harness("compare", "runs/second")
    assert worse.returncode == 1
    assert worse.stdout.startswith("Regression (exit 1): 1 FAIL")


def _hold_half_the_memory(golden: Path) -> None:
    """As if the setting had needed half as much when the baseline was taken."""
    values = json.loads(golden.read_text())
    for process in values["sessions"][0]["samples"].values():
        peak = process["peak_allocated_bytes"]["values"]
        peak |= {step: size / 2 for step, size in peak.items()}
    golden.write_text(json.dumps(values))
