"""Megatron-FSDP by strategy, worked out by hand; the class itself is run in tests/oracles."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from advisor.base.errors import UserError
from advisor.frameworks.megatron.supported_jobs import harness_job
from advisor.frameworks.registry import parts_of
from advisor.job.job import Job
from advisor.job.layout import DataParallelSharding
from advisor.job.pipeline_split import pipeline_stages
from advisor.lint.request_from import read_job
from advisor.memory.static import StaticMemory
from advisor.search.rank_shape import rank_shape
from tests.advisor.frameworks.torch.jobs import stack_job

PARAMETERS, ENDS = 8_030_261_248, 2 * 128_256 * 4096 + 4096
"""Of Llama-3 8B, and of its embedding, final norm and output layer."""
SHARD = PARAMETERS // 8


def job_of(sharding: str, *more: str, gpus: str = "8xH100") -> Job:
    """Llama-3 8B on Megatron-LM, main gradients in fp32."""
    own = (f"layout.data_parallel_sharding={sharding}", "job.main_grads_dtype=fp32", *more)
    return stack_job("megatron_lm", gpus=gpus, overrides=own)[1]


def static_of(job: Job) -> StaticMemory:
    """What a rank holds."""
    (chunks,) = pipeline_stages(job.model, job.layout)
    return parts_of("megatron_lm").memory.fixed_memory(job, rank_shape(job), chunks).static


@pytest.mark.parametrize(
    ("sharding", "weights", "gradients", "optimizer"),
    [
        ("no_shard", 2 * PARAMETERS, 4 * PARAMETERS, 12 * PARAMETERS),
        ("optimizer", 2 * PARAMETERS, 4 * PARAMETERS, 12 * SHARD),
        ("gradients", 2 * PARAMETERS, 4 * SHARD, 12 * SHARD),
        ("full", 2 * SHARD + 2 * ENDS, 4 * SHARD, 12 * SHARD),
    ],
)
def test_a_rank_holds_parts_by_strategy(sharding, weights, gradients, optimizer) -> None:
    own = ("layout.tensor_model_parallel_size=1", "layout.context_parallel_size=1")
    found = static_of(job_of(sharding, *own))
    assert found == StaticMemory(weights=weights, gradients=gradients, optimizer=optimizer)


def test_the_harness_does_not_run_it() -> None:
    with pytest.raises(UserError, match="not run by the megatron_core backend"):
        harness_job(job_of("full"))


def test_replicas_share_the_optimizer_alone() -> None:
    """Two replicas of four shards: only outer sharding cuts the states over all ranks."""
    two = job_of("full", "layout.context_parallel_size=1", "layout.data_parallel_replicate_size=2")
    outer = replace(two.layout, outer_dp_sharding_strategy=DataParallelSharding.OPTIMIZER)
    plain, cut = static_of(two), static_of(replace(two, layout=outer))
    assert plain.weights == 2 * (2 * SHARD + ENDS)
    assert (plain.optimizer, cut) == (24 * SHARD, replace(plain, optimizer=12 * SHARD))


SCRIPT = """torchrun --nproc_per_node 8 pretrain_gpt.py --use-distributed-optimizer --bf16
 --micro-batch-size 1 --seq-length 8192 --use-megatron-fsdp --ckpt-format fsdp_dtensor """


@pytest.mark.parametrize(
    ("options", "values"),
    [
        ("", ("data_parallel_sharding=full", "main_grads_dtype=bf16")),
        (
            "--data-parallel-sharding-strategy optim_grads --megatron-fsdp-main-grads-dtype fp32",
            ("data_parallel_sharding=gradients", "main_grads_dtype=fp32"),
        ),
        (
            "--num-distributed-optimizer-instances 2 --outer-dp-sharding-strategy optim",
            ("outer_dp_sharding_strategy=optimizer", "data_parallel_replicate_size=2"),
        ),
        ("--fsdp-double-buffer", ("double_buffers=true",)),
    ],
)
def test_a_script_says_its_strategy(options, values, tmp_path: Path) -> None:
    """In Megatron-LM full sharding is the default; from 0.19 on gradients have the weights' type
    unless their own option says otherwise."""
    script = tmp_path / "train.sh"
    script.write_text(SCRIPT.replace("\n", "") + options)
    found = read_job(str(script), {"gpus": "8xH100", "model": "llama3_8b"}).request.overrides
    names = [text.partition(".")[2] for text in found]
    assert [value for value in values if value not in names] == []


@pytest.mark.parametrize(
    ("framework", "own", "words"),
    [
        ("nemo", "data_parallel_sharding=full", "not modelled for nemo"),
        ("megatron_lm", "outer_dp_sharding_strategy=optimizer", "data_parallel_sharding=full"),
        ("megatron_lm", "data_parallel_replicate_size=3", "must divide the data-parallel ranks"),
    ],
)
def test_what_is_not_modelled_is_one_line(framework, own, words) -> None:
    with pytest.raises(UserError, match=words):
        stack_job(framework, overrides=(f"layout.{own}",))
