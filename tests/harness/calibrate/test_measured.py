"""A whole calibration of this CPU."""

import json
from pathlib import Path
from typing import Any

import pytest

from advisor.cost.calibration import Calibration, Provenance, load_calibration
from advisor.cost.gpus import load_gpu
from advisor.errors import UserError
from harness.calibrate import measured as module
from harness.calibrate.bench.cases import Kind
from harness.calibrate.bench.shapes import preset_cases, with_attention
from harness.calibrate.measured import calibrate, smallest
from harness.trial import Device


def test_the_smallest_of_every_kind_and_variant() -> None:
    cases = smallest(with_attention(preset_cases(), ("flash", "cudnn")))
    assert len({(case.kind, case.variant) for case in cases}) == len(cases)
    assert {case.variant for case in cases if case.kind is Kind.GEMM} == {"tn", "nn", "nt"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """This CPU, calibrated within five seconds."""
    folder = tmp_path_factory.mktemp("calibrated")
    outcome = calibrate(Device.CPU, 5.0, folder / "calibration" / "here.yaml")
    assert outcome is not None
    return folder


def calibration_of(folder: Path) -> Calibration:
    (record,) = (folder / "hardware").iterdir()
    return load_calibration(load_gpu(record.stem, folder), folder)


def journal_of(folder: Path) -> list[dict[str, Any]]:
    text = (folder / "calibration" / "here.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


def test_a_small_budget_gives_a_file_that_the_advisor_loads(folder: Path) -> None:
    calibration = calibration_of(folder)
    assert calibration.name == "here"
    assert calibration.provenance is Provenance.MEASURED
    kinds = {line["kind"] for line in journal_of(folder)[1:]}
    assert kinds >= {"gemm", "norm", "add", "adam", "attention_forward", "attention_backward"}


def test_a_second_run_measures_nothing_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = journal_of(folder)
    said: list[str] = []
    monkeypatch.setattr(module, "smallest", lambda _: ())
    calibrate(Device.CPU, 1.0, folder / "calibration" / "here.yaml", said.append)
    after = journal_of(folder)
    assert after[: len(before)] == before
    keys = [(line["kind"], line["variant"], tuple(line["sizes"])) for line in after[1:]]
    assert len(keys) == len(set(keys))
    assert said[0].startswith(f"goes on with {len(before) - 1} samples")


def test_without_a_gpu_cuda_is_refused(tmp_path: Path) -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is one")
    with pytest.raises(UserError, match="torch sees no CUDA GPU here"):
        calibrate(Device.CUDA, 1.0, tmp_path / "mine.yaml")
    assert list(tmp_path.iterdir()) == []
