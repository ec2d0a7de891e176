"""`harness`, from the command line to exit codes."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("hydra")

from harness.cli import main as cli
from harness.cli import run
from harness.execution.runner import UNMEASURED

ROOT = Path(__file__).parents[3]
DRIVE = str(Path(__file__).parents[1] / "drive.py")
Harness = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def harness(stubbed_in: Harness, tmp_path: Path) -> Harness:
    """`harness run` with stub trials, in an empty folder."""
    return lambda *arguments, **given: stubbed_in(tmp_path, "run", *arguments, **given)


def test_alone_it_runs_the_corners(tmp_path: Path, harness: Harness) -> None:
    done = harness()
    assert done.returncode == 0, done.stderr
    assert "tiny_cpu on cpu; each value predicted, then measured with the error" in done.stdout
    for spec in ("none", "selective:mlp", "full:uniform:1"):
        assert f"  {spec} " in done.stdout
    assert "Following the advisor" not in done.stdout, "CPU times say nothing of its order"
    (folder,) = (tmp_path / "runs").iterdir()
    assert folder.name.startswith("tiny_cpu-cpu-")
    assert f"results in runs/{folder.name}" in done.stderr
    assert "trial 3/3  full:uniform:1  ok" in done.stderr
    assert done.stderr.splitlines()[-1] == f"harness run: report in runs/{folder.name}/report"
    assert "# tiny\\_cpu on CPU" in (folder / "report/report.md").read_text()
    assert (folder / "report/report.html").stat().st_size > 50_000
    again = harness("--no-report")
    assert again.returncode == 0
    assert again.stdout == done.stdout
    assert again.stderr.count("already run") == 3


def test_a_dry_run_writes_nothing(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["run", "--dry-run", "measure.repeats=2"]) == 0
    assert capsys.readouterr().out.count("  selective:mlp") == 2
    assert not (tmp_path / "runs").exists()


def test_failures_are_exit_code_4_and_may_be_retried(tmp_path: Path, harness: Harness) -> None:
    done = harness("name=x", "--no-report", faults={"default": "oom"})
    assert not (tmp_path / "runs/x/report").exists()
    assert done.returncode == 4
    assert "[start, 1.50 GiB over] torch.OutOfMemoryError: CUDA out of memory" in done.stdout
    assert "The advisor's first choice did not run." not in done.stdout
    found = harness("name=x", "--no-report")
    assert found.returncode == 4, "an out-of-memory is an answer"
    assert "--retry" not in found.stderr
    assert harness("name=x", "--retry", "--no-report").returncode == 0


def test_a_report_that_fails_loses_nothing(tmp_path: Path, harness: Harness) -> None:
    """A file where the report's folder would be: one line says so, and the exit code stands."""
    (tmp_path / "runs/x").mkdir(parents=True)
    (tmp_path / "runs/x/report").write_text("")
    done = harness("name=x")
    assert done.returncode == 0
    last = done.stderr.splitlines()[-1]
    assert last.startswith("harness run: report not written: FileExistsError: ")
    assert last.endswith("write it with: harness report runs/x")
    assert done.stdout.startswith("tiny_cpu on cpu")
    failed = harness("name=x", "--retry", faults={"default": "exit_7"})
    assert failed.returncode == 0, "already run: measured before"
    assert "report not written: " in failed.stderr


def test_without_the_extra_a_run_says_how_to_get_the_report(tmp_path: Path) -> None:
    """Packages that raise ImportError stand before the real ones."""
    for name in ("matplotlib", "jinja2", "pandas"):
        (tmp_path / f"{name}.py").write_text("raise ImportError(__name__)\n")
    (tmp_path / "faults.json").write_text("{}")
    paths = {
        "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)]),
        "STUB_FAULTS": str(tmp_path / "faults.json"),
    }
    done = subprocess.run(
        [sys.executable, DRIVE, "run", "name=x"],
        env={**os.environ, "CUDA_VISIBLE_DEVICES": "", **paths},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0
    (note,) = [line for line in done.stderr.splitlines() if "pip install -e '.[report]'" in line]
    assert note.startswith("harness run: not written: figures, report.html, trials.csv, ")
    assert (tmp_path / "runs/x/report/report.md").exists()


def test_slurm_without_submitit_is_refused_before_anything_is_announced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "submitit", None)
    assert cli.main(["run", "device=cpu", "launcher=slurm"]) == 2
    assert capsys.readouterr().err == (
        "harness run: launcher=slurm: needs submitit; "
        "in the checkout run: pip install -e '.[harness,slurm]'\n"
    )
    assert not (tmp_path / "runs").exists()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written_is_exit_code_4(tmp_path: Path, harness: Harness) -> None:
    (tmp_path / "runs").mkdir(mode=0o500)
    done = harness()
    assert done.returncode == 4
    assert "Permission denied" in done.stderr.splitlines()[-1]


def test_a_file_in_the_way_is_exit_code_4(tmp_path: Path, harness: Harness) -> None:
    (tmp_path / "runs").write_text("")
    done = harness()
    assert done.returncode == 4
    assert "Traceback" not in done.stderr
    assert "cannot write" in done.stderr.splitlines()[-1]


def test_flags_and_overrides_may_stand_anywhere() -> None:
    flags = run.parse(["a=1", "--retry", "--config-dir", "d", "b=2", "--dry-run"])
    assert (flags.overrides, flags.config_dir) == (("a=1", "b=2"), Path("d"))
    assert (flags.dry_run, flags.no_report, flags.retry) == (True, False, UNMEASURED)
    assert run.parse(["--retry", "name=x"]).overrides == ("name=x",)
    assert run.parse([]).retry == frozenset()
    assert run.parse(["--retry=unstable,oom"]).retry == {"unstable", "oom"}
    assert run.again_line("run", ["a=1", "--retry=unstable"]) == "harness run a=1"
