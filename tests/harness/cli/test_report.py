"""`harness report` from the command line."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("pandas")

from advisor.base.errors import UserError
from harness.cli import main as cli
from harness.cli import report
from tests.harness.logs import lines

ROOT = Path(__file__).parents[3]
RECORDED = ROOT / "tests/harness/fixtures/recorded_regression"
GOLDEN = ROOT / "results/golden"
Harness = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def harness(harness_in: Harness) -> Harness:
    return lambda *words, **variables: harness_in(ROOT, "report", *words, **variables)


def test_the_recorded_regression_with_its_verdict(tmp_path: Path, harness: Harness) -> None:
    """Exit 0: a report was written; the verdict is what it says."""
    summary, to = tmp_path / "summary", tmp_path / "to"
    words = (str(RECORDED), "--golden", str(GOLDEN), "--to", str(to))
    done = harness(*words, GITHUB_STEP_SUMMARY=str(summary))
    assert (done.returncode, done.stderr) == (0, "")
    files = [Path(line) for line in done.stdout.splitlines()]
    assert all(path.is_file() for path in files)
    wanted = {"report.md", "report.html", "junit.xml", "trials.csv", "bmf.json"}
    assert wanted <= {path.name for path in files}
    text = summary.read_text()
    assert "**Regression (exit 1): 2 FAIL, 2 ERROR**" in text
    assert "FAIL  llama3_70b/tp4pp4/selective:mlp,core_attn  tflops_per_gpu  709.9" in text
    assert text.index("FAIL") < text.index("ERROR") < text.index("## Settings")
    settings = [f"llama3_70b/tp4pp4/selective:mlp{more}" for more in ("", ",core_attn")]
    assert list(json.loads((to / "bmf.json").read_text())) == settings


def test_limits_are_those_of_compare(tmp_path: Path) -> None:
    words = [str(RECORDED), "--golden", str(GOLDEN), "--to", str(tmp_path)]
    assert report.main([*words, "--limit", "tflops_per_gpu=30%"]) == 0
    assert "2 ERROR" in (tmp_path / "report.md").read_text()
    assert "FAIL " not in (tmp_path / "report.md").read_text()


def test_a_file_in_the_way(tmp_path: Path, harness: Harness) -> None:
    (tmp_path / "to").write_text("")
    done = harness(str(RECORDED), "--to", str(tmp_path / "to"))
    assert done.returncode == 4
    assert done.stderr.startswith("harness report: ")
    assert len(done.stderr.splitlines()) == 1


def test_no_torch_and_no_hydra_are_needed(tmp_path: Path) -> None:
    code = (
        "import sys, harness.cli.main\n"
        f"sys.exit(harness.cli.main.main(['report', {str(RECORDED)!r}, '--to', {str(tmp_path)!r}])"
        " or bool({'torch', 'hydra', 'optuna', 'pyplot'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        check=False,
        timeout=60,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


def test_a_log_that_alone_tells_its_workload_has_no_report(tmp_path: Path) -> None:
    pytest.importorskip("hydra")
    (tmp_path / "a.log").write_text(lines.megatron_header() + lines.megatron(1, 1))
    assert cli.main(["ingest", str(tmp_path / "a.log"), f"runs={tmp_path}"]) == 3
    with pytest.raises(UserError, match="harness ingest LOG experiment=NAME"):
        report.main([str(tmp_path / "ingested-a")])
