"""A calibration out of the samples next to it, with the head that it had."""

import json
from pathlib import Path

import pytest
import yaml

from advisor.base.errors import UserError
from harness.calibration.bench.cases import Case, CaseKind, Sample, sample_values
from harness.calibration.conclusion import refit
from harness.cli.main import main

MACHINE = {"device": "NVIDIA H200", "torch": "2.11.0", "cuda": "13.0", "ranks": "1"}
SAMPLES = [
    Sample(case=case, seconds=case.work / 600e12)
    for case in (
        Case(kind=CaseKind.GEMM, sizes=(2**n, 4096, 4096), variant="tn") for n in (12, 13, 14)
    )
]
HEAD = "# date: 2026-01-01\n# software.torch: 2.11.0\n# gpus.0.driver: 580.1\n# git_commit: abc\n"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    found = tmp_path / "calibration" / "here.yaml"
    found.parent.mkdir()
    found.write_text(HEAD + "name: here\n")
    lines = [{"machine": MACHINE}, *map(sample_values, SAMPLES)]
    found.with_suffix(".jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return found


def test_the_samples_are_fitted_and_the_machine_is_reported(path: Path) -> None:
    outcome = refit(path)
    text = path.read_text()
    # of an H200; 3 to 4 % are tiles and traffic, which the advisor adds by shape
    assert yaml.safe_load(text)["gemm_efficiency"] == pytest.approx(1.035 * 600 / 989, rel=0.01)
    assert "# gpus.0.driver: 580.1" in text
    assert "# git_commit: abc" in text
    assert text.count("# software.torch: 2.11.0") == 1
    assert "# date: 2026-01-01" in text
    assert "# fitted again on " in text
    assert "NVIDIA H200, 2026-01-01, torch 2.11.0" in text
    assert outcome.samples == len(SAMPLES)


def test_a_calibration_that_is_gone_is_made_again(path: Path) -> None:
    path.unlink()
    refit(path)
    assert "# software.cuda: 13.0" in path.read_text()


def test_the_command(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["calibrate", "--refit", str(path)]) == 0
    assert "calibration here: 3 samples" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("journal", "words"),
    [
        (None, "has no samples"),
        ("", "is not a journal of samples"),
        ('{"machine": 3}\n', "is not a journal of samples"),
        (json.dumps({"machine": MACHINE | {"host": "x"}}) + "\n", "was measured on a CPU"),
        (json.dumps({"machine": MACHINE | {"ranks": "8"}}) + "\n", "measured on several ranks"),
    ],
)
def test_wrong_requests(path: Path, journal: str | None, words: str) -> None:
    samples = path.with_suffix(".jsonl")
    samples.unlink() if journal is None else samples.write_text(journal)
    with pytest.raises(UserError, match=words):
        refit(path)
