"""ZeRO stages: exact bytes of Llama-3 8B on eight ranks."""

import json

import pytest

from advisor.evaluate import rank_shape
from advisor.frameworks.base import FixedMemory
from advisor.frameworks.deepspeed.config import STAGES
from advisor.frameworks.torch.setting import parse_setting
from advisor.layout import DataParallelSharding
from advisor.pipeline import pipeline_stages
from tests.advisor.frameworks.torch.jobs import stack_job

ELEMENTS = 8_030_261_248  # embedding and head are not tied


def memory(sharding: DataParallelSharding) -> FixedMemory:
    override = (f"layout.data_parallel_sharding={sharding}",)
    stack, job = stack_job("deepspeed", overrides=override)
    (chunks,) = pipeline_stages(job.model, job.layout)
    return stack.fixed_memory(job, rank_shape(job), chunks)


@pytest.mark.parametrize(("sharding", "weights", "gradients", "optimizer"), [
    (DataParallelSharding.NONE, 2, 2, 12),
    (DataParallelSharding.OPTIMIZER, 2, 2, 12 / 8),
    (DataParallelSharding.GRADIENTS, 2, 2 / 8, 12 / 8),
    (DataParallelSharding.FULL, 2 / 8, 2 / 8, 12 / 8),
])  # fmt: skip
def test_bytes_a_parameter_by_stage(
    sharding: DataParallelSharding, weights: float, gradients: float, optimizer: float
) -> None:
    static = memory(sharding).static
    assert static.weights == weights * ELEMENTS
    assert static.gradients == gradients * ELEMENTS
    assert static.optimizer == optimizer * ELEMENTS


@pytest.mark.parametrize(("sharding", "buckets"), [
    (DataParallelSharding.NONE, 0), (DataParallelSharding.OPTIMIZER, 1),
    (DataParallelSharding.GRADIENTS, 1), (DataParallelSharding.FULL, 2),
])  # fmt: skip
def test_reduce_buckets(sharding: DataParallelSharding, buckets: int) -> None:
    named = {term.name: term.num_bytes for term in memory(sharding).buffers}
    assert named.get("reduce buckets", 0) == buckets * 500_000_000 * 2


def test_stage_3_gathers_a_layer_and_what_it_prefetches() -> None:
    found = memory(DataParallelSharding.FULL).working_set
    assert found is not None
    layer = (ELEMENTS - 2 * 128256 * 4096 - 4096) // 32
    assert found.layer.backward == (layer + 50_000_000) * 2
    assert found.head.forward == 128256 * 4096 * 2
    lower = memory(DataParallelSharding.GRADIENTS).working_set
    assert lower is not None
    assert lower.layer.backward == 0
    assert lower.step == ELEMENTS * 4 // 8


@pytest.mark.parametrize(("spec", "section"), [
    ("none", None), ("full", "activation_checkpointing"), ("uniform:2", "pipeline"),
    ("uniform:2+no_reentrant", "pipeline"),
])  # fmt: skip
def test_sections_of_the_configuration(spec: str, section: str | None) -> None:
    override = ("layout.data_parallel_sharding=optimizer",)
    stack, job = stack_job("deepspeed", overrides=override)
    written = json.loads(stack.setting_flags(parse_setting(spec), job))
    assert written["zero_optimization"] == {"stage": STAGES[DataParallelSharding.OPTIMIZER]}
    found = {"activation_checkpointing", "pipeline"} & written.keys()
    assert found == ({section} if section else set())
    if section == "pipeline":
        assert written["pipeline"]["activation_checkpoint_interval"] == 2
        assert written["pipeline"]["use_reentrant"] == ("no_reentrant" not in spec)
