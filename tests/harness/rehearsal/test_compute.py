"""Seconds of a rehearsed rank: a step of its own, and copies for collectives."""

import pytest
from msgspec.structs import asdict

from advisor.frameworks.registry import parts_of
from advisor.hardware.calibration import load_calibration
from advisor.hardware.catalogue import load_gpu
from advisor.job.job import Job, JobConfig
from advisor.job.layout import ParallelLayout
from advisor.layers.operators import Collective, CollectiveKind, Group
from advisor.models.presets import load_model
from advisor.search.evaluate import Evaluator
from advisor.time.rank_links import network
from harness.rehearsal.prediction import Copies, rank_seconds

GPU = load_gpu("H100")
CALIBRATION = load_calibration(GPU)
MODEL = load_model("llama3_8b")
CONFIG = JobConfig(seq_length=8192, micro_batch_size=1, global_batch_size=8)


def evaluator(layout: ParallelLayout) -> Evaluator:
    job = Job(model=MODEL, layout=layout, config=CONFIG, gpu=GPU, num_gpus=layout.world_size)
    return Evaluator(job, CALIBRATION)


def test_one_rank_alone_takes_its_step_without_the_fixed_cost_of_a_loop() -> None:
    alone = evaluator(ParallelLayout())
    for spec in ("none", "full:uniform:1"):
        setting = parts_of(alone.job.config.framework).settings.parse(spec)
        step = alone.evaluate(setting).step_time_seconds
        assert rank_seconds(alone, spec, 0) == pytest.approx(step - CALIBRATION.step_seconds)


def test_stages_have_no_bubble_and_send_nothing() -> None:
    stages = evaluator(ParallelLayout(pipeline_model_parallel_size=2))
    both = sum(rank_seconds(stages, "none", stage) for stage in (0, 1))
    assert both == pytest.approx(rank_seconds(evaluator(ParallelLayout()), "none", 0), rel=1e-9)


@pytest.mark.parametrize(
    ("kind", "share"),
    [
        (CollectiveKind.ALL_GATHER, 1),
        (CollectiveKind.ALL_TO_ALL, 1),
        (CollectiveKind.REDUCE_SCATTER, 0.25),
        (CollectiveKind.ALL_REDUCE, 0),
    ],
)
def test_a_collective_is_the_copy_that_a_fake_group_makes(kind, share) -> None:
    layout = ParallelLayout(tensor_model_parallel_size=4, sequence_parallel=True)
    rates = network(layout, GPU, CALIBRATION, MODEL)
    copies = Copies(**asdict(rates), memory_bytes_per_second=2e12)
    assert copies.seconds(Collective(kind, Group.TENSOR, 10**9)) == pytest.approx(share * 1e-3)
    assert copies.seconds(Collective(kind, Group.CONTEXT, 10**9)) == 0, "one rank alone"
