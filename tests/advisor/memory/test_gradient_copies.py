"""fp32 copies of 16-bit gradients in the optimizer's step, and when they are the peak."""

from typing import Any

import pytest
from msgspec.structs import replace

from advisor.base.dtypes import DType
from advisor.job.job import Fp8Recipe, JobConfig
from advisor.memory.activations import ActivationPeak
from advisor.memory.static import fp32_states, gradient_copies, static_memory

CONFIG = JobConfig(seq_length=8, micro_batch_size=1, global_batch_size=1)
AWARE = replace(CONFIG, use_precision_aware_optimizer=True)
PEAK = ActivationPeak(
    kept=600, transient=400, in_flight=(2, 1), phase="backward", forward=900, backward=1000
)


@pytest.mark.parametrize(
    ("config", "copies"),
    [
        (CONFIG, 0),
        (replace(CONFIG, main_grads_dtype=DType.BF16), 500),
        (replace(AWARE, main_grads_dtype=DType.BF16), 0),
        (replace(AWARE, main_grads_dtype=DType.BF16, fp8_recipe=Fp8Recipe.TENSORWISE), 500),
        (replace(AWARE, fp8_recipe=Fp8Recipe.TENSORWISE), 0),
    ],
)
def test_one_fp32_copy_of_the_shard(config: JobConfig, copies: int) -> None:
    static = static_memory(1000, 8, config.main_grads_dtype, config.optimizer_bytes)
    assert gradient_copies(static, config) == copies


@pytest.mark.parametrize(
    ("fields", "num_bytes"),
    [
        ({}, 0),
        ({"exp_avg_dtype": DType.BF16, "exp_avg_sq_dtype": DType.BF16}, 0),
        (
            {
                "exp_avg_dtype": DType.BF16,
                "exp_avg_sq_dtype": DType.BF16,
                "transformer_engine_version": "2.12",
            },
            8,
        ),
        ({"exp_avg_dtype": DType.BF16}, 4),
        ({"exp_avg_dtype": DType.FLOAT8, "exp_avg_sq_dtype": DType.FP16}, 8),
        ({"main_params_dtype": DType.FP16}, 4),
    ],
)
def test_fp32_copies_of_narrower_states(fields: dict[str, Any], num_bytes: int) -> None:
    assert fp32_states(replace(AWARE, **fields)) == num_bytes


def test_the_larger_of_passes_and_optimizer_is_the_peak() -> None:
    assert PEAK.or_optimizer_step(1000) is PEAK
    step = PEAK.or_optimizer_step(1001)
    assert (step.kept, step.transient, step.total) == (0, 1001, 1001)
    assert step.in_flight == (0, 0)
    assert step.phase == "optimizer step: fp32 copies of the gradients"
    assert (step.forward, step.backward) == (900, 1000)
