"""A step of a whole job: the slowest GPU, and what stages send each other."""

import pytest
from msgspec.structs import replace

from advisor.answer.evaluation import TimeBreakdown
from advisor.frameworks.megatron.setting import NONE
from advisor.hardware.calibration import load_calibration
from advisor.hardware.catalogue import load_gpu
from advisor.job.job import Job, JobConfig
from advisor.job.layout import ParallelLayout
from advisor.models.presets import load_model
from advisor.search.evaluate import Evaluator
from advisor.time.network.links import link, neighbour_link
from advisor.time.network.scale import waiting_share

H100 = load_gpu("H100")
CALIBRATION = replace(load_calibration(H100), speed_spread=0.0)
LAYOUT = ParallelLayout(tensor_model_parallel_size=8, pipeline_model_parallel_size=2)
BATCH = 16


def step(layout: ParallelLayout = LAYOUT, spread: float = 0.0) -> TimeBreakdown:
    config = JobConfig(seq_length=4096, micro_batch_size=1, global_batch_size=BATCH)
    gpus = layout.world_size
    job = Job(model=load_model("llama3_8b"), layout=layout, config=config, gpu=H100, num_gpus=gpus)
    return Evaluator(job, replace(CALIBRATION, speed_spread=spread)).evaluate(NONE).time_seconds


def test_all_ranks_wait_for_the_slowest() -> None:
    even, uneven = step(), step(spread=0.02)
    work = even.total - even.optimizer
    assert uneven.total - even.total == pytest.approx(work * waiting_share(16, 0.02))
    assert uneven.optimizer == even.optimizer
    assert uneven.exposed_communication > even.exposed_communication


def test_stage_outputs_in_parts_are_gathered_where_they_arrive() -> None:
    parts = replace(LAYOUT, scatter_gather_tensors_in_pipeline=True)
    hidden = 4096 * 4096 * 2
    out = neighbour_link(H100, CALIBRATION, 16)
    inside = link(H100, CALIBRATION, 8, 1)
    first, passing = (
        inside.latency_seconds + inside.ring_seconds,
        hidden * 7 / 8 / inside.bytes_per_second,
    )
    gathered = first + passing + (inside.ramp * first * passing) ** 0.5
    less = 2 * (hidden * 7 / 8 / out.bytes_per_second - gathered)
    # Once a microbatch on the slowest stage, and once on the other while the pipeline fills.
    assert step().total - step(parts).total == pytest.approx((BATCH + 1) * less)


def test_with_sequence_parallelism_they_are_parts_already() -> None:
    cut = replace(LAYOUT, sequence_parallel=True)
    assert step(cut) == step(replace(cut, scatter_gather_tensors_in_pipeline=True))
