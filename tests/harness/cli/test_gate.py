"""`harness compare` and `harness golden` from the command line: output, files, exit codes."""

import errno
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from advisor.base.errors import UserError
from harness.cli import compare, golden
from harness.cli import main as cli

pytest.importorskip("numpy")

ROOT = Path(__file__).parents[3]
Harness = Callable[..., subprocess.CompletedProcess[str]]
RECORDED = ROOT / "tests/harness/fixtures/recorded_regression"
PUBLISHED = ROOT / "results/golden/llama3_70b_sft_32xh100_fp8_current.json"
MLP = RECORDED / "selective_mlp" / "result.json"


@pytest.fixture
def harness(harness_in: Harness) -> Harness:
    return lambda *words, folder=ROOT: harness_in(folder, *words)


def test_the_recorded_regression_is_exit_1(harness: Harness) -> None:
    done = harness("compare", str(RECORDED))
    assert (done.returncode, done.stderr) == (1, "")
    verdict, first, second, *_ = done.stdout.splitlines()
    assert verdict.startswith("Regression (exit 1): 2 FAIL")
    assert first == (
        "FAIL  llama3_70b/tp4pp4/selective:mlp,core_attn  tflops_per_gpu  709.9 -> 586.8"
    )
    assert second.startswith("      -17.3 % [")
    assert second.endswith("limit -5 %")


def test_a_reader_that_leaves_does_not_change_the_verdict() -> None:
    """`harness compare | head -1`: the pipe is closed before anything is written."""
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [sys.executable, "-m", "harness.cli.main", "compare", str(RECORDED)],
        cwd=ROOT,
        timeout=60,
        stdout=writing,
        stderr=subprocess.PIPE,
        check=False,
        env={"PYTHONPATH": str(ROOT)},
    )
    os.close(writing)
    assert (done.returncode, done.stderr) == (1, b"")


def test_a_golden_made_from_the_results_passes(tmp_path: Path, harness: Harness) -> None:
    to = tmp_path / "goldens"
    done = harness("golden", "update", "--reason", "accepted", "--to", str(to), str(RECORDED))
    assert done.returncode == 0
    assert len(done.stdout.split()) == len(list(to.iterdir())) == 4
    shown = [line for line in done.stderr.splitlines() if not line.startswith("harness golden: ")]
    assert shown[0].startswith(f"new  {to}/llama3_70b")
    assert shown[1] == "  accepted"
    assert len(shown) < 20, "four goldens in short"
    other = harness("golden", "update", "--reason", "again", "--to", str(to), str(MLP))
    assert other.stderr.splitlines()[1:] == [
        f"changed  {other.stdout.strip()}",
        "  meta.reason: accepted -> again",
    ]
    assert "few processes (1 of a setting)" in done.stderr
    again = harness("compare", str(RECORDED), "--golden", str(to))
    assert again.returncode == 0, again.stdout
    assert "oom, as in the golden" in again.stdout
    subset = harness("compare", str(MLP), "--golden", str(to))
    assert subset.returncode == 3
    assert subset.stdout.startswith("No verdict (exit 3): 3 GONE, ")


def test_no_golden_is_exit_3(tmp_path: Path, harness: Harness) -> None:
    done = harness("compare", str(MLP), folder=tmp_path)
    assert done.returncode == 3
    assert "results/golden does not exist" in done.stderr
    assert done.stdout.startswith("No verdict (exit 3): 1 NEW\nNEW ")


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (OSError(errno.EROFS, "Read-only file system", "x.json"), "x.json: Read-only file system"),
        (OSError(errno.ENOSPC, "No space left on device"), "golden: No space left on device"),
        (ZeroDivisionError("ours"), "ZeroDivisionError: ours"),
    ],
)
def test_what_goes_wrong_inside_is_never_read_as_a_regression(
    error: Exception, says: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(_: object) -> int:
        raise error

    monkeypatch.setattr(golden, "main", broken)
    assert cli.main(["golden"]) == 4
    talk = capsys.readouterr().err
    assert says in talk
    assert len(talk.splitlines()) == 1 or not isinstance(error, OSError)


def test_limits_are_read_in_percent_and_as_fractions() -> None:
    assert compare.parse_limit("a=3%") == ("a", pytest.approx(0.03))
    assert compare.parse_limit("a=0.03") == ("a", 0.03)
    with pytest.raises(UserError):
        compare.parse_limit("a")


def test_list_and_show(capsys: pytest.CaptureFixture[str]) -> None:
    assert golden.main(["list", str(PUBLISHED)]) == 0
    listed = capsys.readouterr().out.split("\n")
    assert listed[1:3] == [
        "llama3_70b/tp4pp4",
        "  32xH100-SXM-80GB  published   2026-06-15  1         "
        "llama3_70b_sft_32xh100_fp8_current.json",
    ]
    assert golden.main(["show", str(PUBLISHED)]) == 0
    page = capsys.readouterr().out
    assert "limit 5 %" in page
    assert "source: NVIDIA-NeMo/Megatron-Bridge" in page


def test_history_of_a_golden_and_of_runs(tmp_path: Path, capsys) -> None:
    words = ["golden", "update", "--append", "--reason", "why", "--to", str(tmp_path), str(MLP)]
    assert cli.main(words) == 0
    file = capsys.readouterr().out.strip()
    picture = tmp_path / "history.svg"
    assert cli.main(["golden", "history", file, str(RECORDED), "--figure", str(picture)]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[0].startswith("llama3_70b/tp4pp4/selective:mlp: tflops_per_gpu, change since")
    assert len(shown) == 3, "the run's session is the golden's"
    assert shown[1] == "neither step nor drift"
    assert shown[2].startswith("golden  ")
    assert "session, golden" in picture.read_text(encoding="utf-8")
    assert cli.main(["golden", "history", file, file]) == 2
    assert "is a golden, not a result" in capsys.readouterr().err
    assert cli.main(["golden", "history", file, "--metric", "loss"]) == 2
    assert cli.main(words) == 0
    assert f"unchanged  {file}" in capsys.readouterr().err
    zero = re.sub(r'("[0-9]+"): [0-9]{6,}', r"\1: 0", Path(file).read_text(encoding="utf-8"))
    Path(file).write_text(zero, encoding="utf-8")
    assert cli.main(["golden", "history", file, "--metric", "peak_allocated_bytes"]) == 2
    assert "peak_allocated_bytes: is nowhere above zero" in capsys.readouterr().err
