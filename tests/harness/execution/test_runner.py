"""Nothing is lost: seventy faults, a runner that is killed, Ctrl-C, a full disk."""

import errno
import random
import signal
from collections import Counter
from collections.abc import Callable, Mapping
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from advisor.base.errors import UserError
from harness.execution.launchers.local import LocalLauncher
from harness.execution.runner import UNMEASURED, Runner, exit_code
from harness.judge.results import load_results
from harness.trial.files import exclusive, holders
from harness.trial.result import TrialResult, TrialStatus
from harness.trial.store import RunFolder, TrialFolder, decode_result
from harness.trial.trial import RunPlan
from tests.harness.drive import has_ended, killed, started, stored, until

EXPECTED = {"hang": TrialStatus.TIMEOUT, "stubborn": TrialStatus.TIMEOUT}
EXPECTED |= {"oom": TrialStatus.OOM, "oom_result": TrialStatus.OOM, "nccl": TrialStatus.NCCL_ERROR}
EXPECTED |= dict.fromkeys(("ok", "late_crash"), TrialStatus.OK)
EXPECTED |= dict.fromkeys(("kill", "segv", "garbage", "full_disk", "exit_7"), TrialStatus.FAILED)
EXPECTED |= dict.fromkeys(("half_result", "silent"), TrialStatus.NO_DATA)
MakePlan = Callable[..., RunPlan]
MakeRunner = Callable[..., Runner]
Faults = Callable[[Mapping[str, str]], None]


def spread_faults(plan: RunPlan) -> tuple[RunPlan, dict[str, str]]:
    """Every fault equally often, in an order that a seed decides: one a setting, and all settings
    take turns. Only what hangs gets little time: a busy machine is no fault."""
    kinds = random.Random(3).sample([*EXPECTED], len(plan.settings))
    settings = tuple(
        replace(
            one,
            trial=replace(
                one.trial,
                measurement=replace(
                    one.trial.measurement,
                    timeout_seconds=0.15 if kind in ("hang", "stubborn") else 60.0,
                ),
            ),
        )
        for one, kind in zip(plan.settings, kinds, strict=True)
    )
    injected = {
        trial.name: kind
        for one, kind in zip(settings, kinds, strict=True)
        for trial in one.trials()
    }
    return replace(plan, settings=settings), injected


def test_seventy_trials_with_faults(make_plan, make_runner, faults) -> None:
    plan, injected = spread_faults(make_plan(len(EXPECTED), 5))
    faults(injected)
    stream = StringIO()
    runner = make_runner(plan, stream)
    results = runner.run()
    assert len(results) == 70
    for name, fault in injected.items():
        allowed = {EXPECTED[fault], TrialStatus.OOM} if fault == "kill" else {EXPECTED[fault]}
        assert results[name].status in allowed, (fault, results[name])
        assert (results[name].evidence is None) == (EXPECTED[fault] is TrialStatus.OK)
    assert runner.folder.results() == results
    counts = Counter(str(result.status) for result in results.values())
    assert counts["ok"] == sum(EXPECTED[fault] is TrialStatus.OK for fault in injected.values())
    assert len(stream.getvalue().splitlines()) == 70
    assert stream.getvalue().startswith("trial  1/70  full:block:1 repeat 1/5  ")
    assert runner.run() == results, "a second run runs nothing"


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ("oom", "CUDA out of memory"),
        ("oom_result", "CUDA out of memory"),
        ("nccl", "NCCL error in"),
        ("full_disk", "No space left on device"),
        ("garbage", "ended with exit code 3: last words"),
        ("exit_7", "ended with exit code 7, and its log is empty"),
        ("half_result", "result.json cannot be read"),
        ("silent", "result.json is missing"),
        ("hang", "not done after 0.4 s, at step 0, phase start"),
        ("segv", "ended by SIGSEGV"),
        ("kill", "ended by SIGKILL"),
    ],
)
def test_evidence_says_why(make_plan, make_runner, faults, fault, says) -> None:
    faults({"default": fault})
    limit = 0.4 if fault == "hang" else 60.0
    (result,) = make_runner(make_plan(1, timeout_seconds=limit)).run().values()
    evidence = result.evidence
    assert says in evidence.message
    if fault == "oom":
        assert evidence.over_bytes == 3 * 2**29
        assert evidence.log_tail[-1].startswith("torch.OutOfMemoryError")
    if fault == "oom_result":  # a worker's own failure gets log and exit code
        assert (evidence.over_bytes, evidence.exit_code) == (5, 1)
    if fault == "segv":
        assert (evidence.signal, evidence.exit_code) == (signal.SIGSEGV, None)


def test_a_skipped_setting_has_a_result_with_its_reason(make_plan, make_runner) -> None:
    plan = make_plan(2, 3)
    first, second = plan.settings
    plan = replace(plan, settings=(first, replace(second, rank=None, skip="rule says no")))
    results = list(make_runner(plan).run().values())
    assert [result.status for result in results] == ["ok", "skipped", "ok", "ok"]
    assert results[1].evidence.message == "rule says no"


