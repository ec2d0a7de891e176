"""Collectives over two processes, by gloo."""

from typing import Any

import pytest

from harness.calibration.bench.cases import Case, CaseKind, sample_values
from harness.calibration.bench.timer import measure_collectives, ranks
from harness.trial.trial import Device
from tests.harness.drive import two_ranks

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


def test_two_ranks_time_collectives_together() -> None:
    (world_size, none, samples), _ = two_ranks(__file__, first=timed)
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
    print(timed())
