"""The task of a node, without Slurm."""

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.execution.launchers.slurm.task import NodeTask, Notice, first_node, rendezvous_of
from harness.trial.result import TrialStatus
from harness.trial.store import TrialFolder
from harness.trial.trial import Trial
from tests.harness.execution.launchers.slurm.on_node import stub

MakeTask = Callable[..., NodeTask]


@pytest.fixture
def folder(tmp_path: Path, trial: Trial) -> TrialFolder:
    found = TrialFolder(tmp_path / trial.name)
    found.create(trial)
    return found


@pytest.fixture
def make_task(folder: TrialFolder, monkeypatch: pytest.MonkeyPatch) -> MakeTask:
    for name in ("SLURM_JOB_NUM_NODES", "SLURM_RESTART_COUNT"):
        monkeypatch.delenv(name, raising=False)

    def make(minutes: int = 1) -> NodeTask:
        return NodeTask(folder=str(folder.path), minutes=minutes, max_requeues=2, launcher=stub)

    return make


def test_one_node_runs_and_concludes(make_task, folder, faults) -> None:
    make_task()()
    result = folder.result()
    assert result.status is TrialStatus.OK
    faults({"default": "exit_7"})
    make_task()()
    assert folder.result() == result, "a job that starts anew leaves a result alone"


def test_too_many_requeues_are_a_failure(make_task, folder, monkeypatch) -> None:
    monkeypatch.setenv("SLURM_RESTART_COUNT", "3")
    make_task()()
    result = folder.result()
    assert result.evidence.message == "was requeued 3 times: preempted, or its node was lost"


@pytest.mark.parametrize(
    ("number", "minutes", "code"),
    [(signal.SIGTERM, 1, 128 + signal.SIGTERM), (signal.SIGUSR2, 60, 128 + signal.SIGUSR2)],
)
def test_what_slurm_ends_early_leaves_no_result_and_no_process(
    make_task: MakeTask,
    folder: TrialFolder,
    faults: Callable[..., None],
    number: signal.Signals,
    minutes: int,
    code: int,
) -> None:
    faults({"default": "hang"})
    timer = threading.Timer(0.4, os.kill, (os.getpid(), number))
    timer.start()
    with pytest.raises(SystemExit) as error:
        make_task(minutes)()
    timer.join()
    assert error.value.code == code
    assert not folder.has_result()


def test_the_notice_near_the_limit_is_a_timeout(make_task, folder, faults) -> None:
    faults({"default": "hang"})
    timer = threading.Timer(0.4, os.kill, (os.getpid(), signal.SIGUSR2))
    timer.start()
    make_task(2)()
    timer.join()
    result = folder.result()
    assert result.status is TrialStatus.TIMEOUT


def test_a_notice_is_early_by_the_time_that_is_left() -> None:
    for minutes, early in ((2, False), (3, True)):  # Slurm sends it 30 to 90 s before the limit
        notice = Notice(minutes)
        assert (notice.came, notice.early) == (False, False)
        os.kill(os.getpid(), signal.SIGUSR2)
        assert (notice.came, notice.early) == (True, early)


def test_a_folder_without_a_trial_is_an_error(make_task: MakeTask, folder: TrialFolder) -> None:
    (folder.path / "trial.json").unlink()
    with pytest.raises(RuntimeError, match=r"holds no trial\.json"):
        make_task()()


FIRST = {"gpu1": "gpu1", "gpu1,gpu2": "gpu1", "gpu[007-009,012],big1": "gpu007", "a,gpu[1-2]": "a"}


@pytest.mark.parametrize(
    ("nodes", "expected"), [*FIRST.items(), ("r[1-2]n3,x", "r1n3"), ("n[3,5]", "n3")]
)
def test_the_first_of_slurm_s_node_list(nodes: str, expected: str) -> None:
    assert first_node(nodes) == expected


def test_nodes_meet_at_the_first_at_a_port_of_their_job() -> None:
    variables = {
        "SLURM_JOB_NUM_NODES": "2",
        "SLURM_NODEID": "1",
        "SLURM_JOB_NODELIST": "localhost,x",
        "SLURM_JOB_ID": "20007",
        "SLURM_LAUNCH_NODE_IPADDR": "10.0.0.1",
    }
    found = rendezvous_of(variables)
    assert (found.nnodes, found.node_rank, found.host, found.port) == (2, 1, "localhost", 10007)
    unknown = rendezvous_of(variables | {"SLURM_JOB_NODELIST": "no-such-host.invalid"})
    assert unknown.host == "10.0.0.1"
    assert rendezvous_of({}) is None
