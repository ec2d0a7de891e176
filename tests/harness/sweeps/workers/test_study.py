"""A study in one process: what it is told, what it claims, and what it makes of what befell it."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from msgspec import to_builtins
from msgspec.structs import replace

pytest.importorskip("optuna")

from advisor.base.errors import UserError
from harness.planner.launcher_options import Sampler, SweepOptions
from harness.sweeps.history import Task, outcome_of
from harness.sweeps.priority import Action, Ask, End, Measure, Wait
from harness.sweeps.space import Space
from harness.sweeps.workers.ledger import RESULT, Told
from harness.sweeps.workers.opening import open_study
from harness.sweeps.workers.study import Claim, Study, trial_of
from harness.trial.result import TrialResult, TrialStatus
from harness.trial.store import RunFolder
from tests.harness.sweeps.workers.grid import grid
from tests.harness.sweeps.workers.worker import InOrder, result_of

SPACE = grid(4)
TASKS = [Task(point) for point in SPACE.planned]
Open = Callable[..., Study]


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Open]:
    """Studies of one sweep; those of a `machine` share a folder."""
    with ExitStack() as stack:

        def make(
            machine: str = "a", space: Space = SPACE, retry: str = "", **given: object
        ) -> Study:
            folder = RunFolder(tmp_path / machine / "x")
            options = SweepOptions(**given)
            statuses = frozenset(map(TrialStatus, retry.split()))
            study = open_study(folder, space, options, "cpu", retry=statuses)
            stack.enter_context(suppress(OSError))  # closed before
            return stack.enter_context(study)

        yield make


def claim(study: Study, space: Space = SPACE) -> Claim:
    action = study.decide(InOrder(space).next)
    assert isinstance(action, Claim)
    return action


def result(task: Task, status: str = "ok") -> TrialResult:
    name = trial_of(SPACE, task).name
    return replace(result_of(name, TASKS.index(task)), status=TrialStatus(status))


def keep(tmp_path: Path, task: Task, status: str = "ok", machine: str = "a") -> None:
    """A result on disk, as a worker writes it before it tells."""
    trial = trial_of(SPACE, task)
    folder = RunFolder(tmp_path / machine / "x").trial(trial.name)
    folder.create(trial)
    folder.write_result(result(task, status))


def trials(study: Study):
    return study._ledger._study.get_trials(deepcopy=False)


def states(study: Study) -> list[str]:
    return [trial.state.name for trial in trials(study)]


def test_a_claim_is_one_trial_with_what_is_predicted_and_then_what_was_measured(opened) -> None:
    study = opened()
    mine = claim(study)
    (trial,) = trials(study)
    assert trial.params == TASKS[0].point.params()
    assert trial.user_attrs["predicted_peak_bytes"] == 1200
    assert (trial.user_attrs["repeat"], trial.user_attrs["rank"]) == (0, 1)
    study.tell(mine, result(mine.task))
    (trial,) = trials(study)
    assert trial.values == [0.01, 1000 / 2**30]
    assert trial.constraints == {"memory_over_budget": 0.0, "does_not_run": 0.0}
    assert trial.user_attrs["measured_peak_bytes"] == 1000
    assert study._ledger._study.metric_names == ["step time, s", "peak memory, GiB"]


def test_two_workers_never_have_the_same_task(opened: Open) -> None:
    first, second = opened(), opened()
    claims = [claim(study) for study in (first, second, second, first)]
    assert [one.task for one in claims] == TASKS
    assert isinstance(second.decide(InOrder(SPACE).next), Wait)
    for study, one in zip((first, second, second, first), claims, strict=True):
        study.tell(one, result(one.task))
    assert isinstance(second.decide(InOrder(SPACE).next), End)
    assert list(second.history().finished) == list(SPACE.planned)


def test_who_claims_after_another_made_a_trial_withdraws(opened: Open) -> None:
    """A turn that was lost with its connection: two workers decide from the same."""
    study, other = opened(), opened()
    seen, known = study._look()
    assert claim(other).task == TASKS[0]
    action = InOrder(SPACE).next(known)
    assert isinstance(action, Measure)
    ticket = study._worker.ticket()
    trial, number = study._ledger.claim(action.task, ticket)
    assert study._claimed(action, seen, trial, number) is None
    assert states(study) == ["RUNNING", "FAIL"]
    assert claim(study).task == TASKS[1]


def test_what_a_dead_worker_claimed_is_claimed_once_more(opened: Open, tmp_path: Path) -> None:
    dead = opened()
    tasks = [claim(dead).task for _ in range(2)]
    keep(tmp_path, tasks[1])
    dead._heart.close()
    dead._worker._lock.close()  # as the kernel does for a process that is killed
    dead._open.clear()
    heir = opened()
    assert claim(heir).task == tasks[0]
    assert states(heir) == ["FAIL", "COMPLETE", "RUNNING"]
    assert trials(heir)[0].user_attrs["status"] == "lost"
    assert claim(heir).task == TASKS[2], "what it measured is on disk, and is told"


def test_what_a_worker_was_telling_when_it_died_is_reported(opened: Open) -> None:
    dead = opened("a")
    mine = claim(dead)
    told = Told(outcome=outcome_of(result(mine.task)), began=0.0, ended=1.0)
    dead._storage.optuna.set_trial_system_attr(mine.trial, RESULT, to_builtins(told))
    dead._heart.close()
    dead._worker._lock.close()
    dead._open.clear()
    heir = opened("a")
    assert claim(heir).task == TASKS[1]
    assert states(heir) == ["COMPLETE", "RUNNING"]


def test_a_silent_worker_elsewhere_counts_as_dead_and_is_heard_when_it_comes_back(
    opened: Open, tmp_path: Path
) -> None:
    url = f"sqlite:///{tmp_path}/study.db"
    given = {"storage": url, "worker_timeout_seconds": 0.2}
    silent, other = opened("a", **given), opened("b", **given)
    mine = claim(silent)
    silent._heart.close()
    action: object = None
    while not isinstance(action, Claim) or action.task != mine.task:
        if isinstance(action, Claim):
            other.tell(action, result(action.task))
        other.wait()
        action = other.decide(InOrder(SPACE).next)
    silent.tell(mine, result(mine.task, "oom"))
    assert mine.task.point not in other.history().finished, "whoever has it now will tell"
    other.tell(action, result(action.task))
    assert other.history().finished[mine.task.point][0].status == "ok"
    assert states(other).count("FAIL") == 1


def test_what_was_taken_from_a_worker_and_is_not_run_again_yet_is_reported(
    opened: Open, tmp_path: Path
) -> None:
    given = {"storage": f"sqlite:///{tmp_path}/study.db", "worker_timeout_seconds": 0.05}
    silent, other = opened("a", **given), opened("b", **given)
    mine = claim(silent)
    silent._heart.close()
    while other._look()[1].running:
        other.wait()
    assert states(other) == ["FAIL"]
    silent.tell(mine, result(mine.task))
    assert states(other) == ["FAIL", "COMPLETE"]


def test_who_ends_gives_back_what_it_had_not_run(opened: Open) -> None:
    with opened() as study:
        claim(study)
    other = opened()
    assert states(other) == ["FAIL"]
    assert trials(other)[0].user_attrs["status"] == "interrupted"
    assert claim(other).task == TASKS[0]


def test_a_lost_study_is_made_again_from_what_is_on_disk(opened: Open, tmp_path: Path) -> None:
    for task, status in zip(TASKS, ("ok", "oom", "failed"), strict=False):
        keep(tmp_path, task, status)
    study = opened()
    assert list(study.restore()) == TASKS[:3]
    assert states(study) == ["COMPLETE", "COMPLETE", "FAIL"]
    study.restore()
    assert len(trials(study)) == 3, "nothing is told twice"
    assert claim(study).task == TASKS[3]
    keep(tmp_path, TASKS[2], machine="b")
    assert not opened("b", grid(2)).restore(), "its point is no longer one of the space"


def test_results_that_are_to_be_tried_again_do_not_count(opened: Open, tmp_path: Path) -> None:
    keep(tmp_path, TASKS[0], "failed")
    opened().restore()
    again = opened(retry="failed")
    assert list(again.restore()) == []
    mine = claim(again)
    assert mine.task == TASKS[0]
    again.tell(mine, result(mine.task, "failed"))
    assert claim(again).task == TASKS[1], "once more, not for ever"


class Asking(InOrder):
    """Lets Optuna's sampler name the points."""

    def next(self, history) -> Action:
        action = super().next(history)
        return Ask(otherwise=action) if isinstance(action, Measure) else action