def test_a_program_that_cannot_be_started_is_a_failure(make_plan, make_runner) -> None:
    missing = LocalLauncher(["/nonexistent/python"])
    results = make_runner(make_plan(2), launcher=lambda _: missing).run()
    assert {result.status for result in results.values()} == {TrialStatus.FAILED}
    assert exit_code(results) == 4


def test_retry_runs_only_what_did_not_measure(make_plan, make_runner, faults) -> None:
    plan = make_plan(3)
    names = [trial.name for _, trial in plan.trials()]
    faults({names[0]: "oom", names[1]: "exit_7"})
    first = make_runner(plan).run()
    faults({})
    assert make_runner(plan).run() == first
    chosen = make_runner(plan, retry=frozenset({TrialStatus.OOM})).run()
    assert [result.status for result in chosen.values()] == ["ok", "failed", "ok"]
    second = make_runner(plan, retry=UNMEASURED).run()
    assert [result.status for result in second.values()] == ["ok"] * 3
    assert second[names[0]] == chosen[names[0]]
    assert second[names[2]] == first[names[2]]
    kept = sorted((make_runner(plan).folder.path / "superseded").iterdir())
    statuses = {TrialFolder(path).result().status for path in kept}
    assert statuses == {TrialStatus.OOM, TrialStatus.FAILED}


def test_what_changes_the_question_is_run_again_and_the_old_answer_kept(
    make_plan: MakePlan, make_runner: MakeRunner
) -> None:
    first = make_runner(make_plan(2, steps=5)).run()
    more = make_runner(make_plan(2, 2, steps=5, timeout_seconds=30.0)).run()
    assert {name: more[name] for name in first} == first, "more repeats, another time limit"
    other = make_runner(make_plan(2, steps=6)).run()
    assert not any(other[name] == first[name] for name in first)
    superseded = make_runner(make_plan(1)).folder.path / "superseded"
    kept = [TrialFolder(path).result() for path in sorted(superseded.iterdir())]
    assert sorted(r.name for r in kept if r) == sorted(r.name for r in first.values())


def test_a_timeout_is_run_again_under_another_limit(make_plan, make_runner, faults) -> None:
    faults({"default": "hang"})
    (first,) = make_runner(make_plan(1, timeout_seconds=0.2)).run().values()
    assert first.status is TrialStatus.TIMEOUT
    faults({})
    (second,) = make_runner(make_plan(1, timeout_seconds=60.0)).run().values()
    assert second.status is TrialStatus.OK


def test_two_runners_in_one_folder_are_refused(make_plan, make_runner) -> None:
    runner = make_runner(make_plan(1))
    runner.folder.path.mkdir(parents=True)
    busy = pytest.raises(UserError, match="another harness run is using this folder")
    with exclusive(runner.folder.lock), busy:
        runner.run()
    assert len(runner.run()) == 1


def test_a_full_disk_stops_the_run_and_loses_nothing(
    make_plan: MakePlan, make_runner: MakeRunner, faults: Faults, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = make_plan(5)
    names = [trial.name for _, trial in plan.trials()]
    faults({names[2]: "silent"})  # the one whose result the runner has to write itself
    whole = TrialFolder.write_result

    def full(self: TrialFolder, result: TrialResult) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(self.path))

    monkeypatch.setattr(TrialFolder, "write_result", full)
    runner = make_runner(plan)
    with pytest.raises(OSError, match="No space left"):
        runner.run()
    finished = runner.folder.results()
    assert list(finished) == names[:2]
    monkeypatch.setattr(TrialFolder, "write_result", whole)
    results = runner.run()
    assert list(results) == names
    assert {name: results[name] for name in finished} == finished
    assert results[names[2]].status is TrialStatus.NO_DATA


def test_a_stopped_trial_leaves_no_process(make_plan, make_runner, faults) -> None:
    faults({"default": "family"})
    runner = make_runner(make_plan(1, timeout_seconds=5.0))  # a busy machine starts it in less
    (result,) = runner.run().values()
    assert result.status is TrialStatus.TIMEOUT
    pid = int((runner.folder.trial(result.name).path / "grandchild").read_text())
    until(lambda: has_ended(pid))  # it ignores SIGTERM and has left the group


@pytest.mark.parametrize(
    ("statuses", "code"),
    [
        *((text, 0) for text in ("ok", "ok oom skipped", "unstable")),
        *((text, 4) for text in ("ok failed", "ok timeout", "ok nan", "ok no_data")),
        *((text, 4) for text in ("oom", "skipped", "")),
    ],
)
def test_exit_codes(statuses: str, code: int) -> None:
    assert exit_code(map(TrialStatus, statuses.split())) == code


# A runner in a process of its own.


def drive(tmp_path: Path, repeats: int = 4, faults: Mapping[str, str] | None = None) -> Any:
    """Start `harness run` with stub trials, 4 settings x `repeats`, and no report."""
    settings = "recompute.settings=[none,selective:mlp,full:uniform:1,full:block:1]"
    words = ("run", settings, f"measure.repeats={repeats}", f"runs={tmp_path / 'runs'}", "name=x")
    return started(tmp_path, faults or {}, *words, "--no-report")


