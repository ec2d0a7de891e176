"""A sweep with stub trials: every point one result, and nothing lost or run twice after a kill."""

import subprocess
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import optuna
import pytest

from harness.cli.main import main
from harness.trial.files import exclusive
from harness.trial.result import TrialStatus
from harness.trial.store import RunFolder
from tests.harness.drive import killed, started, stored, until

SPACE = ("--no-report", "sweep=tiny_cpu", "name=x", "sweep.repeats=1")
Harness = Callable[..., subprocess.CompletedProcess[str]]
Finish = Callable[..., tuple[str, str]]


def start(tmp_path: Path, *overrides: str, faults: dict[str, str] | None = None) -> Any:
    return started(tmp_path, faults or {}, "sweep", *SPACE, *overrides)


@pytest.fixture
def sweep(stubbed_in: Harness, tmp_path: Path) -> Harness:
    """A whole sweep in this process."""
    return lambda *overrides, **given: stubbed_in(tmp_path, "sweep", *SPACE, *overrides, **given)


@pytest.fixture
def finish(sweep: Harness) -> Finish:
    """What it prints and says where all goes well."""

    def call(*overrides: str, **given: Any) -> tuple[str, str]:
        done = sweep(*overrides, **given)
        assert done.returncode == 0, done.stderr
        return done.stdout, done.stderr

    return call


def journal(tmp_path: Path) -> list[optuna.trial.FrozenTrial]:
    """The study as Optuna reads it."""
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    backend = JournalFileBackend(str(tmp_path / "runs" / "x" / "optuna.journal"))
    return optuna.load_study(study_name="x", storage=JournalStorage(backend)).trials


def test_every_point_has_one_result_and_the_same_command_runs_nothing(tmp_path, finish) -> None:
    out, talk = finish()
    assert out.startswith("tiny_cpu on cpu; sweep of step time and peak memory")
    assert "Pareto front of step time and peak memory:" in out
    assert "6 of 6 points: 6 ok." in out
    assert "trial 6  dp1 mbs" in talk
    seen = stored(tmp_path)
    assert len(seen) == 6
    assert {t.user_attrs["result"] for t in journal(tmp_path)} == set(seen)
    again, talk = finish()
    assert (again, stored(tmp_path)) == (out, seen)
    assert talk.count("already run") == 6


def test_more_trials_go_further_also_where_the_journal_was_lost(tmp_path, finish: Finish) -> None:
    finish("--trials", "2")
    seen = stored(tmp_path)
    assert len(seen) == 2
    _, talk = finish("sweep.trials=5", "sweep.batch=2", "sweep.sampler=tpe")
    more = stored(tmp_path)
    assert len(more) == 5
    assert {name: more[name] for name in seen} == seen
    assert talk.count("already run") == 2
    (tmp_path / "runs" / "x" / "optuna.journal").unlink()
    finish("sweep.trials=5", "sweep.batch=2", "sweep.sampler=tpe")
    assert stored(tmp_path) == more
    assert {t.user_attrs["result"] for t in journal(tmp_path)} == set(more)


def test_out_of_memory_is_a_result_and_what_is_illegal_is_not_run(tmp_path, finish: Finish) -> None:
    out, _ = finish("sweep.micro_batch_sizes=[2,4]", "sweep.trials=1")
    (name,) = stored(tmp_path)
    results = RunFolder(tmp_path / "runs" / "x")
    assert [r.status for r in results.results().values()] == [TrialStatus.OK]
    out, _ = finish("sweep.micro_batch_sizes=[2,4]", faults={"default": "oom"})
    counts = Counter(result.status for result in results.results().values())
    assert counts == {TrialStatus.OK: 1, TrialStatus.OOM: 2}
    assert "3 points are not run" in out
    assert "must be divisible by micro_batch_size x DP" in " ".join(out.split())
    assert "CUDA out of memory" in out
    feasible = [t for t in journal(tmp_path) if max((t.constraints or {"-": 1.0}).values()) <= 0]
    assert [t.user_attrs["result"] for t in feasible] == [name]


def test_a_failed_point_is_run_again_when_asked(tmp_path, sweep: Harness, finish: Finish) -> None:
    assert sweep(faults={"default": "exit_7"}).returncode == 4
    finish("--retry")
    states = Counter(trial.state.name for trial in journal(tmp_path))
    assert states == {"FAIL": 6, "COMPLETE": 6}


