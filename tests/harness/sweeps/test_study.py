"""Optuna itself: what it is told, what it asks, and what it remembers."""

import math
from pathlib import Path

import pytest

from advisor.base.errors import UserError
from harness.planner.sweep_options import Sampler
from harness.sweeps.front import Outcome
from harness.sweeps.space import Point
from harness.sweeps.study import Study
from harness.trial.result import TrialStatus
from tests.harness.sweeps.conftest import MakeSpace, measured

SMALL = ("recompute=corners", "sweep.micro_batch_sizes=[1,2]")


def make(space_of: MakeSpace, folder: Path, *more: str) -> Study:
    space, options = space_of(*SMALL, *more)
    return Study(folder, space, options, "x")


@pytest.mark.parametrize("url", ["foo://x", "sqlite:////no/such/folder/x.db"])
def test_a_storage_that_cannot_be_opened_is_one_line(
    space_of: MakeSpace, tmp_path: Path, url: str
) -> None:
    with pytest.raises(UserError, match="cannot be opened") as error:
        make(space_of, tmp_path, f"sweep.storage={url}")
    assert "\n" not in str(error.value)


def frozen(study: Study):  # type: ignore[no-untyped-def]
    return study._study.get_trials(deepcopy=False)


def test_a_small_space_is_asked_whole_and_without_repetition(
    space_of: MakeSpace, tmp_path: Path
) -> None:
    study = make(space_of, tmp_path)
    space, _ = space_of(*SMALL)
    study.enqueue(space.best(2))
    asked = []
    for _ in range(6):
        point, trial = study.ask()
        study.tell(trial, measured(point))
        asked.append(point)
    assert asked[:2] == space.best(2), "the advisor's best first"
    assert set(asked) == set(space.planned)


@pytest.mark.parametrize("sampler", [Sampler.TPE, Sampler.NSGA2, Sampler.RANDOM])
def test_samplers_bear_what_does_not_run(
    space_of: MakeSpace, tmp_path: Path, sampler: Sampler
) -> None:
    study = make(space_of, tmp_path, f"sweep.sampler={sampler}", "sweep.memory_budget=1500 B")
    for number in range(12):
        point, trial = study.ask()
        status = (TrialStatus.OOM, TrialStatus.OK, TrialStatus.FAILED)[number % 3]
        told = Outcome(name="x", status=status)
        study.tell(trial, measured(point, 0.1, 3000) if status is TrialStatus.OK else told)
    states = [trial.state.name for trial in frozen(study)]
    assert states == ["COMPLETE", "COMPLETE", "FAIL"] * 4
    oom, over, failed = frozen(study)[:3]
    assert oom.values == [math.inf, math.inf]
    assert oom.constraints == {"memory_over_budget": 0.0, "does_not_run": 1.0}
    assert over.values == [0.1, 3000.0]
    assert over.constraints == {"memory_over_budget": 1.0, "does_not_run": 0.0}
    assert failed.user_attrs == {"status": "failed", "result": "x"}
    assert study._study.best_trials == [], "nothing is feasible"


def test_the_first_points_are_enqueued_once(space_of: MakeSpace, tmp_path: Path) -> None:
    space, _ = space_of(*SMALL)
    for _ in range(2):
        make(space_of, tmp_path).enqueue(space.best(2))
    assert [trial.state.name for trial in frozen(make(space_of, tmp_path))] == ["WAITING"] * 2


def test_a_study_that_was_killed_is_told_what_it_missed(
    space_of: MakeSpace, tmp_path: Path
) -> None:
    study = make(space_of, tmp_path)
    finished, _ = study.ask()
    unfinished, _ = study.ask()
    partly = study._study.ask()  # killed before its other parameters were chosen
    partly.suggest_categorical("layout", ["dp1"])
    again = make(space_of, tmp_path)
    (asked, first), (completed, second) = again.restore({finished: measured(finished, 0.5, 7)})
    assert asked == unfinished
    assert completed not in (finished, unfinished), "brute force repeats no point"
    states = [trial.state.name for trial in frozen(again)]
    assert states == ["COMPLETE", "RUNNING", "RUNNING"]
    assert frozen(again)[0].values == [0.5, 7.0]
    again.tell(first, measured(asked))
    again.tell(second, measured(completed))
    rest = {again.ask()[0] for _ in range(3)}
    assert len(rest | {finished, asked, completed}) == 6


def test_a_study_is_told_nothing_twice(space_of: MakeSpace, tmp_path: Path) -> None:
    study = make(space_of, tmp_path)
    point, trial = study.ask()
    study.tell(trial, measured(point))
    assert make(space_of, tmp_path).restore({point: measured(point)}) == []
    assert len(frozen(study)) == 1


@pytest.mark.parametrize(
    "damage",
    [
        b'{"op_code": 5',
        b"no json\nat all\n",
        b"[]\n",
        b"null\n",
        b'{"op_code": []}\n',
        b"[" * 5000 + b"\n",
    ],
)
def test_a_journal_that_was_cut_off_or_is_broken_is_made_good(
    space_of: MakeSpace, tmp_path: Path, damage: bytes
) -> None:
    study = make(space_of, tmp_path)
    point, trial = study.ask()
    study.tell(trial, measured(point))
    journal = tmp_path / "optuna.journal"
    (tmp_path / "optuna.journal.lock").write_text("")
    with open(journal, "ab") as file:
        file.write(damage)
    again = make(space_of, tmp_path)
    again.restore({point: measured(point)})
    assert [trial.state.name for trial in frozen(again)] == ["COMPLETE"]
    assert (tmp_path / "optuna.broken").exists() == damage.endswith(b"\n")


def test_another_space_under_the_same_name_is_refused(space_of: MakeSpace, tmp_path: Path) -> None:
    make(space_of, tmp_path)
    with pytest.raises(UserError, match="holds a sweep of another space"):
        make(space_of, tmp_path, "sweep.micro_batch_sizes=[1]")


def test_an_optuna_storage_of_one_s_own(space_of: MakeSpace, tmp_path: Path) -> None:
    pytest.importorskip("sqlalchemy")
    url = f"sweep.storage='sqlite:///{tmp_path / 'study.db'}'"
    study = make(space_of, tmp_path, url)
    point, trial = study.ask()
    study.tell(trial, measured(point))
    assert [t.state.name for t in frozen(make(space_of, tmp_path, url))] == ["COMPLETE"]
    assert not (tmp_path / "optuna.journal").exists()


def test_points_are_what_optuna_sees() -> None:
    point = Point(layout="dp1", micro_batch_size=2, recompute="none")
    assert point.params() == {"layout": "dp1", "micro_batch_size": 2, "recompute": "none"}
