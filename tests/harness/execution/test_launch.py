"""Which runner and which machine ``launcher=`` means."""

import subprocess
import sys
import threading
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from advisor.base.errors import UserError
from harness.execution.execute import begin, not_run
from harness.execution.launch import Follower, make_runner
from harness.execution.launchers.local import Exit, TorchrunLauncher, command
from harness.execution.launchers.slurm.runner import SlurmRunner
from harness.execution.progress import Progress
from harness.execution.runner import UNMEASURED, Runner
from harness.planner.device import Machine
from harness.planner.planning import machine_of, make_plan
from harness.planner.run_request import compose
from harness.trial.result import TrialStatus
from harness.trial.store import RunFolder, SubmittedJob, TrialFolder
from harness.trial.trial import Device, RunPlan, Trial
from tests.harness.drive import free_ports, variables

pytest.importorskip("hydra")

NODES = ("launcher=torchrun", "launcher.nnodes=2", "launcher.rendezvous=gpu1:29400")


def runner_of(tmp_path: Path, *overrides: str) -> Runner:
    config = compose(["experiment=tiny_cpu", "recompute.settings=[none]", *overrides])
    plan = make_plan(config, Machine(device=Device.CPU))
    return make_runner(config.launcher, RunFolder(tmp_path), plan, Progress(1, StringIO()))


def test_each_kind_has_its_runner(tmp_path) -> None:
    assert type(runner_of(tmp_path)) is Runner
    assert type(runner_of(tmp_path, "launcher=torchrun")) is Runner
    assert type(runner_of(tmp_path, *NODES)) is Runner
    assert type(runner_of(tmp_path, *NODES, "launcher.node_rank=1")) is Follower
    pytest.importorskip("submitit")
    slurm = runner_of(tmp_path, "launcher=slurm", "launcher.partition=h100")
    assert isinstance(slurm, SlurmRunner)
    assert slurm.options.partition == "h100"


def test_torchrun_over_machines_keeps_the_order_of_the_nodes(tmp_path: Path) -> None:
    runner = runner_of(
        tmp_path, *NODES, "launcher.node_rank=1", "gpus=4xH100", "job.global_batch_size=4"
    )
    ((_, trial),) = runner.plan.trials()
    launcher = runner.launcher(trial)
    assert isinstance(launcher, TorchrunLauncher)
    words = command(trial, runner.folder.trial("x"), rendezvous=launcher._rendezvous)
    wanted = (
        "--nnodes=2 --node-rank=1 --nproc-per-node=2 --rdzv-backend=static --master-addr=gpu1 "
        "--master-port=29400 --max-restarts=0"
    )
    assert set(wanted.split()) <= set(words)
    assert "--standalone" not in words


def test_a_cluster_s_devices_are_the_job_s() -> None:
    config = compose(["experiment=llama3_8b_2xh100", "launcher=slurm"])
    assert machine_of(config) == Machine(device=Device.CUDA, gpu_names=("H100", "H100"))
    on_cpu = compose(["launcher=slurm", "device=cpu"])
    assert machine_of(on_cpu) == Machine(device=Device.CPU)
    plan = make_plan(config, machine_of(config))
    assert plan.device_name == "H100-SXM-80GB"


def test_a_launcher_of_the_user_s_own(tmp_path: Path) -> None:
    (tmp_path / "launcher").mkdir()
    (tmp_path / "launcher" / "big.yaml").write_text(
        "kind: slurm\npartition: h100\nsetup: ['module load cuda']\nsbatch: [mail-type=END]\n"
    )
    options = compose(["launcher=big", "launcher.qos=high"], tmp_path).launcher
    assert (options.kind, options.partition, options.qos) == ("slurm", "h100", "high")
    assert (options.setup, options.sbatch) == (("module load cuda",), ("mail-type=END",))


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (["launcher=slrum"], "launcher = slrum: unknown launcher; did you mean slurm"),
        (["launcher.partition=x"], "launcher.partition = x: has no effect with launcher=local"),
        (["launcher=slurm", "launcher.partion=x"], "did you mean launcher.partition"),
    ],
)
def test_a_wrong_launcher_is_one_line(overrides: list[str], says: str) -> None:
    with pytest.raises(UserError) as error:
        compose(overrides)
    assert says in str(error.value)


def test_a_trial_that_slurm_has_is_not_run_here(tmp_path: Path) -> None:
    runner = runner_of(tmp_path)
    ((_, trial),) = runner.plan.trials()
    folder = runner.folder.trial(trial.name)
    folder.create(trial)
    folder.write_job(SubmittedJob(job="12_3", submitted_at="now"))
    says = "is already submitted to Slurm as job 12_3; add launcher=slurm to collect"
    with pytest.raises(UserError, match=says):
        runner.run()


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
        return Exit()


def follower(tmp_path: Path, plan: RunPlan, ranks: Ranks, **options: Any) -> Follower:
    return Follower(
        folder=RunFolder(tmp_path / "run"),
        plan=plan,
        progress=Progress(3, StringIO()),
        launcher=lambda _: ranks,
        **options,
    )


def node_zero(
    folder: RunFolder, trial: Trial, status: str = "ok", others: Ranks | None = None
) -> None:
    """What node 0 does, in short: its ranks wait for the others'."""
    own = folder.trial(trial.name)
    own.create(trial)
    while others is not None and trial.workload.recompute not in others.started:
        threading.Event().wait(0.01)
    own.write_result(not_run(trial, begin(), TrialStatus(status), ""))


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
    node_zero(folder, trial, "timeout")

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
    node_zero(RunFolder(tmp_path / "run"), trial, "skipped")
    ranks = Ranks()
    follower(tmp_path, plan, ranks).run()
    assert ranks.started == []


def test_two_machines_train_together(tmp_path: Path) -> None:
    """Both are this machine: real torchrun, real gloo."""
    pytest.importorskip("torch")
    (port,) = free_ports(1)
    asked = (
        f"run launcher=torchrun launcher.nnodes=2 launcher.rendezvous=127.0.0.1:{port} device=cpu "
        "experiment=tiny_cpu job.seq_length=64 gpus=2xH100 recompute.settings=[none] name=x "
        "measure.steps=2 measure.max_warmup_steps=3 --no-report"
    )
    words = [sys.executable, "-m", "harness.cli.main", *asked.split(), f"runs={tmp_path}"]
    heard = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    nodes = [
        subprocess.Popen(
            [*words, f"launcher.node_rank={rank}"], env=variables(), cwd=tmp_path, **heard
        )
        for rank in (0, 1)
    ]
    said = [node.communicate(timeout=120)[0] for node in nodes]
    assert [node.returncode for node in nodes] == [0, 0], said
    (result,) = RunFolder(tmp_path / "x").results().values()
    assert result.status in (TrialStatus.OK, TrialStatus.UNSTABLE)
    assert [peak.rank for peak in result.memory] == [0, 1]