def test_leaders_that_overlap_are_repeated_and_the_page_says_how_it_ended(tmp_path, finish) -> None:
    out, _ = finish("sweep.repeats=3")
    points = Counter(name.partition("-r")[0] for name in stored(tmp_path))
    assert len(points) == 6
    assert min(points.values()) == 1, "what is clearly slower is not repeated"
    assert max(points.values()) == 3
    assert RunFolder(tmp_path / "runs" / "x").plan().ended in " ".join(out.split())
    told = [(t.params["recompute"], t.user_attrs["repeat"]) for t in journal(tmp_path)]
    assert len(told) == len(stored(tmp_path))


def test_no_trial_starts_once_the_budget_is_spent(tmp_path: Path, finish: Finish) -> None:
    out, _ = finish("--budget", "0.01s")  # a stub says that it took 20 ms
    assert len(stored(tmp_path)) == 1
    assert "The sweep.budget is used up." in out


def test_a_sweep_killed_at_random_points_loses_and_repeats_nothing(tmp_path, finish) -> None:
    _, kills = killed(tmp_path, lambda: start(tmp_path, faults={"default": "slow"}), 12, 0.06)
    assert kills >= 2
    finish()
    assert len(stored(tmp_path)) == 6
    told = [t.user_attrs["result"] for t in journal(tmp_path) if t.state.name == "COMPLETE"]
    assert sorted(told) == sorted(stored(tmp_path)), "each point is told once"
    assert not (tmp_path / "runs" / "x" / "superseded").exists(), "none was run twice"


def test_sweeps_that_run_at_once_in_one_folder_share_the_work(tmp_path, finish: Finish) -> None:
    workers = [start(tmp_path, faults={"default": "slow"}) for _ in range(3)]
    until(lambda: stored(tmp_path))
    workers[0].kill()
    said = [worker.communicate(timeout=60) for worker in workers]
    assert [worker.returncode for worker in workers[1:]] == [0, 0], said
    assert said[1][0] == said[2][0], "all show what all measured"
    assert len(stored(tmp_path)) == 6
    told = [t.user_attrs["result"] for t in journal(tmp_path) if t.state.name == "COMPLETE"]
    assert sorted(told) == sorted(stored(tmp_path))
    assert len(RunFolder(tmp_path / "runs" / "x").results()) == 6, "the plan holds all"
    out, talk = finish()
    assert (out, talk.count("already run")) == (said[1][0], 6)
    assert not (tmp_path / "runs" / "x" / "workers").exists()


def test_a_run_in_the_folder_of_a_sweep_at_work_is_refused(tmp_path, sweep, harness_in) -> None:
    sweep("sweep.trials=1")
    with exclusive(tmp_path / "runs" / "x" / "lock", shared=True):
        done = harness_in(tmp_path, "run", "name=x", "--no-report")
    assert done.returncode == 2
    assert "another harness run is using this folder" in done.stderr


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (["sweep=tiny"], "sweep = tiny: unknown sweep; did you mean tiny_cpu"),
        (["sweep.trails=3"], "sweep.trails = 3: is not a known key; did you mean sweep.trials"),
        (["sweep.trials=0"], "sweep.trials = 0: must be at least 1"),
        (["sweep.sampler=gp"], "sweep.sampler"),
        (["sweep.memory_budget=lots"], "sweep.memory_budget = lots"),
        (["sweep.micro_batch_sizes=[0]"], "sweep.micro_batch_sizes"),
        (["measure.repeats=2"], "measure.repeats = 2: must be 1: a sweep itself repeats leaders"),
        (["-m"], "-m: is not a flag"),
    ],
)
def test_a_wrong_request_is_one_line(overrides, says, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["sweep", *SPACE, *overrides]) == 2
    printed = capsys.readouterr()
    (line,) = printed.err.splitlines()
    assert line.startswith("harness sweep: ")
    assert says in line
    assert printed.out == ""
    assert not (tmp_path / "runs").exists()


def test_a_dry_run_writes_nothing(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["sweep", *SPACE, "--dry-run"]) == 0
    assert capsys.readouterr().out.startswith("tiny_cpu on cpu (dry run)\n6 points; results go to")
    assert not (tmp_path / "runs").exists()
