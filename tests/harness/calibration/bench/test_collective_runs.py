"""Collectives over two processes, by gloo."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from harness.calibration.bench.collective_runs import ranks
from harness.trial.trial import Device

SCRIPT = """
import json, os, sys
from harness.calibration.bench.cases import Case, Kind, sample_values
from harness.calibration.bench.collective_runs import measure_collectives, ranks
from harness.trial.trial import Device

kinds = (Kind.ALL_GATHER, Kind.ALL_REDUCE, Kind.REDUCE_SCATTER)
cases = [Case(kind=kind, sizes=(size,)) for kind in kinds for size in (4096, 65536, 4098)]
with ranks(Device.CPU) as world_size:
    found = list(measure_collectives(cases, Device.CPU, world_size, float(sys.argv[2])))
if os.environ["RANK"] == "0":
    with open(sys.argv[1], "w") as file:
        json.dump([world_size, [sample_values(sample) for sample in found]], file)
"""


def two_ranks(tmp_path: Path, budget: str) -> tuple[int, list[dict[str, Any]]]:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    out = tmp_path / "out.json"
    done = subprocess.run(
        (
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--standalone",
            "--nproc-per-node",
            "2",
            str(script),
            str(out),
            budget,
        ),
        capture_output=True,
        text=True,
        timeout=170,
        check=False,
        env={
            "PYTHONPATH": str(Path(__file__).parents[4]),
            "OMP_NUM_THREADS": "1",
            "PATH": "/usr/bin:/bin",
        },
    )
    assert done.returncode == 0, done.stderr
    world_size, samples = json.loads(out.read_text())
    return world_size, samples


def test_two_ranks_time_collectives_together(tmp_path: Path) -> None:
    world_size, samples = two_ranks(tmp_path, "60")
    assert world_size == 2
    found = {(sample["kind"], tuple(sample["sizes"])) for sample in samples}
    assert {("all_gather", (4096,)), ("all_reduce", (65536,))} <= found
    assert not any(sizes == (4098,) for _, sizes in found), "cannot be cut evenly"


def test_time_that_is_up_ends_both_ranks(tmp_path: Path) -> None:
    assert two_ranks(tmp_path, "0") == (2, [])


def test_one_process_is_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    with ranks(Device.CPU) as world_size:
        assert world_size == 1
