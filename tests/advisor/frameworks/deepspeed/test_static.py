"""ZeRO stages: exact bytes of Llama-3 8B on eight ranks."""

import json
import shlex

import pytest

from advisor.frameworks.deepspeed.config_file import STAGES
from advisor.frameworks.part_types import FixedMemory
from advisor.frameworks.torch.setting import parse_setting
from advisor.hardware.calibration import load_calibration
from advisor.job.layout import DataParallelSharding
from advisor.job.pipeline_split import pipeline_stages
from advisor.search.rank_shape import rank_shape
from advisor.time.machine import machine
from tests.advisor.frameworks.torch.jobs import stack_job
from tests.advisor.jobs import evaluator_of

ELEMENTS = 8_030_261_248  # embedding and head are not tied
END = 128256 * 4096
LIVE = 2 * 10**9
"""Bytes of max_live_parameters."""


def memory(sharding: DataParallelSharding, *more: str) -> FixedMemory:
    override = (f"layout.data_parallel_sharding={sharding}", *more)
    stack, job = stack_job("deepspeed", overrides=override)
    (chunks,) = pipeline_stages(job.model, job.layout)
    return stack.memory.fixed_memory(job, rank_shape(job), chunks)


@pytest.mark.parametrize(
    ("sharding", "weights", "gradients", "optimizer"),
    [
        (DataParallelSharding.NONE, 2, 2, 12),
        (DataParallelSharding.OPTIMIZER, 2, 2, 12 / 8),
        (DataParallelSharding.GRADIENTS, 2, 2 / 8, 12 / 8),
        (DataParallelSharding.FULL, 2 / 8, 2 / 8, 12 / 8),
    ],
)
def test_bytes_a_parameter_by_stage(sharding, weights, gradients, optimizer) -> None:
    static = memory(sharding).static
    gathered = LIVE if sharding is DataParallelSharding.FULL else 0
    assert static.weights == weights * ELEMENTS + gathered
    assert static.gradients == gradients * ELEMENTS
    assert static.optimizer == optimizer * ELEMENTS


@pytest.mark.parametrize(
    ("sharding", "buckets"),
    [
        (DataParallelSharding.NONE, 0),
        (DataParallelSharding.OPTIMIZER, 1),
        (DataParallelSharding.GRADIENTS, 1),
        (DataParallelSharding.FULL, 1),
    ],
)
def test_reduce_buckets(sharding: DataParallelSharding, buckets: int) -> None:
    named = {term.name: term.num_bytes for term in memory(sharding).buffers}
    assert named.get("reduce bucket", 0) == buckets * 500_000_000 * 2


def test_stage_3_has_all_live_parameters_gathered() -> None:
    """Run in tests/oracles/test_zero_gathering.py; a small model is gathered whole, and the step is
    after all are gone."""
    found = memory(DataParallelSharding.FULL).working_set
    assert found.embedding.stays == LIVE
    assert found.step == ELEMENTS * 4 // 8 - LIVE
    options = ("model.num_layers=1", "model.vocab_size=256")
    small = memory(DataParallelSharding.FULL, *options)
    layer = (ELEMENTS - 2 * END - 4096) // 32
    assert small.working_set.embedding.stays == 2 * (layer + (2 * 256 + 1) * 4096)
    assert small.pools[0].num_bytes == 0
    lower = memory(DataParallelSharding.GRADIENTS).working_set
    assert lower.embedding.stays == 0
    assert lower.step == ELEMENTS * 4 // 8


def test_what_streams_of_stage_3_keep() -> None:
    """16-bit buckets of 5e8: one sent in order, two that are not free; the embedding's all-gather,
    which comes on top of the live parameters."""
    named = {term.name: term.num_bytes for term in memory(DataParallelSharding.FULL).pools}
    assert list(named.values()) == [END * 2, 10**9, 2 * 10**9]
    assert memory(DataParallelSharding.GRADIENTS).pools == ()


def test_ligers_loss_has_the_output_layer_gathered_throughout() -> None:
    """Next to the embedding: more elements than are else live."""
    options = ("model.transformer_impl=transformers", "job.use_liger_kernel=true")
    found = memory(DataParallelSharding.FULL, *options).working_set
    assert found.embedding.stays == 2 * END * 2 > LIVE


