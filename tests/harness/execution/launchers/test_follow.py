"""Several machines without a scheduler: node 0 runs, the others follow."""

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from harness.execution.execute import begin, not_run
from harness.execution.launchers.follow import Follower
from harness.execution.launchers.launcher import Exit
from harness.execution.progress import Progress
from harness.execution.runner import UNMEASURED
from harness.trial.result import TrialStatus
from harness.trial.run_plan import RunPlan
from harness.trial.store import RunFolder, TrialFolder
from harness.trial.trial import Trial

ROOT = Path(__file__).parents[4]
MakePlan = Callable[..., RunPlan]


class Ranks:
    """A launcher whose processes end when the trial has a result."""

    def __init__(self) -> None:
        self.started: list[str] = []
        self.stopped = 0

    def start(self, trial: Trial, folder: TrialFolder, _: dict[str, str]) -> "Ranks":
        self.started.append(trial.workload.recompute)
        self._folder = folder
        return self

    def wait(self, seconds: float) -> Exit | None:
        threading.Event().wait(min(seconds, 0.02))
        return Exit(code=0) if self._folder.has_result() else None

    def stop(self, grace_seconds: float) -> Exit:
        self.stopped += 1
        return Exit(stopped=True)


def follower(tmp_path: Path, plan: RunPlan, ranks: Ranks, **options: Any) -> Follower:
    return Follower(
        folder=RunFolder(tmp_path / "run"),
        plan=plan,
        progress=Progress(3, StringIO()),
        launcher=lambda _: ranks,
        node_rank=1,
        **options,
    )


def node_zero(
    folder: RunFolder,
    trial: Trial,
    status: TrialStatus = TrialStatus.OK,
    others: Ranks | None = None,
) -> None:
    """What node 0 does, in short: its ranks wait for the others'."""
    own = folder.trial(trial.name)
    own.create(trial)
    while others is not None and trial.workload.recompute not in others.started:
        threading.Event().wait(0.01)
    own.write_result(not_run(trial, begin(), status, ""))


def test_ranks_of_every_trial_that_node_0_runs(tmp_path: Path, make_plan: MakePlan) -> None:
    plan = make_plan(3)
    first, *others = [trial for _, trial in plan.trials()]
    folder = RunFolder(tmp_path / "run")
    node_zero(folder, first)
    ranks = Ranks()
    thread = threading.Thread(
        target=lambda: [node_zero(folder, trial, others=ranks) for trial in others]
    )
    thread.start()
    results = follower(tmp_path, plan, ranks).run()
    thread.join()
    assert list(results) == [trial.name for _, trial in plan.trials()]
    assert ranks.started.count(first.workload.recompute) == 0, "finished before"
    assert {*ranks.started} == {trial.workload.recompute for trial in others}


def test_what_node_0_runs_again_is_followed_again(tmp_path: Path, make_plan: MakePlan) -> None:
    plan = make_plan(1)
    ((_, trial),) = plan.trials()
    folder = RunFolder(tmp_path / "run")
    node_zero(folder, trial, TrialStatus.TIMEOUT)

    def again() -> None:
        threading.Event().wait(0.1)
        folder.set_aside(trial.name)
        node_zero(folder, trial, others=ranks)

    ranks = Ranks()
    thread = threading.Thread(target=again)
    thread.start()
    (result,) = follower(tmp_path, plan, ranks, retry=UNMEASURED).run().values()
    thread.join()
    assert result.status is TrialStatus.OK
    (kept,) = follower(tmp_path, plan, Ranks()).run().values()
    assert kept == result


def test_a_skipped_setting_starts_nothing(tmp_path: Path, make_plan: MakePlan) -> None:
    plan = make_plan(1)
    plan = replace(plan, settings=(replace(plan.settings[0], skip="a rule"),))
    ((_, trial),) = plan.trials()
    node_zero(RunFolder(tmp_path / "run"), trial, TrialStatus.SKIPPED)
    ranks = Ranks()
    follower(tmp_path, plan, ranks).run()
    assert ranks.started == []


def test_two_machines_train_together(tmp_path: Path) -> None:
    """Both are this machine: real torchrun, real gloo."""
    pytest.importorskip("hydra")
    pytest.importorskip("torch")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = {
        **os.environ,
        "CUDA_VISIBLE_DEVICES": "",
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
    }
    nodes = [
        subprocess.Popen(
            [
                sys.executable,
                "-m",
                "harness.cli.main",
                "run",
                "launcher=torchrun",
                "launcher.nnodes=2",
                f"launcher.node_rank={rank}",
                f"launcher.rendezvous=127.0.0.1:{port}",
                "device=cpu",
                "experiment=tiny_cpu",
                "job.seq_length=64",
                "gpus=2xH100",
                "recompute.settings=[none]",
                "name=x",
                "measure.steps=2",
                "measure.max_warmup_steps=3",
                "--no-report",
                f"runs={tmp_path}",
            ],
            env=environment,
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in (0, 1)
    ]
    said = [node.communicate(timeout=120)[0] for node in nodes]
    assert [node.returncode for node in nodes] == [0, 0], said
    (result,) = RunFolder(tmp_path / "x").results().values()
    assert result.status in (TrialStatus.OK, TrialStatus.UNSTABLE)
    assert [peak.rank for peak in result.memory] == [0, 1]