@pytest.mark.parametrize("sampler", [one for one in Sampler if one is not Sampler.PRIOR])
def test_samplers_of_two_workers(opened: Open, sampler: Sampler) -> None:
    space = grid(12)
    studies = [opened(space=space, sampler=sampler, first=2) for _ in range(2)]
    tasks = []
    for number in range(12):
        study = studies[number % 2]
        mine = study.decide(Asking(space).next)
        assert isinstance(mine, Claim)
        tasks.append(mine.task)
        if number != 1:  # one stays running
            status = TrialStatus(("ok", "oom", "pruned", "failed")[number % 4])
            study.tell(mine, replace(result_of("x", number), status=status))
    assert {task.point for task in tasks} == set(space.planned), "nothing is run twice"
    assert "PRUNED" in states(studies[0])


def test_the_first_points_are_drawn_at_random(opened: Open) -> None:
    """As many as `first` says, before TPE learns from them."""
    space = grid(12)

    def drawn(machine: str, sampler: Sampler) -> list[Task]:
        study, found = opened(machine, space, sampler=sampler, first=6), []
        for number in range(6):
            mine = study.decide(Asking(space).next)
            study.tell(mine, result_of("x", number))
            found.append(mine.task)
        return found

    assert drawn("a", Sampler.TPE) == drawn("b", Sampler.RANDOM)


