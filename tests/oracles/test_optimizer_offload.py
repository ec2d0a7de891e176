"""What Megatron's optimizer leaves on the GPU when it works on the host, next to what we predict.

Megatron's own HybridDeviceOptimizer and DistributedOptimizer run on fake tensors of the GPU and on
real ones of the host.
"""

import gc
from collections.abc import Mapping
from typing import Any
from unittest import mock

import pytest

pytest.importorskip("megatron.core")

import torch
from megatron.core import optimizer as megatron_optimizer
from megatron.core.optimizer import OptimizerConfig
from torch.overrides import TorchFunctionMode

from harness.backends.megatron_core.fake.meter import LiveBytes
from harness.backends.megatron_core.fake.without_gpu import FlashLikeAttention, megatron_without_gpu
from harness.backends.megatron_core.model import transformer_config
from tests.oracles.megatron import OracleCase
from tests.oracles.test_precision_aware import _FusedAdam, _Training, _transformer_engine

pytestmark = [pytest.mark.oracle, pytest.mark.filterwarnings("ignore")]

CASE = OracleCase(
    num_layers=2,
    hidden_size=256,
    ffn_hidden_size=512,
    num_attention_heads=4,
    seq_length=8,
    vocab_size=1024,
    data_parallel_size=4,
    use_distributed_optimizer=True,
)


class _Host(TorchFunctionMode):
    """Tensors that Megatron moves to the host, or makes there, are real ones."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func == torch.Tensor.is_cuda.__get__:
            return args[0].is_meta
        if func is torch.Tensor.cpu or kwargs.get("pin_memory"):
            like = args[0] if func is torch.Tensor.cpu else None
            shape, dtype = (like.shape, like.dtype) if func is torch.Tensor.cpu else (args[0], kwargs["dtype"])
            with torch._C.DisableTorchFunction():
                return torch.zeros(shape, dtype=dtype)
        if func is torch.Tensor.pin_memory:
            return args[0]
        if func is torch.Tensor.copy_ and args[0].is_meta != args[1].is_meta:
            return args[0]
        return func(*args, **kwargs)


def measure(aware, fraction, reduces_in_fp32):
    case = CASE.changed(grad_reduce_in_fp32=reduces_in_fp32)
    meter = LiveBytes()
    with (
        megatron_without_gpu(case),
        _transformer_engine(_FusedAdam),
        mock.patch.object(megatron_optimizer, "CPUAdam", _FusedAdam),
        _Host(),
        meter,
    ):
        _Training.options = OptimizerConfig(
            optimizer="adam",
            lr=1e-3,
            bf16=True,
            params_dtype=torch.bfloat16,
            use_distributed_optimizer=True,
            use_precision_aware_optimizer=aware,
            optimizer_cpu_offload=True,
            optimizer_offload_fraction=fraction,
            overlap_cpu_optimizer_d2h_h2d=True,
        )
        training = _Training(case, transformer_config(case), FlashLikeAttention)
        out = []
        training.optimizer.step()
        training.optimizer.zero_grad()
        gc.collect()
        resident = training.resident()
        parts = {n: sum({t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t in ts}.values()) for n, ts in resident.items() if n != "optimizer"}
        held = meter.live_bytes
        gc.collect()
        meter.peak_bytes = meter.live_bytes
        training.optimizer.step()
        peak = meter.peak_bytes
        training.optimizer.zero_grad()
        after = meter.live_bytes
        elements = sum(p.numel() for c in training.model for p in c.parameters())
        biggest = max(p.numel() for c in training.model for p in c.parameters())
        training.close()
    shard = elements // 4
    print(aware, fraction, reduces_in_fp32, "held/param", (held - parts["weights"] - parts["gradients"]) / shard, "step", (peak - held) / shard, "after", (after - held) / shard, "largest", biggest / shard)


def test_it():
    for aware in (True, False):
        for fraction in (1.0, 0.5, 0.25, 0.0):
            for r in (True, False):
                measure(aware, fraction, r)
