"""Runs Megatron Core without a GPU: fake tensors, a fake process group, CUDA's byte behaviour.

The fake tensors are those of torch's meta device: shapes and storages with a size, no data. They
need no Python for most operations, which torch's FakeTensorMode does (four times as slow here).
All patches are undone on exit. What they must achieve: whatever device is named is the meta device;
CUDA's random states do not exist; dropout, RMSNorm and LayerNorm keep what they keep on a GPU; and
functions Megatron hands to torch.compile are one kernel on a GPU, so that only what they return
(or leave saved for the backward pass) takes memory.
"""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any
from unittest.mock import patch

import torch
from megatron.core.distributed import param_and_grad_buffer
from megatron.core.models.common.embeddings.rotary_pos_embedding import RotaryEmbedding
from megatron.core.models.common.embeddings.yarn_rotary_pos_embedding import YarnRotaryEmbedding
from megatron.core.optimizer import clip_grads
from megatron.core.optimizer import optimizer as megatron_optimizer
from megatron.core.tensor_parallel import layers as tensor_parallel_layers
from megatron.core.tensor_parallel import random as megatron_random
from megatron.core.transformer.multi_token_prediction import MTPLossLoggingHelper
from torch.utils._device import _device_constructors

from harness.backends.megatron_core import cpu, model, world
from harness.backends.megatron_core.case import MegatronCase
from harness.backends.megatron_core.cpu import CudaToCpu, KernelScope
from harness.backends.megatron_core.fake.gpu_kernels import REPLACEMENTS, FlashLikeAttention
from harness.backends.megatron_core.fake.meter import borrow
from harness.backends.megatron_core.fake.routing import routing_patches

META = torch.device("meta")
_MAKERS = _device_constructors()  # torch.empty, torch.arange, torch.tensor, ...


class CudaSemantics(CudaToCpu):
    """Whatever makes a tensor makes a fake one. Also replaces the functions whose saved tensors
    differ from a GPU's, and what asks for values."""

    replacements: Mapping[Any, Callable[..., Any]] = {
        **CudaToCpu.replacements,
        torch.tensor: lambda *args, **given: torch.tensor(*args, **given).clone(),  # to be seen
        torch.Tensor.cpu: lambda tensor, *_, **__: tensor,
        **REPLACEMENTS,
        torch.Tensor.item: lambda tensor: 1.0,  # norms and scales: fake tensors have no values
    }

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func in _MAKERS or (kwargs and kwargs.get("device") is not None):
            kwargs = {**(kwargs or {}), "device": META}
        return super().__torch_function__(func, types, args, kwargs)


class _NoWgradKernels:
    """Stands for apex's kernels that add a weight gradient into `main_grad` in place."""

    @staticmethod
    def wgrad_gemm_accum_fp32(*_: torch.Tensor) -> None: ...

    wgrad_gemm_accum_fp16 = wgrad_gemm_accum_fp32


def _gather_own_object(gathered: list[Any], mine: Any, group: Any = None) -> None:
    """What the fake process group gives: every rank is like this one."""
    gathered[:] = [mine] * len(gathered)


class _Done:
    """Handle of a communication that takes no time."""

    def wait(self) -> None: ...


def _scale_kernel(chunk: int, flag: Any, lists: Any, scale: float) -> None:
    """TE's multi_tensor_scale: no temporaries."""
    for source, target in zip(*lists, strict=True):
        target.copy_(source)


def _patches(kernel: KernelScope) -> Iterator[Any]:
    yield from cpu.patches(kernel)
    yield patch.object(torch.cuda, "current_device", lambda: META)
    optimizers = sys.modules["torch.optim.optimizer"]  # hidden behind a name of torch.optim's
    # devices of the fused optimizers; torch asks before it looks for a kernel
    yield patch.object(optimizers, "_get_fused_kernels_supported_devices", lambda: [META.type])
    # fake storages have no contents to copy
    yield patch.object(torch.UntypedStorage, "copy_", lambda storage, *_: storage)
    yield patch.object(megatron_random, "_get_share_storage", lambda: borrow, create=True)
    yield patch.object(megatron_random, "_get_all_rng_states", lambda: (None,) * 3)
    yield patch.object(megatron_random, "_set_all_rng_states", lambda *_: None)
    yield patch.object(megatron_random.CudaRNGStatesTracker, "fork", lambda *_, **__: nullcontext())
    yield patch.object(torch.distributed, "all_gather_object", _gather_own_object)
    # coalesced collectives know no fake tensors
    yield patch.object(
        param_and_grad_buffer, "_coalescing_manager", lambda *_, **__: nullcontext(_Done())
    )
    # TE's multi_tensor_l2norm: no temporaries; the value does not matter
    yield patch.object(clip_grads, "l2_norm_impl", lambda *_: (torch.ones(1), None))
    capable = {"fake": ["cpu", META.type]}  # devices of the fake process group
    backends = torch.distributed.Backend
    yield patch.object(backends, "backend_capability", backends.backend_capability | capable)
    for module in (clip_grads, megatron_optimizer):
        yield patch.object(module, "multi_tensor_scale_impl", _scale_kernel)
    fusion: dict[str, Any] = {
        "_grad_accum_fusion_available": True,
        "fused_weight_gradient_mlp_cuda": _NoWgradKernels,
    }
    yield patch.multiple(tensor_parallel_layers, create=True, **fusion)


@contextmanager
def megatron_without_gpu(
    case: MegatronCase, pp_rank: int = 0, kernel: KernelScope = nullcontext
) -> Iterator[None]:
    """Inside, Megatron is the first rank of stage `pp_rank` of the case, on fake tensors.

    `kernel()` surrounds each function that a GPU would run as one compiled kernel.
    """
    with ExitStack() as stack:
        for one in _patches(kernel):
            stack.enter_context(one)
        stack.enter_context(world.fake_world(case, case.rank_of_stage(pp_rank)))
        stack.callback(MTPLossLoggingHelper.tracker.clear)
        for rotary in (RotaryEmbedding, YarnRotaryEmbedding):
            stack.callback(rotary.forward.cache_clear)  # holds tensors of this run
        stack.enter_context(CudaSemantics())
        for one in routing_patches(case) if case.has_experts else ():
            stack.enter_context(one)
        yield


def fake_chunks(case: MegatronCase) -> list[Any]:
    """Model chunks of the current rank, whose attention has the memory of a flash kernel."""
    config = model.transformer_config(case, perform_initialization=False)
    return model.build_chunks(case, FlashLikeAttention, config)