def test_a_runner_killed_at_random_points_loses_no_result(tmp_path: Path) -> None:
    faults = {"default": "slow"}
    runner, kills = killed(tmp_path, lambda: drive(tmp_path, repeats=2, faults=faults), 40, 0.12)
    assert runner.returncode == 0
    assert len(stored(tmp_path)) == 8
    assert kills >= 3
    results = RunFolder(tmp_path / "runs" / "x").results()
    assert {result.status for result in results.values()} == {TrialStatus.OK}


def test_what_a_killed_runner_left_running_is_ended_by_the_next(tmp_path: Path) -> None:
    runner = drive(tmp_path, faults={"default": "stubborn"})
    locks = tmp_path / "runs" / "x" / "trials"
    until(lambda: bool(list(locks.glob("*/log.txt"))))
    (folder,) = [path.parent for path in locks.glob("*/log.txt")]

    # First the runner itself holds the lock, then both, then the trial alone.
    until(lambda: holders(folder / "lock") not in ((), (runner.pid,)))
    until(lambda: len(holders(folder / "lock")) == 1)
    runner.kill()
    runner.communicate()
    (orphan,) = holders(folder / "lock")
    assert not has_ended(orphan)
    again = drive(tmp_path)
    _, talk = again.communicate(timeout=60)
    assert again.returncode == 0, talk
    assert has_ended(orphan)
    assert len(stored(tmp_path)) == 16


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_ctrl_c_keeps_what_is_finished_and_says_how_to_go_on(tmp_path, number, code) -> None:
    """The third trial does not end by itself: the signal never comes too late."""
    runner = drive(tmp_path, faults={"default": "third_hangs"})
    until(lambda: len(stored(tmp_path)) >= 2)
    runner.send_signal(number)
    _, talk = runner.communicate(timeout=20)
    assert runner.returncode == code
    assert "Traceback" not in talk
    seen = stored(tmp_path)
    assert len(seen) == 2
    last = talk.splitlines()[-1]
    assert f"stopped: {len(seen)} of 16 trials are finished, in" in last
    assert "continue with: harness run 'recompute.settings=[none,selective:mlp," in last
    again = drive(tmp_path)
    page, talk = again.communicate(timeout=60)
    assert again.returncode == 0
    assert talk.count("already run") == len(seen)
    now = stored(tmp_path)
    assert {name: now[name] for name in seen} == seen
    assert "selective:mlp" in page


@pytest.mark.parametrize("text", ["", '{"a":' * 5000, "\x00", "half"])
def test_a_broken_result_is_absent_and_costs_no_other(make_plan, make_runner, text) -> None:
    """Its trial is run again, one line says why, and the file is kept."""
    runner = make_runner(make_plan(2))
    first, second = runner.run().values()
    left = runner.folder.trial(second.name).path / ".result.json.99.tmp"
    left.write_text("what a killed writer left")
    broken = runner.folder.trial(first.name).path / "result.json"
    broken.write_text(broken.read_text()[:100] if text == "half" else text)
    stream = StringIO()
    again = make_runner(make_plan(2), stream).run()
    assert again[second.name] == second
    assert not left.exists()
    assert again[first.name].status is TrialStatus.OK
    said = [line for line in stream.getvalue().splitlines() if "moves to superseded" in line]
    assert len(said) == 1
    assert "is not valid JSON" in said[0]
    assert (runner.folder.path / "superseded" / f"{first.name}.1" / "result.json").exists()


@pytest.mark.parametrize("other", ["another setting", "another repeat", "other steps"])
def test_another_trials_result_is_no_answer(make_plan, make_runner, other: str) -> None:
    """It is named in one line and kept, and the trial runs again. So it is where its trial is of an
    older release, whose fields we do not know."""
    runner = make_runner(make_plan(2, 2))
    results = runner.run()
    own = next(iter(results.values()))
    alike = {"another setting": -1, "another repeat": 2, "other steps": 0}[other]
    foreign = [*results.values()][alike]
    if other == "other steps":
        measurement = foreign.trial["measurement"] | {"steps": 77}
        foreign = replace(foreign, trial=foreign.trial | {"measurement": measurement})
    else:
        foreign = replace(foreign, trial=foreign.trial | {"of_old": 1})
    runner.folder.trial(own.name).write_result(foreign)
    assert own.name not in runner.folder.results()
    (row,) = [one for one in load_results([runner.folder.path]).results if one.name == own.name]
    assert "of another trial than the trial.json beside it" in row.evidence.message
    stream = StringIO()
    again = make_runner(make_plan(2, 2), stream).run()
    said = [line for line in stream.getvalue().splitlines() if "moves to superseded" in line]
    assert [foreign.name in line for line in said] == [True]
    assert again[own.name].status is TrialStatus.OK
    assert {n: r for n, r in again.items() if n != own.name} == {
        n: r for n, r in results.items() if n != own.name
    }
    kept = runner.folder.path / "superseded" / f"{own.name}.1" / "result.json"
    assert decode_result(kept) == foreign
