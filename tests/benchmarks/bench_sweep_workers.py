"""1,000 tasks of a sweep by four workers, with faults, on every storage: all final, none twice."""

from pathlib import Path

import pytest

from tests.harness.sweeps.workers import postgres
from tests.harness.sweeps.workers.test_workers import Sweep, kill

TASKS = 1000


@pytest.mark.parametrize("kind", ["journal", "sqlite"])
def test_workers_of_one_folder(tmp_path: Path, kind: str) -> None:
    url = f"sqlite:///{tmp_path}/study.db" if kind == "sqlite" else ""
    sweep = Sweep(tmp_path, url, TASKS)
    out = sweep.run(kill(0), kill(2), lambda _: sweep.start())
    assert out == [f"{TASKS}\n"] * 3
    assert sorted(sweep.reported().values()) == [1] * TASKS
    assert max(sweep.measured().values()) == 1


def test_postgresql_with_a_worker_killed_one_cut_off_and_a_restart(tmp_path: Path) -> None:
    if reason := postgres.missing():
        pytest.skip(reason)
    with postgres.server() as server:
        sweep = Sweep(tmp_path, server.url, TASKS, apart=True, timeout=6.0)
        out = sweep.run(
            kill(0), lambda workers: server.cut(workers[1].pid), lambda _: server.restart()
        )
        assert out == [f"{TASKS}\n"] * 3
        assert sorted(sweep.reported().values()) == [1] * TASKS
        assert sweep.measured().total() <= TASKS + 1
