"""Many workers on one study, as processes, and what befalls them: none of it loses a task or gives
one to two of them. `make bench` does the same with 1,000 tasks."""

import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("optuna")
pytest.importorskip("pg8000")

from harness.sweeps.workers.ledger import RESULT
from harness.sweeps.workers.storages import open_storage
from tests.harness.drive import until
from tests.harness.sweeps.workers import postgres

ROOT = Path(__file__).parents[4]
PATIENCE_SECONDS = 900.0
Fault = Callable[[list["subprocess.Popen[str]"]], None]


@pytest.fixture(scope="module")
def server() -> Iterator[postgres.Server]:
    if reason := postgres.missing():
        pytest.skip(reason)
    with postgres.server() as made:
        yield made


class Sweep:
    """Workers of `tasks` tasks at `url`; with `apart`, each has a folder of its own, as on machines
    that share no file system. Workers that are silent for `timeout` seconds count as dead."""

    def __init__(
        self, place: Path, url: str, tasks: int, *, apart: bool = False, timeout: float = 60.0
    ) -> None:
        self.place, self.url, self.tasks = place, url, tasks
        self._apart, self._timeout = apart, timeout
        self.workers: list[subprocess.Popen[str]] = []
        self.said = ""

    def folder(self, number: int) -> Path:
        return self.place / (f"machine{number}" if self._apart else "runs") / "x"

    def start(self) -> None:
        folder = self.folder(len(self.workers))
        words = (self.url, str(folder), str(self.tasks), "0.005", str(self._timeout))
        self.workers.append(
            subprocess.Popen(
                [sys.executable, "-m", "tests.harness.sweeps.workers.worker", *words],
                cwd=ROOT,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )

    def measured(self) -> Counter[str]:
        """How often each trial was measured to its end."""
        log = self.place / "measured"
        lines = log.read_text().splitlines() if log.exists() else []
        return Counter(line.split()[0] for line in lines)

    def run(self, *faults: Fault, workers: int = 4) -> list[str]:
        """Start them, let each fault happen after a further part of the tasks; what the workers
        that live print at their end."""
        for _ in range(workers):
            self.start()
        for number, fault in enumerate(faults, start=1):
            self._reach(number * self.tasks // (len(faults) + 1))
            fault(self.workers)
        ended = [(one, *one.communicate(timeout=PATIENCE_SECONDS)) for one in self.workers]
        self.said = "".join(err for *_, err in ended)
        assert all(one.returncode in (0, -9) for one, _, _ in ended), [err for *_, err in ended]
        return [out for one, out, _ in ended if one.returncode == 0]

    def told(self) -> Counter[str]:
        """How often each result is in the study."""
        storage = open_storage(self.url, self.folder(0), "x").optuna
        trials = storage.get_all_trials(storage.get_study_id_from_name("x"))
        done = [t for t in trials if t.state.name == "COMPLETE"]
        assert not [t for t in trials if t.state.name in ("RUNNING", "WAITING")]
        assert all(RESULT in t.system_attrs for t in done)
        return Counter(t.user_attrs["result"] for t in done)

    def _reach(self, tasks: int) -> None:
        until(lambda: self.measured().total() >= tasks, PATIENCE_SECONDS)


def kill(number: int) -> Fault:
    return lambda workers: workers[number].kill()


@pytest.mark.parametrize("kind", ["journal", "sqlite"])
def test_workers_of_one_folder_of_which_two_are_killed(tmp_path: Path, kind: str) -> None:
    url = f"sqlite:///{tmp_path}/study.db" if kind == "sqlite" else ""
    sweep = Sweep(tmp_path, url, tasks=24)
    out = sweep.run(kill(0), kill(2), lambda _: sweep.start())
    assert out == ["24\n"] * 3
    assert sorted(sweep.told().values()) == [1] * 24
    assert max(sweep.measured().values()) == 1, "a result on disk is found, not measured again"


def test_postgresql_with_a_worker_killed_one_cut_off_and_two_restarts(tmp_path, server) -> None:
    sweep = Sweep(tmp_path, server.url, tasks=28, apart=True, timeout=6.0)

    def cut(workers: list["subprocess.Popen[str]"]) -> None:
        assert server.cut(workers[1].pid)

    def away(_: object) -> None:
        server.restart(after_seconds=1.0)

    out = sweep.run(kill(0), away, cut, away)
    assert "does not answer; results are on disk, trying again" in sweep.said
    assert out == ["28\n"] * 3
    assert sorted(sweep.told().values()) == [1] * 28
    # one that the killed worker had measured and could not tell: nobody else sees its folder
    assert sweep.measured().total() <= 29
