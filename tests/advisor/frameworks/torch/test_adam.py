"""Weights, gradients and Adam of one device, by hand; quantized moments from their sources."""

import pytest
from msgspec.structs import replace

from advisor.base.dtypes import DType
from advisor.base.errors import UserError
from advisor.frameworks.registry import parts_of
from advisor.frameworks.torch.memory_model import adam_memory
from advisor.job.job import Job, JobConfig, Optimizer, OptimizerImplementation
from advisor.job.pipeline_split import pipeline_stages
from advisor.memory.static import stage_elements
from advisor.search.rank_shape import rank_shape
from tests.advisor.frameworks.torch.jobs import stack_job

ELEMENTS = 8_030_261_248
EMBEDDING = 128256 * 4096


def _alone(framework: str, *overrides: str, version: str = "") -> Job:
    _, job = stack_job(
        framework, gpus="1xH200", framework_version=version or None, overrides=overrides
    )
    return job


def _bytes_a_parameter(framework: str, *overrides: str, version: str = "") -> float:
    job = _alone(framework, *overrides, version=version)
    shape = rank_shape(job)
    ((chunk,),) = pipeline_stages(job.model, job.layout)
    fixed = parts_of(framework).memory.fixed_memory(job, shape, (chunk,))
    assert stage_elements(shape, (chunk,)) == ELEMENTS
    assert job.num_microbatches > 1  # so that gradients are there throughout
    return fixed.static.total / ELEMENTS


@pytest.mark.parametrize(
    ("framework", "version", "overrides", "each"),
    [
        ("huggingface", "5", (), 8),
        ("huggingface", "4", (), 16),
        ("huggingface", "5", ("job.weights_dtype=fp32",), 16),
        ("huggingface", "4", ("job.weights_dtype=bf16",), 8),
        ("fsdp2", "", (), 8),
        ("torchtitan", "", (), 16),
    ],
)
def test_one_device(framework: str, version: str, overrides: tuple[str, ...], each: int) -> None:
    """A 16-bit checkpoint has 16-bit weights, gradients and moments; fp32 ones under autocast are
    fp32 throughout."""
    assert _bytes_a_parameter(framework, *overrides, version=version) == each


def _states(optimizer: Optimizer, dtype: DType = DType.BF16) -> int:
    job = _alone("huggingface")
    ((chunk,),) = pipeline_stages(job.model, job.layout)
    config = replace(job.config, optimizer=optimizer)
    return adam_memory(rank_shape(job), (chunk,), config, dtype).states


def test_bitsandbytes_leaves_the_embedding_in_fp32() -> None:
    """A byte an element and moment, four bytes a block of 256; norms have 4096 elements."""
    quantized = ELEMENTS - EMBEDDING
    expected = 2 * (quantized + quantized // 256 * 4) + 8 * EMBEDDING
    assert _states(Optimizer.BITSANDBYTES_8BIT) == expected


def test_torchao_quantizes_the_embedding_too() -> None:
    assert _states(Optimizer.TORCHAO_8BIT) == 2 * (ELEMENTS + ELEMENTS // 256 * 4)
    assert _states(Optimizer.TORCHAO_4BIT) == 2 * (ELEMENTS // 2 + ELEMENTS // 128 * 4)


def test_foreach_takes_a_root_of_all_second_moments() -> None:
    job = _alone("huggingface")
    ((chunk,),) = pipeline_stages(job.model, job.layout)
    config = replace(job.config, optimizer_implementation=OptimizerImplementation.FOREACH)
    assert adam_memory(rank_shape(job), (chunk,), config, DType.FP32).step == 4 * ELEMENTS
    half = adam_memory(
        rank_shape(job), (chunk,), config, DType.BF16, ranks=8, elements=ELEMENTS // 8
    )
    assert half.step == 2 * ELEMENTS // 8


def test_frameworks_that_have_no_such_option_say_so() -> None:
    for override in (
        "job.optimizer=adamw_8bit",
        "job.weights_dtype=bf16",
        "job.use_liger_kernel=true",
        "job.torch_compile=true",
    ):
        with pytest.raises(UserError, match=override.partition("=")[0]):
            stack_job("megatron_lm", overrides=(override,))


def test_weights_are_fp32_or_bf16() -> None:
    with pytest.raises(UserError, match=r"job\.weights_dtype"):
        JobConfig(seq_length=1, micro_batch_size=1, global_batch_size=1, weights_dtype=DType.FLOAT8)


def test_steps_in_the_backward_take_one_microbatch() -> None:
    for batch, refused in ((16, False), (32, True)):
        stack, job = stack_job(
            "fsdp2", global_batch_size=batch, overrides=("job.optimizer_in_backward=true",)
        )
        rules = {
            rejection.rule for rejection in stack.settings.check(stack.settings.parse("full"), job)
        }
        assert rules == ({"optimizer_in_backward.accumulation"} if refused else set())


def test_flat_parameters_are_printed_as_fsdp1() -> None:
    stack, job = stack_job("huggingface", overrides=("job.flat_parameters=true",))
    assert '"version": 1' in stack.spelling.layout_flags(job)
    assert "fsdp_sharding_strategy: FULL_SHARD" in stack.spelling.config_file(
        stack.settings.parse("full"), job
    )
