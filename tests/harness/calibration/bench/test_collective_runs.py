"""Collectives over two processes, by gloo."""

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from harness.calibration.bench.cases import Case, CaseKind, sample_values
from harness.calibration.bench.timer import measure_collectives, ranks
from harness.trial.trial import Device

Samples = list[dict[str, Any]]


def timed() -> tuple[int, Samples, Samples]:
    """How many ranks there are, what they time in no time, and then in a minute at most."""
    kinds = (CaseKind.ALL_GATHER, CaseKind.ALL_REDUCE, CaseKind.REDUCE_SCATTER)
    cases = [Case(kind=kind, sizes=(size,)) for kind in kinds for size in (4096, 65536, 4098)]
    with ranks(Device.CPU) as world_size:
        none, samples = (
            [sample_values(s) for s in measure_collectives(cases, Device.CPU, world_size, seconds)]
            for seconds in (0.0, 60.0)
        )
    return world_size, none, samples


@pytest.fixture(scope="module")
def two_ranks() -> tuple[int, Samples, Samples]:
    """What rank 0 times: this process."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    variables = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    path = str(Path(__file__).parents[4])
    other = os.environ | variables | {"RANK": "1", "LOCAL_RANK": "1", "PYTHONPATH": path}
    with (
        subprocess.Popen([sys.executable, __file__], env=other) as second,
        pytest.MonkeyPatch.context() as patch,
    ):
        for name, value in (variables | {"RANK": "0", "LOCAL_RANK": "0"}).items():
            patch.setenv(name, value)
        try:
            found = timed()
            assert second.wait(60) == 0
        finally:
            second.kill()
    return found


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


if __name__ == "__main__":
    timed()
