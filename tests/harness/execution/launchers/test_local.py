"""Process groups: what they leave, how their end is reported."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from harness.execution.execute import Attempt, conclude
from harness.execution.launchers import local
from harness.execution.launchers.local import (
    Exit,
    LocalLauncher,
    ProcessGroup,
    TorchrunLauncher,
    command,
    descendants,
    end_left_over,
    group_leaders,
    oom_kills,
)
from harness.trial.store import TrialFolder
from harness.trial.trial import Trial
from tests.harness.drive import has_ended, until


def shell(folder: Path, script: str) -> ProcessGroup:
    return ProcessGroup(["/bin/sh", "-c", script], TrialFolder(folder), {"COLOUR": "blue"})


def ended(group: ProcessGroup, seconds: float = 10.0) -> Exit:
    found = group.wait(seconds)
    assert found is not None
    return found


def test_output_variables_and_exit_code(tmp_path: Path) -> None:
    exit_ = ended(shell(tmp_path, 'echo "$COLOUR $HARNESS_TETHER"; echo oops >&2; exit 3'))
    assert (exit_.code, exit_.signal) == (3, None)
    assert (tmp_path / "log.txt").read_text() == "blue 1\noops\n"


def test_a_signal_is_reported_with_the_kernel_s_count(tmp_path, monkeypatch) -> None:
    counts = iter([4, 5])
    monkeypatch.setattr(local, "oom_kills", lambda: next(counts))
    exit_ = ended(shell(tmp_path, "kill -9 $$"))
    assert (exit_.code, exit_.signal, exit_.host_oom) == (None, signal.SIGKILL, True)


def test_what_the_first_process_leaves_running_is_ended(tmp_path: Path) -> None:
    group = shell(tmp_path, f"sleep 60 & echo $! > {tmp_path}/child")
    assert ended(group).code == 0
    child = int((tmp_path / "child").read_text())
    until(lambda: has_ended(child))


def test_stop_is_polite_first(tmp_path: Path) -> None:
    group = shell(tmp_path, "trap 'echo bye; exit 5' TERM; echo up; while :; do sleep 0.01; done")
    until((tmp_path / "log.txt").read_text)
    exit_ = group.stop(10.0)
    assert exit_.code == 5
    assert (tmp_path / "log.txt").read_text().endswith("bye\n")


def test_stop_is_firm_in_the_end(tmp_path: Path) -> None:
    group = shell(tmp_path, "trap '' TERM; echo up; while :; do sleep 0.01; done")
    until((tmp_path / "log.txt").read_text)
    before = time.monotonic()
    exit_ = group.stop(0.2)
    assert exit_.signal == signal.SIGKILL
    assert time.monotonic() - before < 5


def test_families_are_found(tmp_path: Path) -> None:
    group = shell(tmp_path, "sleep 60 & sleep 60")
    until(lambda: len(descendants(group.pid)) >= 2)
    assert group_leaders(descendants(group.pid)) == {group.pid}
    assert group.pid in descendants(os.getpid())
    group.stop(1.0)
    assert descendants(group.pid) == set()


def test_nothing_is_left_over_where_nothing_ran(tmp_path: Path) -> None:
    end_left_over(TrialFolder(tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_left_overs_that_do_not_end_are_one_line(tmp_path, monkeypatch) -> None:
    group = shell(tmp_path, "sleep 60")
    monkeypatch.setattr(local, "kill_groups", lambda *_: None)
    monkeypatch.setattr(local, "_PATIENCE_SECONDS", 0.0)
    with pytest.raises(ValueError, match="is still in use by processes of an earlier run"):
        end_left_over(TrialFolder(tmp_path), grace_seconds=0.1)
    monkeypatch.undo()
    end_left_over(TrialFolder(tmp_path))
    assert ended(group).signal == signal.SIGTERM


def test_the_kernel_s_count_is_a_number_or_nothing() -> None:
    count = oom_kills()
    assert count is None or count >= 0


def test_a_tethered_process_dies_with_its_parent(tmp_path: Path) -> None:
    if not sys.platform.startswith("linux"):
        pytest.skip("Linux only")
    pid_file = tmp_path / "pid"
    child = f"import os,time; open({str(pid_file)!r},'w').write(str(os.getpid())); time.sleep(60)"
    parent = (
        "import subprocess,sys,time\n"
        "subprocess.Popen([sys.executable,'-m','harness.execution.launchers.parent_death',sys.executable,'-c',"
        f"{child!r}], start_new_session=True)\n"
        "time.sleep(60)"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", parent], env={**os.environ, "HARNESS_TETHER": "1"}
    )
    until(lambda: pid_file.exists() and pid_file.read_text())
    process.kill()
    process.wait()
    until(lambda: has_ended(int(pid_file.read_text())))


def test_local_runs_the_worker_on_the_folder(tmp_path: Path, trial: Trial) -> None:
    folder = TrialFolder(tmp_path)
    folder.create(trial)
    group = LocalLauncher(["/bin/echo"]).start(trial, folder, {})
    assert ended(group).code == 0
    assert folder.log.read_text().strip() == str(tmp_path.resolve())


def test_torchrun_s_command_line(tmp_path, trial, two_ranks) -> None:
    words = command(two_ranks(trial), TrialFolder(tmp_path))
    assert words[1:3] == ["-m", "harness.execution.launchers.parent_death"]
    assert "--nproc-per-node=2" in words
    assert words[-3:] == ["-m", "harness.execution.worker", str(tmp_path.resolve())]


@pytest.fixture
def two_ranks() -> Callable[[Trial], Trial]:
    def make(trial: Trial) -> Trial:
        layout = replace(trial.workload.layout, data_parallel_size=2)
        return replace(trial, workload=replace(trial.workload, layout=layout))

    return make


@pytest.mark.parametrize("case", ["ok", "one_oom", "hang"])
def test_two_ranks_under_torchrun(tmp_path, trial, two_ranks, faults, case) -> None:
    pytest.importorskip("torch")
    trial = two_ranks(trial)
    folder = TrialFolder(tmp_path / trial.name)
    folder.create(trial)
    stub = Path(__file__).parents[2] / "stub_trial.py"
    if case == "one_oom":
        faults({f"{trial.name}/1": "oom_result", f"{trial.name}/0": "hang"})
    if case == "hang":
        faults({f"{trial.name}/1": "hang", f"{trial.name}/0": "hang"})
    group = TorchrunLauncher([str(stub)]).start(trial, folder, {"OMP_NUM_THREADS": "1"})
    if case == "hang":
        until(lambda: len(descendants(group.pid)) >= 2)
        ranks = descendants(group.pid)
        exit_ = replace(group.stop(0.1), timed_out=True)
        until(lambda: all(map(has_ended, ranks)))
    else:
        exit_ = ended(group, 60)
    result = conclude(folder, trial, Attempt(started_at="", clock=time.monotonic()), exit_)
    if case == "ok":
        assert result.status == "ok"
        assert [peak.rank for peak in result.memory] == [0, 1]
    if case == "one_oom":
        assert result.status == "oom"
        assert result.evidence.rank == 1
    if case == "hang":
        assert result.status == "timeout"
