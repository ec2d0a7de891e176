"""Items run in order within a budget; what is done is not done again."""

import sys
from pathlib import Path

from harness.campaign.execute import Executor
from harness.campaign.journal import Outcome
from harness.campaign.plan import Campaign, Item
from harness.commands.campaign import exit_code, page

PROGRAM = (sys.executable, "-c")
"""An item's one argument is a Python program."""


def item(name: str, program: str, **times: float) -> Item:
    return Item(name=name, arguments=(program,), why="test", **times)


def executor(out: Path, budget: float = 600.0, **changes: object) -> Executor:
    said: list[str] = []
    return Executor(
        out=out, environment="here", budget_seconds=budget, say=said.append, program=PROGRAM,
        **changes,  # type: ignore[arg-type]
    )  # fmt: skip


def run(campaign: Campaign, given: Executor) -> list[tuple[str, Outcome]]:
    return [(attempt.item, attempt.outcome) for attempt in given.run(campaign)]


def test_each_item_once(tmp_path: Path) -> None:
    mark = f"open({str(tmp_path / 'mark')!r}, 'a').write('x'); print('said')"
    campaign = Campaign(items=(item("a", mark), item("b", "raise SystemExit(2)")))
    assert run(campaign, executor(tmp_path)) == [("a", Outcome.DONE), ("b", Outcome.FAILED)]
    assert run(campaign, executor(tmp_path)) == [("b", Outcome.FAILED)]
    assert (tmp_path / "mark").read_text() == "x"
    assert (tmp_path / "logs" / "a.txt").read_text() == "said\n"


def test_a_failed_trial_is_a_result_and_a_crash_is_none(tmp_path: Path) -> None:
    campaign = Campaign(items=(item("oom", "raise SystemExit(4)"), item("bug", "1 / 0")))
    assert run(campaign, executor(tmp_path)) == [("oom", Outcome.DONE), ("bug", Outcome.FAILED)]


def test_another_machine_measures_again(tmp_path: Path) -> None:
    campaign = Campaign(items=(item("a", "pass"),))
    run(campaign, executor(tmp_path))
    elsewhere = Executor(
        out=tmp_path, environment="there", budget_seconds=600, say=lambda _: None, program=PROGRAM
    )
    assert run(campaign, elsewhere) == [("a", Outcome.DONE)]


def test_the_budget_passes_over_what_is_too_long_for_it(tmp_path: Path) -> None:
    campaign = Campaign(
        items=(item("long", "pass", least_seconds=90.0), item("short", "pass", least_seconds=5.0))
    )
    assert run(campaign, executor(tmp_path, budget=60.0)) == [("short", Outcome.DONE)]
    assert run(campaign, executor(tmp_path, budget=0.0)) == []


def test_the_clock_is_asked_before_every_item(tmp_path: Path) -> None:
    times = iter([0.0, 0.0, 50.0, 100.0])
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
    assert exit_code(campaign, given, ()) == 0
    assert "needs no_such_package" in page(campaign, given, ())
