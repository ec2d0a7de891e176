"""Which runner and which machine ``launcher=`` means."""

from io import StringIO
from pathlib import Path

import pytest

pytest.importorskip("hydra")

from advisor.base.errors import UserError
from harness.execution.launch import make_runner
from harness.execution.launchers.follow import Follower
from harness.execution.launchers.slurm.runner import SlurmRunner
from harness.execution.launchers.torchrun import TorchrunLauncher, command
from harness.execution.progress import Progress
from harness.execution.runner import Runner
from harness.planner.device import Machine
from harness.planner.planning import machine_of, make_plan
from harness.planner.run_request import compose
from harness.trial.store import RunFolder
from harness.trial.trial import Device

NODES = ("launcher=torchrun", "launcher.nnodes=2", "launcher.rendezvous=gpu1:29400")


def runner_of(tmp_path: Path, *overrides: str) -> Runner:
    config = compose(["experiment=tiny_cpu", "recompute.settings=[none]", *overrides])
    plan = make_plan(config, Machine(device=Device.CPU))
    return make_runner(config.launcher, RunFolder(tmp_path), plan, Progress(1, StringIO()))


def test_each_kind_has_its_runner(tmp_path: Path) -> None:
    assert type(runner_of(tmp_path)) is Runner
    assert type(runner_of(tmp_path, "launcher=torchrun")) is Runner
    assert type(runner_of(tmp_path, *NODES)) is Runner
    assert type(runner_of(tmp_path, *NODES, "launcher.node_rank=1")) is Follower


def test_slurm_has_its_runner(tmp_path: Path) -> None:
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
    for word in (
        "--nnodes=2",
        "--node-rank=1",
        "--nproc-per-node=2",
        "--rdzv-backend=static",
        "--master-addr=gpu1",
        "--master-port=29400",
        "--max-restarts=0",
    ):
        assert word in words
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
    from harness.trial.store import SubmittedJob

    runner = runner_of(tmp_path)
    ((_, trial),) = runner.plan.trials()
    folder = runner.folder.trial(trial.name)
    folder.create(trial)
    folder.write_job(SubmittedJob(job="12_3", submitted_at="now"))
    with pytest.raises(
        UserError, match="is already submitted to Slurm as job 12_3; add launcher=slurm to collect"
    ):
        runner.run()
