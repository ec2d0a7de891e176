"""`advise check` and `advisor.check`: the line, the exit codes, and a shell that asks before a job
starts."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import advisor
from advisor.cli import main

SCRIPT = """\
torchrun --nproc-per-node 8 pretrain_gpt.py --num-layers 32 --hidden-size 4096 \\
  --ffn-hidden-size 14336 --num-attention-heads 32 --group-query-attention --num-query-groups 8 \\
  --seq-length 8192 --max-position-embeddings 8192 --position-embedding-type rope \\
  --normalization RMSNorm --swiglu --disable-bias-linear --vocab-size 128256 \\
  --untie-embeddings-and-output-weights --tensor-model-parallel-size 2 --sequence-parallel \\
  --use-distributed-optimizer --micro-batch-size 1 --global-batch-size 128 --bf16 \\
  --attention-dropout 0 --hidden-dropout 0 --mock-data {more}
"""
FITS, TOO_LARGE = "8xH100", "8xA100-40GB"


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.sh"
    path.write_text(SCRIPT.format(more="--recompute-granularity selective"))
    return path


def asked(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    """Exit code, and what is printed on stdout and stderr."""
    code = main.main(["check", *map(str, words)])
    out, err = capsys.readouterr()
    assert (out or err).count("\n") == 1
    return code, out, err


def test_the_setting_of_the_file_is_asked_for(
    script: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, line, _ = asked(capsys, script, "--gpus", FITS)
    assert code == 0
    assert line.startswith("fits: llama3_8b on 8 x H100-SXM-80GB, recompute selective:core_attn: ")
    code, line, _ = asked(capsys, "--gpus", TOO_LARGE, script)
    assert (code, line.split(":")[0]) == (1, "does not fit")
    code, line, _ = asked(capsys, script, "--gpus", FITS, "--recompute", "full:uniform:1")
    assert (code, "recompute full:uniform:1: " in line) == (0, True)


def test_between_the_two_is_unknown() -> None:
    job = {"model": "llama3_8b", "gpus": "8xH100", "tp": 2}
    sure = advisor.check(memory_budget="79GiB", **job)
    needs = sure.peak_reserved_bytes
    half = advisor.check(memory_budget=f"{needs}B", **job)
    assert (sure.verdict, sure.exit_code, bool(sure)) == ("fits", 0, True)
    assert (half.verdict, half.exit_code, bool(half)) == ("unknown", 3, False)
    assert 0.1 < half.fit_probability < 0.9
    less = advisor.check(memory_budget=f"{needs // 2}B", **job)
    assert (less.verdict, less.exit_code) == ("does not fit", 1)


def test_what_no_prediction_includes_is_unknown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "train.sh"
    path.write_text(SCRIPT.format(more="--init-model-with-meta-device --use-mystery-offload"))
    code, line, _ = asked(capsys, path, "--gpus", FITS)
    assert code == 3
    assert line.rstrip().endswith("not included: --use-mystery-offload")


def test_what_is_wrong_is_one_line(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words, said in (
        (("--gpus", FITS), "--model: is missing"),
        ((script,), "does not state the type of its GPUs"),
        (("nowhere.sh", "--gpus", FITS), "nowhere.sh"),
        ((script, "--gpus", FITS, "--top", "3"), "--top: cannot be combined with check"),
        ((script, "--gpus", FITS, "--recompute", "full:block"), "full:block"),
    ):
        code, out, err = asked(capsys, *words)
        assert (code, out) == (2, "")
        assert said in err


def test_json_holds_the_fields(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["check", str(script), "--gpus", FITS, "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    again = advisor.check(source=script, gpus=FITS)
    assert found == json.loads(again.to_json())
    assert found["verdict"] == "fits"


@pytest.mark.parametrize(
    ("gpus", "more", "code"),
    [(FITS, "", 0), (TOO_LARGE, "", 1), ("8xNone", "", 2), (FITS, "--use-mystery-offload", 3)],
)
def test_a_shell_starts_the_job_only_where_it_fits(
    script: Path, tmp_path: Path, gpus: str, more: str, code: int
) -> None:
    """In a real shell, with the program that is installed."""
    script.write_text(SCRIPT.format(more=more))
    program = Path(sys.executable).with_name("advise")
    line = f"{program} check {script} --gpus {gpus} && touch {tmp_path}/started"
    found = subprocess.run(
        ["bash", "-c", line], capture_output=True, text=True, env=os.environ, check=False
    )
    assert found.returncode == code, found.stderr
    assert (tmp_path / "started").exists() == (code == 0)
