"""Seconds of a rehearsal as users start it; its peaks are those of tests/oracles/peak_matrix.py."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("megatron.core")

COMMAND = (
    sys.executable,
    "-m",
    "harness.cli.main",
    "rehearse",
    "model=llama3_70b",
    "layout=tp4_pp4_vpp5",
    "gpus=32xH100",
    "stage=1",
    "device=fake",
)


def test_a_stage_of_llama3_70b_on_32_gpus(benchmark: Any, tmp_path: Path) -> None:
    """The bar: ten seconds on two cores, from the shell and back. Stage 1 needs the most
    microbatches of the four: all sixteen."""
    runs = (str(tmp_path / name) for name in ("first", "second"))

    def rehearse() -> None:
        subprocess.run([*COMMAND, f"runs={next(runs)}"], check=True, capture_output=True)

    benchmark.pedantic(rehearse, rounds=2, iterations=1)
    assert benchmark.stats["mean"] < 10
