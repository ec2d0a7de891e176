"""What is asked of sbatch."""

import pytest
from msgspec.structs import replace

from advisor.base.errors import UserError
from advisor.job.layout import ParallelLayout
from harness.execution.launchers.slurm.submission import Shape, parameters, shape_of
from harness.planner.launcher_options import LauncherKind, LauncherOptions
from harness.trial.trial import Device, MeasurementPlan, Trial

SLURM = LauncherOptions(kind=LauncherKind.SLURM)


def of(trial: Trial, ranks: int, device: Device = Device.CUDA, timeout: float = 900.0) -> Trial:
    layout = ParallelLayout(data_parallel_size=ranks)
    workload = replace(trial.workload, layout=layout, device=device)
    return replace(trial, workload=workload, measurement=MeasurementPlan(timeout_seconds=timeout))


@pytest.mark.parametrize(
    ("ranks", "options", "expected"),
    [
        (8, {}, (1, 8)),
        (16, {"gpus_per_node": 8}, (2, 8)),
        (16, {"nodes": 4}, (4, 4)),
        (4, {"gpus_per_node": 8}, (1, 8)),
        (16, {"nodes": 4, "gpus_per_node": 8}, (4, 8)),
    ],
)
def test_nodes_and_gpus(trial, ranks, options, expected) -> None:
    shape = shape_of(of(trial, ranks), replace(SLURM, **options))
    assert (shape.nodes, shape.gpus_per_node) == expected
    assert (shape.cpus_per_task, shape.minutes) == (0, 20), "900 s and five minutes to start"


def test_on_a_cpu_no_gpu_is_asked_for(trial: Trial) -> None:
    shape = shape_of(of(trial, 4, Device.CPU), replace(SLURM, nodes=2, time="1:00:00"))
    assert shape == Shape(nodes=2, gpus_per_node=0, cpus_per_task=2, minutes=60)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"nodes": 3}, "nodes = 3: must divide the layout's 16 ranks; nearest: 2 or 4"),
        ({"nodes": 1, "gpus_per_node": 8}, "must be at least 16, the number of ranks per node"),
    ],
)
def test_ranks_that_do_not_come_out_even(trial: Trial, options: dict[str, int], says: str) -> None:
    with pytest.raises(UserError) as error:
        shape_of(of(trial, 16), replace(SLURM, **options))
    assert says in str(error.value)


def test_parameters_reach_the_batch_script() -> None:
    submitit = pytest.importorskip("submitit")
    given = {"partition": "h100", "account": "me", "qos": "high", "constraint": "nvlink"}
    more = ("exclusive", "mail-type=END")
    options = replace(
        SLURM, mem="64G", sbatch=more, setup=("module load cuda",), array_parallelism=4, **given
    )
    shape = Shape(nodes=2, gpus_per_node=8, cpus_per_task=0, minutes=30)
    made = parameters(shape, options, "harness-1")
    text = submitit.slurm.slurm._make_sbatch_string("true", "folder", map_count=9, **made)
    others = (
        "mem=64G nodes=2 gpus-per-node=8 time=30 ntasks-per-node=1 job-name=harness-1 array=0-8%4 "
        "requeue"
    )
    for line in (*(f"{key}={value}" for key, value in given.items()), *more, *others.split()):
        assert f"#SBATCH --{line}\n" in text
    assert "\nmodule load cuda\n" in text
    assert "wckey" not in text
    assert "srun --unbuffered" in text
    assert "--kill-on-bad-exit=1" in text
    once = parameters(shape, replace(options, max_requeues=0), "harness-1")
    assert once["additional_parameters"]["no-requeue"] is True
