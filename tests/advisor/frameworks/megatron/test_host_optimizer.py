"""What of Megatron's Adam stays on the GPU when it works on the host; the oracle has the rest."""

from typing import Any

import pytest

from advisor.base.dtypes import DType
from advisor.base.errors import UserError
from advisor.frameworks.megatron.host_optimizer import held_on_gpu, taken_by_step
from advisor.job.job import JobConfig
from advisor.request.request import Request
from advisor.search.advise import advise

ON_HOST: dict[str, Any] = {"optimizer_cpu_offload": True}
AWARE: dict[str, Any] = {**ON_HOST, "use_precision_aware_optimizer": True}
NARROW: dict[str, Any] = {"main_grads_dtype": DType.BF16, "exp_avg_dtype": DType.BF16}


@pytest.mark.parametrize(
    ("fields", "held", "taken"),
    [
        (AWARE, 0, 400),
        (AWARE | NARROW, 0, 400),
        (AWARE | {"optimizer_offload_fraction": 0.75}, 12 * 250, 400),
        (AWARE | NARROW | {"optimizer_offload_fraction": 0.75}, 16 * 250, 400),
        (ON_HOST, 4 * 1000, 0),
        (ON_HOST | {"main_grads_dtype": DType.BF16}, 4 * 1000, 4 * 1100),
        (ON_HOST | {"optimizer_offload_fraction": 0.75}, 4 * 1000 + 8 * 250, 0),
    ],
)
def test_bytes_of_a_shard(fields: dict[str, Any], held: int, taken: int) -> None:
    config = JobConfig(seq_length=8, micro_batch_size=1, global_batch_size=1, **fields)
    assert held_on_gpu(1000, config) == held
    assert taken_by_step([1000, 100], 100, config) == taken


BRIDGE: dict[str, Any] = {
    "model": "llama3_8b",
    "gpus": "8xH100",
    "framework": "megatron_bridge",
    "recompute": ("full:uniform:1",),
    "quick": True,
}


def _optimizer_bytes(*overrides: str) -> int:
    plain = ("job.use_precision_aware_optimizer=false", *overrides)
    return (
        advise(Request(overrides=plain, **BRIDGE))
        .candidates[0]
        .evaluation.stages[0]
        .memory_bytes.optimizer
    )


def test_a_job_of_bridge_without_the_precision_aware_optimizer_moves_moments_alone() -> None:
    assert _optimizer_bytes("job.optimizer_cpu_offload=true") * 3 == _optimizer_bytes()


def test_the_optimizer_on_the_host_needs_a_distributed_one() -> None:
    with pytest.raises(UserError, match="use_distributed_optimizer=true"):
        _optimizer_bytes("job.optimizer_cpu_offload=true", "layout.use_distributed_optimizer=false")
