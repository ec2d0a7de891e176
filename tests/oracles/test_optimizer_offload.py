"""What Megatron's Adam leaves on the GPU when it works on the host, next to what we predict.

Megatron's own HybridDeviceOptimizer and DistributedOptimizer run: what is on the GPU are fake
tensors, and what they move to the host or make there are real ones. Copies between the two, and
Transformer Engine's FusedAdam, are stand-ins: what a copy takes on the GPU is not seen here.
"""

import gc
from collections.abc import Mapping
from typing import Any
from unittest import mock

import pytest

from advisor.base.dtypes import DType
from advisor.job.job import JobConfig

pytest.importorskip("megatron.core")

import torch
from megatron.core import optimizer as megatron_optimizer
from megatron.core.optimizer import OptimizerConfig
from torch.overrides import TorchFunctionMode

from advisor.frameworks.megatron.host_optimizer import held_on_gpu, taken_by_step
from harness.backends.megatron_core.fake.meter import LiveBytes
from harness.backends.megatron_core.fake.without_gpu import FlashLikeAttention, megatron_without_gpu
from harness.backends.megatron_core.model import transformer_config
from harness.measure.memory import storage_bytes
from tests.advisor.jobs import job_config
from tests.oracles.megatron import OracleCase
from tests.oracles.test_precision_aware import (
    DATA_PARALLEL,
    SCALARS,
    _FusedAdam,
    _Training,
    _transformer_engine,
)

CASE = OracleCase(
    num_layers=2,
    hidden_size=256,
    ffn_hidden_size=512,
    num_attention_heads=4,
    seq_length=8,
    data_parallel_size=DATA_PARALLEL,
)
ROTARY = CASE.hidden_size // CASE.num_attention_heads // 2 * DType.FP32.itemsize
"""Bytes of the rotary embedding's frequencies, which are no buffer of the model."""
LARGEST = CASE.vocab_size * CASE.hidden_size
"""Elements of the embedding, and of the output layer."""


class _Host(TorchFunctionMode):
    """Tensors that go to the host, or are made pinned there, are real ones."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func == torch.Tensor.is_cuda.__get__:
            return args[0].is_meta
        if func is torch.Tensor.cpu:
            return _on_host(args[0].shape, args[0].dtype)
        if kwargs.get("pin_memory"):
            return _on_host(args[0], kwargs["dtype"])
        if func is torch.Tensor.pin_memory:
            return args[0]
        if func is torch.Tensor.copy_ and args[0].is_meta != args[1].is_meta:
            return args[0]
        return func(*args, **kwargs)


def _on_host(shape: torch.Size, dtype: torch.dtype) -> torch.Tensor:
    with torch._C.DisableTorchFunction():
        return torch.zeros(shape, dtype=dtype)


def _held_and_taken(config: JobConfig, case: OracleCase = CASE) -> tuple[int, int, int]:
    """Elements of this rank's shard, bytes of its optimizer on the GPU, and what the step takes."""
    case = case.changed(grad_reduce_in_fp32=config.main_grads_dtype is DType.FP32)
    with (
        megatron_without_gpu(case),
        _transformer_engine(_FusedAdam),
        mock.patch.object(megatron_optimizer, "CPUAdam", _FusedAdam),
        _Host(),
        LiveBytes() as meter,
    ):
        _Training.options = OptimizerConfig(
            optimizer="adam",
            lr=1e-3,
            bf16=True,
            params_dtype=torch.bfloat16,
            use_distributed_optimizer=case.use_distributed_optimizer,
            use_precision_aware_optimizer=config.use_precision_aware_optimizer,
            exp_avg_dtype=torch.bfloat16 if config.use_precision_aware_optimizer else torch.float32,
            optimizer_cpu_offload=True,
            optimizer_offload_fraction=config.optimizer_offload_fraction,
            overlap_cpu_optimizer_d2h_h2d=True,
        )
        training = _Training(case, transformer_config(case), FlashLikeAttention)
        gc.collect()  # the optimizer of whole parameters, which that of the shard replaced
        training.optimizer.step()  # makes the states
        training.optimizer.zero_grad()
        resident, modules = training.resident(), [chunk.module for chunk in training.model]
        others = [*resident["weights"], *resident["gradients"], *modules[0].buffers()]
        between = meter.peak_bytes = meter.live_bytes
        training.optimizer.step()
        taken = meter.peak_bytes - between
        elements = sum(p.numel() for module in modules for p in module.parameters())
        training.close()
    return elements // DATA_PARALLEL, between - storage_bytes(others) - ROTARY, taken


@pytest.mark.parametrize(
    ("aware", "gradients", "fraction", "whole"),
    [
        (True, DType.FP32, 1.0, 0),
        (True, DType.BF16, 1.0, 0),
        (True, DType.FP32, 0.0, 12),
        (True, DType.BF16, 0.0, 12 + 4),
        (True, DType.BF16, 0.2, None),
        (False, DType.FP32, 1.0, 4),
        (False, DType.BF16, 1.0, 4),
        (False, DType.FP32, 0.2, None),
        (False, DType.BF16, 0.7, None),
    ],
)
def test_bytes_on_the_gpu(aware, gradients, fraction, whole) -> None:
    """Of all or nothing to the byte; of a part at most what is predicted, which whole parameters
    undercut by less than one of them."""
    config = job_config(
        *(8, 1, DATA_PARALLEL),
        main_grads_dtype=gradients,
        use_precision_aware_optimizer=aware,
        exp_avg_dtype=DType.BF16 if aware else DType.FP32,
        optimizer_cpu_offload=True,
        optimizer_offload_fraction=fraction,
    )
    shard, held, taken = _held_and_taken(config)
    predicted, step = held_on_gpu(shard, config), taken_by_step([shard], LARGEST, config)
    if whole is None:
        per_element = (3 + (gradients is DType.BF16) if aware else 2) * DType.FP32.itemsize
        assert 0 <= predicted - held < LARGEST * per_element
    else:
        assert predicted == whole * shard
        assert 0 <= held - predicted <= SCALARS
    assert taken <= step + SCALARS
    if not aware or (gradients is DType.BF16 and not fraction):
        assert step <= taken  # of the rest, copies between GPU and host take as much


def test_without_a_distributed_optimizer_its_step_fails() -> None:
    """It looks for the parameters that the main parameters have replaced."""
    config = JobConfig(seq_length=8, micro_batch_size=1, global_batch_size=DATA_PARALLEL)
    with pytest.raises(KeyError):
        _held_and_taken(config, CASE.changed(use_distributed_optimizer=False))
