"""`harness rehearse`, from the command line to exit codes."""

import json
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from harness.api import running
from harness.cli import main as cli

Harness = Callable[..., CompletedProcess[str]]
TINY = (
    *("model=llama3.2_1b", "gpus=4xH100", "layout=tp2_pp2", "model.num_query_groups=2"),
    *("model.num_attention_heads=4", "model.num_layers=2", "model.hidden_size=64"),
    *("model.ffn_hidden_size=96", "model.kv_channels=16", "model.vocab_size=256"),
    *("job.seq_length=64", "job.micro_batch_size=1", "job.global_batch_size=4"),
)


def test_a_tiny_job(tmp_path: Path, harness_in: Harness) -> None:
    pytest.importorskip("megatron.core")
    done, again = (harness_in(tmp_path, "rehearse", *TINY) for _ in range(2))
    assert done.returncode == 0, done.stderr
    assert "trial 1/1  none  ok" in done.stderr
    assert done.stdout.count("\nnone ") == 2  # a row a stage
    assert again.stdout == done.stdout
    assert "already run" in again.stderr
    (path,) = tmp_path.glob("runs/*/trials/*/result.json")
    stages = json.loads(path.read_text())["stages"]
    assert [one["stage"] for one in stages] == [0, 1]
    assert stages[0]["weights"] > 0


def test_a_dry_run_needs_no_torch_and_writes_nothing(tmp_path, capsys, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(running.lone_ranks, "require", lambda: pytest.fail("asked for"))
    assert cli.main(["rehearse", "--dry-run", *TINY]) == 0
    assert "none  stage 1" in capsys.readouterr().out
    assert not list(tmp_path.iterdir())


def test_without_megatron_the_extra_is_named(capsys, monkeypatch) -> None:
    monkeypatch.setattr("harness.backends.megatron_core.installed.find_spec", lambda name: None)
    assert cli.main(["rehearse", *TINY]) == 2
    assert "pip install -e '.[harness,megatron]'" in capsys.readouterr().err
