"""Collectives over two processes, by gloo."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from harness.calibration.bench.timer import ranks
from harness.trial.trial import Device

Samples = list[dict[str, Any]]
SCRIPT = """
import json, os, sys
from harness.calibration.bench.cases import Case, CaseKind, sample_values
from harness.calibration.bench.timer import measure_collectives, ranks
from harness.trial.trial import Device

kinds = (CaseKind.ALL_GATHER, CaseKind.ALL_REDUCE, CaseKind.REDUCE_SCATTER)
cases = [Case(kind=kind, sizes=(size,)) for kind in kinds for size in (4096, 65536, 4098)]
with ranks(Device.CPU) as world_size:
    found = [
        [sample_values(s) for s in measure_collectives(cases, Device.CPU, world_size, seconds)]
        for seconds in (0.0, 60.0)
    ]
if os.environ["RANK"] == "0":
    with open(sys.argv[1], "w") as file:
        json.dump([world_size, *found], file)
"""


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory: pytest.TempPathFactory) -> tuple[int, Samples, Samples]:
    """How many ranks there were, what they timed in no time, and then in a minute at most."""
    tmp_path = tmp_path_factory.mktemp("ranks")
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    out = tmp_path / "out.json"
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    environment = {"PYTHONPATH": str(Path(__file__).parents[4]), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        (sys.executable, *torchrun, str(script), str(out)),
        capture_output=True,
        text=True,
        timeout=170,
        check=False,
        env=environment | {"PATH": "/usr/bin:/bin"},
    )
    assert done.returncode == 0, done.stderr
    world_size, none, samples = json.loads(out.read_text())
    return world_size, none, samples


def test_two_ranks_time_collectives_together(two_ranks: tuple[int, Samples, Samples]) -> None:
    world_size, none, samples = two_ranks
    assert world_size == 2
    assert none == [], "time that is up ends both ranks"
    found = {(sample["kind"], tuple(sample["sizes"])) for sample in samples}
    assert {("all_gather", (4096,)), ("all_reduce", (65536,))} <= found
    assert not any(sizes == (4098,) for _, sizes in found), "cannot be cut evenly"


def test_one_process_is_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    with ranks(Device.CPU) as world_size:
        assert world_size == 1