@pytest.mark.parametrize(
    "damage",
    [b'{"op_code": 5', b"no json\nat all\n", b"[]\n", b"null\n", b'{"op_code": []}\n', b"[" * 5000],
)
def test_a_journal_that_was_cut_off_or_is_broken_is_made_good(opened, tmp_path, damage) -> None:
    keep(tmp_path, TASKS[0])
    with opened() as study:
        study.restore()
    with open(tmp_path / "a" / "x" / "optuna.journal", "ab") as file:
        file.write(damage if damage.endswith(b"5") else damage.strip() + b"\n")
    again = opened()
    again.restore()
    assert states(again) == ["COMPLETE"]
    assert (tmp_path / "a" / "x" / "optuna.broken").exists() != damage.endswith(b"5")


def test_another_sweep_under_the_same_name_is_refused(opened: Open) -> None:
    opened()
    with pytest.raises(UserError, match="with another search space"):
        opened(space=grid(3))


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("foo://x", "is not the URL of a storage"),
        ("sqlite://", "is not the URL of a storage"),
        ("mysql://u@h/d", "is not the URL of a storage"),
        ("sqlite:////no/such/folder/x.db", "cannot be opened"),
        ("postgresql+pg8000://u:secret@127.0.0.1:1/d", "cannot be opened"),
    ],
)
def test_a_storage_that_cannot_be_opened_is_one_line(opened: Open, url: str, says: str) -> None:
    with pytest.raises(UserError, match=says) as error:
        opened(storage=url)
    assert "\n" not in str(error.value)
    assert "secret" not in str(error.value)
