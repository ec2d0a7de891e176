"""`--calibration` on the command line: a folder that says nothing is one line and exit code 2."""

from pathlib import Path

import pytest

from advisor.cli.main import main

JOB = ("--model", "llama3_8b", "--gpus", "8xH100")
MEASURED = Path(__file__).parents[3] / "results" / "measured"


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("no/such/folder", "must be a folder of runs or a calibration in YAML"),
        ("docs", "holds no result.json; name the folder of a run"),
        (str(MEASURED / "h200" / "runs"), "holds no usable runs on H100-SXM-80GB"),
        (str(MEASURED / "h100" / "rehearsals"), "5 rehearsals of single ranks"),
    ],
)
def test_what_says_nothing(path: str, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*JOB, "--calibration", path]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    (line,) = err.splitlines()
    assert line.startswith("advise: --calibration = ")
    assert says in line


def test_runs_of_other_jobs_are_a_note(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*JOB, "--calibration", str(MEASURED / "h100" / "runs")]) == 0
    page = " ".join(capsys.readouterr().out.split())
    assert "measured 28 trials of" in page
    assert "not used for this job: " in page


def test_a_file_of_harness_calibrate(capsys: pytest.CaptureFixture[str]) -> None:
    path = MEASURED / "h100" / "calibrated" / "calibration" / "h100.yaml"
    assert main([*JOB, "--calibration", str(path)]) == 0
    assert "calibration h100 (measured on this type of machine): step time ±11 %" in " ".join(
        capsys.readouterr().out.split()
    )


def test_no_proof_of_what_moves_rows_one_by_one(capsys: pytest.CaptureFixture[str]) -> None:
    runs = str(MEASURED / "h100" / "runs")
    assert main([*JOB, "--calibration", runs, "--search", "optimum"]) == 2
    assert "cannot be combined with --search optimum: it corrects" in capsys.readouterr().err