@pytest.mark.parametrize(
    ("spec", "section"),
    [
        ("none", None),
        ("full", "activation_checkpointing"),
        ("uniform:2", "pipeline"),
        ("uniform:2+no_reentrant", "pipeline"),
    ],
)
def test_sections_of_the_configuration(spec: str, section: str | None) -> None:
    override = ("layout.data_parallel_sharding=optimizer",)
    stack, job = stack_job("deepspeed", overrides=override)
    written = json.loads(stack.spelling.setting_flags(parse_setting(spec), job))
    assert written["zero_optimization"] == {"stage": STAGES[DataParallelSharding.OPTIMIZER]}
    found = {"activation_checkpointing", "pipeline"} & written.keys()
    assert found == ({section} if section else set())
    if section == "pipeline":
        assert written["pipeline"]["activation_checkpoint_interval"] == 2
        assert written["pipeline"]["use_reentrant"] == ("no_reentrant" not in spec)


OFFLOAD = "job.optimizer_cpu_offload=true"


@pytest.mark.parametrize(
    ("sharding", "gradients"),
    [
        (DataParallelSharding.OPTIMIZER, 2),
        (DataParallelSharding.GRADIENTS, 0),
        (DataParallelSharding.FULL, 0),
    ],
)
def test_zero_offload_leaves_weights_alone(sharding, gradients) -> None:
    found, before = memory(sharding, OFFLOAD), memory(sharding)
    assert found.static.weights == before.static.weights
    assert found.static.gradients == gradients * ELEMENTS
    assert found.static.optimizer == 0
    assert found.working_set.step == -found.working_set.embedding.stays
    named = {term.name: term.num_bytes for term in found.buffers}
    largest = 0 if sharding is DataParallelSharding.FULL else 128256 * 4096 * 2
    assert named.get("gradient in transfer", 0) == largest


def test_parameters_on_the_host_come_back_while_they_are_live() -> None:
    found = memory(DataParallelSharding.FULL, OFFLOAD, "job.param_cpu_offload=true")
    assert found.static.total == found.working_set.embedding.stays == LIVE


def test_a_ratio_moves_whole_sub_groups() -> None:
    """A shard of 8.03e9 parameters is nine groups of up to 1e9: of a half int(4.5) stay."""
    full = ("layout.data_parallel_sharding=full", OFFLOAD, "job.optimizer_offload_fraction=0.5")
    stack, job = stack_job("deepspeed", gpus="1xH200", overrides=full)
    (chunks,) = pipeline_stages(job.model, job.layout)
    static = stack.memory.fixed_memory(job, rank_shape(job), chunks).static
    assert (static.gradients, static.optimizer) == (4 * 4_000_000_000, 12 * 4_000_000_000)
    more = memory(DataParallelSharding.FULL, OFFLOAD, "job.optimizer_offload_fraction=0.9")
    assert more.static.optimizer == 0  # int(0.1 x 2)


def test_bytes_on_the_host_are_reported() -> None:
    _, job = stack_job("deepspeed", overrides=(OFFLOAD, "job.param_cpu_offload=true"))
    found = evaluator_of(job).evaluate(parse_setting("none"))
    assert found.host_bytes == pytest.approx(ELEMENTS / 8 * (16 + 2 + 2), rel=1e-6)


def test_time_of_the_host() -> None:
    """A step on the host takes longer; sums of gradients there longer still."""
    times = {}
    for batch in (16, 64):
        for more in ((), (OFFLOAD,)):
            override = ("layout.data_parallel_sharding=gradients", *more)
            _, job = stack_job("deepspeed", global_batch_size=batch, overrides=override)
            found = evaluator_of(job).evaluate(parse_setting("full"))
            times[batch, bool(more)] = found.time_seconds
    shard = ELEMENTS / 8
    link = machine(job.gpu, load_calibration(job.gpu), job.config.precision).host_bytes_per_second
    reached = load_calibration(job.gpu).host_memory_bytes_per_second
    update = shard * (4 + 2) / link + shard * 28 / reached
    more = times[16, True].optimizer - times[16, False].optimizer
    assert 0.95 * update < more < update  # what the device no longer does is 3 % of it
    assert times[16, True].offload == 0.0  # one microbatch goes straight to the host
    assert times[64, True].offload == pytest.approx(7 * shard * 2 / link)


def test_a_hugging_face_model_follows_from_trainer() -> None:
    override = ("layout.data_parallel_sharding=optimizer", "model.transformer_impl=transformers")
    stack, job = stack_job("deepspeed", overrides=override)
    words = shlex.split(stack.spelling.setting_flags(parse_setting("full"), job))
    assert words[0] == "--deepspeed"
    assert "activation_checkpointing" not in json.loads(words[1])
    assert words[2:] == [
        "--gradient_checkpointing",
        "True",
        "--gradient_checkpointing_kwargs",
        '{"use_reentrant": false}',
    ]
