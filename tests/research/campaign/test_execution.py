"""Items run in order within a budget; what is done is not done again."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.execution.execute import begin, not_run
from harness.trial.result import TrialStatus
from harness.trial.store import RunFolder
from harness.trial.trial import RunPlan
from research.campaign.__main__ import exit_code, page
from research.campaign.execution import RETRY, Executor, Trials, trials_of
from research.campaign.items import Campaign, Item
from research.campaign.journal import Outcome

PROGRAM = (sys.executable, "-c")
"""An item's one argument is a Python program."""


def item(name: str, program: str, **times: float) -> Item:
    return Item(name=name, arguments=(program,), why="test", **times)


def executor(out: Path, budget: float = 600.0, **changes: object) -> Executor:
    given: dict[str, object] = {
        "out": out,
        "environment": "here",
        "version": "one",
        "budget_seconds": budget,
        "say": lambda _: None,
        "program": PROGRAM,
    }
    return Executor(**(given | changes))


def run(campaign: Campaign, given: Executor) -> list[tuple[str, Outcome]]:
    return [(attempt.item, attempt.outcome) for attempt in given.run(campaign)]


def test_each_item_once(tmp_path: Path) -> None:
    mark = f"open({str(tmp_path / 'mark')!r}, 'a').write('x'); print('said')"
    campaign = Campaign(items=(item("a", mark), item("b", "raise SystemExit(2)")))
    assert run(campaign, executor(tmp_path)) == [("a", Outcome.DONE), ("b", Outcome.FAILED)]
    assert run(campaign, executor(tmp_path)) == []
    assert (tmp_path / "mark").read_text() == "x"
    assert (tmp_path / "logs" / "a.txt").read_text() == "said\n"


def test_what_failed_is_tried_again_by_another_program_or_where_it_is_asked(tmp_path: Path) -> None:
    campaign = Campaign(items=(item("b", "raise SystemExit(2)"), item("a", "pass")))
    assert run(campaign, executor(tmp_path)) == [("b", Outcome.FAILED), ("a", Outcome.DONE)]
    given = executor(tmp_path)
    assert exit_code(campaign, given) == 4
    assert "failed before, exit code 2: logs/b.txt" in page(campaign, given, ())
    assert run(campaign, executor(tmp_path, again=True)) == [("b", Outcome.FAILED)]
    mended = executor(tmp_path, version="two")
    assert exit_code(campaign, mended) == 3
    assert run(campaign, mended) == [("b", Outcome.FAILED)]
    assert run(campaign, mended) == []


def test_a_probe_that_failed_is_tried_again_by_another_probe(tmp_path: Path) -> None:
    words = ("probe", "--out", str(tmp_path), "nope")
    campaign = Campaign(items=(Item(name="p", arguments=words, why="test"), item("b", "exit(2)")))
    assert len(run(campaign, executor(tmp_path))) == 2
    mended = executor(tmp_path, probe_version="two")
    assert run(campaign, mended) == [("p", Outcome.FAILED)]
    assert run(campaign, mended) == []


def test_what_was_interrupted_goes_on_with_the_same_program(tmp_path: Path) -> None:
    campaign = Campaign(items=(item("a", "raise SystemExit(143)"),))
    for _ in range(2):
        assert run(campaign, executor(tmp_path)) == [("a", Outcome.UNFINISHED)]
    assert exit_code(campaign, executor(tmp_path)) == 3


@pytest.fixture
def results(tmp_path: Path, make_plan: Callable[..., RunPlan]) -> Callable[..., Item]:
    """Writes a run of trials that ended so; the item that is this run, as its command ends."""

    def write(*statuses: TrialStatus | None, name: str = "cell") -> Item:
        plan, folder = make_plan(settings=len(statuses)), RunFolder(tmp_path / "runs" / name)
        folder.create(plan)
        for (_, trial), status in zip(plan.trials(), statuses, strict=True):
            folder.trial(trial.name).create(trial)
            if status is not None:
                folder.trial(trial.name).write_result(not_run(trial, begin(), status, "so"))
        return Item(name=name, arguments=("run", "runs={out}/runs", f"name={name}"), why="test")

    return write


def ends(code: int) -> tuple[str, ...]:
    """A harness that says its last argument and exits so."""
    return (sys.executable, "-c", f"import sys; print(sys.argv[-1]); raise SystemExit({code})")


OK, OOM, FAILED, TIMEOUT = (
    TrialStatus.OK,
    TrialStatus.OOM,
    TrialStatus.FAILED,
    TrialStatus.TIMEOUT,
)


@pytest.mark.parametrize("status", [FAILED, TIMEOUT, TrialStatus.NO_DATA, None])
def test_a_trial_without_an_answer_is_owed(status, results, tmp_path) -> None:
    campaign = Campaign(items=(results(OK, status),))
    assert run(campaign, executor(tmp_path, program=ends(4))) == [("cell", Outcome.OWED)]
    assert run(campaign, executor(tmp_path, program=ends(4))) == []
    mended = executor(tmp_path, program=ends(0), version="two")
    assert run(campaign, mended) == [("cell", Outcome.DONE)]
    assert exit_code(campaign, mended) == 0


@pytest.mark.parametrize("status", [OOM, TrialStatus.SKIPPED, TrialStatus.UNSTABLE])
def test_running_out_of_memory_is_a_result(status, results, tmp_path) -> None:
    campaign = Campaign(items=(results(OK, status),))
    assert run(campaign, executor(tmp_path, program=ends(4))) == [("cell", Outcome.DONE)]
    assert run(campaign, executor(tmp_path, version="two")) == []


def test_failed_trials_run_again_once_a_program(results: Callable[..., Item], tmp_path) -> None:
    campaign = Campaign(items=(results(OK, FAILED),))
    log = tmp_path / "logs" / "cell.txt"
    run(campaign, executor(tmp_path, program=ends(143)))  # the budget, say, cut it short
    run(campaign, executor(tmp_path, program=ends(4)))
    assert log.read_text().splitlines() == [RETRY, "name=cell"]
    run(campaign, executor(tmp_path, program=ends(4), version="two"))
    run(campaign, executor(tmp_path, program=ends(4), version="two", again=True))
    assert log.read_text().splitlines()[2:] == [RETRY, RETRY]


def test_a_first_run_that_measures_nothing_ends_the_campaign(results, tmp_path) -> None:
    first, second = results(FAILED, OOM, name="first"), results(OK, name="second")
    campaign = Campaign(items=(first, second))
    for attempts in ([("first", Outcome.OWED)], []):
        said: list[str] = []
        given = executor(tmp_path, program=ends(4), say=said.append)
        assert run(campaign, given) == attempts
        assert said[-1] == f"stopped: first measured nothing, see {tmp_path}/logs/first.txt"
        assert exit_code(campaign, given) == 4
    results(OK, OOM, name="first")
    assert run(campaign, executor(tmp_path, program=ends(0), version="two")) == [
        ("first", Outcome.DONE),
        ("second", Outcome.DONE),
    ]


def test_a_first_run_that_was_only_cut_short_ends_nothing(results, tmp_path) -> None:
    campaign = Campaign(items=(results(None, None, name="first"), results(OK, name="second")))
    given = executor(tmp_path, program=ends(143))
    assert [name for name, _ in run(campaign, given)] == ["first", "second"]
    assert exit_code(campaign, given) == 3


def test_only_runs_with_a_name_tell_of_their_trials(tmp_path: Path) -> None:
    assert trials_of(["calibrate", "--device", "cpu"]) is None
    assert trials_of(["run", "experiment=x"]) is None
    assert trials_of(["run", "name=x", "--dry-run"]) is None
    assert trials_of(["run", "name=x", f"runs={tmp_path}"]) == Trials()
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "plan.json").write_text("{")
    assert trials_of(["rehearse", "name=x", f"runs={tmp_path}"]) is None


def test_another_machine_measures_again(tmp_path: Path) -> None:
    campaign = Campaign(items=(item("a", "pass"),))
    run(campaign, executor(tmp_path))
    elsewhere = executor(tmp_path, environment="there")
    assert run(campaign, elsewhere) == [("a", Outcome.DONE)]


def test_the_budget_passes_over_what_is_too_long_for_it(tmp_path: Path) -> None:
    campaign = Campaign(
        items=(item("long", "pass", least_seconds=90.0), item("short", "pass", least_seconds=5.0))
    )
    assert run(campaign, executor(tmp_path, budget=60.0)) == [("short", Outcome.DONE)]
    assert run(campaign, executor(tmp_path, budget=0.0)) == []


def test_the_clock_is_asked_before_every_item(tmp_path: Path) -> None:
    times = iter([0.0, 0.0, 0.0, 50.0, 100.0])
    given = executor(tmp_path, budget=90.0, clock=lambda: next(times), began=0.0)
    campaign = Campaign(items=(item("a", "pass"), item("b", "pass")))
    assert run(campaign, given) == [("a", Outcome.DONE)]


def test_what_hangs_is_ended_and_left_for_another_call(tmp_path: Path) -> None:
    hang = "import time; print('begun', flush=True); time.sleep(600)"
    campaign = Campaign(items=(item("hang", hang, least_seconds=1.0, most_seconds=16.0),))
    assert run(campaign, executor(tmp_path)) == [("hang", Outcome.UNFINISHED)]
    assert (tmp_path / "logs" / "hang.txt").read_text() == "begun\n"


def test_what_lacks_a_package_is_passed_over_and_not_owed(tmp_path: Path) -> None:
    lacking = Item(name="lacks", arguments=("1",), why="test", needs=("no_such_package", "json"))
    assert lacking.lacks() == ("no_such_package",)
    campaign = Campaign(items=(lacking, item("a", "pass")))
    given = executor(tmp_path)
    assert run(campaign, given) == [("a", Outcome.DONE)]
    assert exit_code(campaign, given) == 0
    assert "needs no_such_package" in page(campaign, given, ())
