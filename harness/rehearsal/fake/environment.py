"""Runs Megatron Core without a GPU: fake tensors, a fake process group, CUDA's byte behaviour.

All patches are undone on exit. What they must achieve: `device="cuda"` and CUDA's random states
do not exist here; dropout, RMSNorm and LayerNorm keep on a CPU other tensors than on a GPU; and
functions Megatron hands to torch.compile are one kernel on a GPU, so that only what they return
(or leave saved for the backward pass) takes memory.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any
from unittest import mock

import torch
from megatron.core.distributed import param_and_grad_buffer
from megatron.core.models.common.embeddings.rotary_pos_embedding import RotaryEmbedding
from megatron.core.models.common.embeddings.yarn_rotary_pos_embedding import YarnRotaryEmbedding
from megatron.core.optimizer import clip_grads
from megatron.core.optimizer import optimizer as megatron_optimizer
from megatron.core.tensor_parallel import layers as tensor_parallel_layers
from megatron.core.tensor_parallel import random as megatron_random
from megatron.core.transformer.multi_token_prediction import MTPLossLoggingHelper
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional

from harness.backends.megatron_core import cpu
from harness.backends.megatron_core.case import MegatronCase
from harness.backends.megatron_core.cpu import CudaToCpu, KernelScope
from harness.backends.megatron_core.model import build_chunks, transformer_config
from harness.backends.megatron_core.world import fake_world
from harness.rehearsal.fake.routing import routing_patches


class RmsNormLikeCuda(torch.autograd.Function):
    """CUDA's fused RMSNorm: keeps its input and one fp32 `rstd` a row (torch rms_norm)."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """What a kernel keeps for the backward."""
        rstd = torch.empty((*x.shape[:-1], 1), dtype=torch.float32, device=x.device)
        ctx.save_for_backward(x, weight, rstd)
        return torch.empty(x.shape, dtype=x.dtype, device=x.device)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Gradients of the shapes that the kernel gives."""
        x, weight, _ = ctx.saved_tensors
        return torch.empty(x.shape, dtype=x.dtype, device=x.device), torch.empty_like(weight)


class LayerNormLikeCuda(torch.autograd.Function):
    """CUDA's LayerNorm: keeps its input and fp32 `mean` and `rstd` (bf16 on fake CPU tensors)."""

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor
    ) -> torch.Tensor:
        """What a kernel keeps for the backward."""
        rows = (*x.shape[:-1], 1)
        mean = torch.empty(rows, dtype=torch.float32, device=x.device)
        rstd = torch.empty(rows, dtype=torch.float32, device=x.device)
        ctx.save_for_backward(x, weight, bias, mean, rstd)
        return torch.empty(x.shape, dtype=x.dtype, device=x.device)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Gradients of the shapes that the kernel gives."""
        x, weight, bias, _, _ = ctx.saved_tensors
        grad = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        return grad, torch.empty_like(weight), torch.empty_like(bias)


class FlashLikeFunction(torch.autograd.Function):
    """Keeps what flash attention keeps: q, k, v as given, out, fp32 log-sum-exp [b, heads, s]."""

    @staticmethod
    def forward(
        ctx: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
    ) -> torch.Tensor:
        """What a kernel keeps for the backward."""
        s, b, heads, _ = query.shape
        out = torch.empty((s, b, heads, value.shape[-1]), dtype=query.dtype, device=query.device)
        lse = torch.empty((b, heads, s), dtype=torch.float32, device=query.device)
        ctx.save_for_backward(query, key, value, out, lse)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Gradients of the shapes that the kernel gives."""
        query, key, value, _, _ = ctx.saved_tensors
        return torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)


class FlashLikeAttention(torch.nn.Module):
    """Core attention of the local layer spec with the memory of a flash kernel.

    Left out: the kernel's own backward workspace (fp32 dq accumulator, expanded dk and dv), which
    differs between flash-attn, cuDNN and torch.
    """

    def __init__(self, config: Any, layer_number: int, **unused: Any) -> None:
        super().__init__()

    def forward(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_: Any, **unused: Any
    ) -> torch.Tensor:
        """What a kernel keeps for the backward."""
        out: torch.Tensor = FlashLikeFunction.apply(query, key, value)  # type: ignore[no-untyped-call]
        return out.view(*out.shape[:2], -1)


def _layer_norm(
    x: torch.Tensor,
    normalized_shape: Sequence[int],
    weight: torch.Tensor,
    bias: torch.Tensor,
    eps: float = 1e-5,
) -> Any:
    return LayerNormLikeCuda.apply(x, weight, bias)  # type: ignore[no-untyped-call]


def _rms_norm(
    x: torch.Tensor, normalized_shape: Sequence[int], weight: torch.Tensor, eps: float = 1e-5
) -> Any:
    return RmsNormLikeCuda.apply(x, weight)  # type: ignore[no-untyped-call]


def _dropout(
    x: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
) -> torch.Tensor:
    """CUDA's dropout: a 1-byte mask; p = 0 returns the input itself (a CPU keeps a bf16 mask)."""
    return torch.native_dropout(x, p, training)[0] if training and p > 0 else x


class CudaSemantics(CudaToCpu):
    """Also replaces the functions whose saved tensors differ on a CPU, and what asks for values."""

    replacements: Mapping[Any, Callable[..., Any]] = {
        **CudaToCpu.replacements,
        functional.dropout: _dropout,
        functional.layer_norm: _layer_norm,
        functional.rms_norm: _rms_norm,
        torch.Tensor.item: lambda tensor: 1.0,  # norms and scales: fake tensors have no values
    }


class _NoWgradKernels:
    """Stands for apex's kernels that add a weight gradient into `main_grad` in place."""

    @staticmethod
    def wgrad_gemm_accum_fp32(*_: torch.Tensor) -> None: ...

    wgrad_gemm_accum_fp16 = wgrad_gemm_accum_fp32


def _nothing(*_: Any, **__: Any) -> None: ...


def _gather_own_object(gathered: list[Any], mine: Any, group: Any = None) -> None:
    """What the fake process group gives: every rank is like this one."""
    gathered[:] = [mine] * len(gathered)


class _Done:
    """Handle of a communication that takes no time."""

    def wait(self) -> None: ...


@contextmanager
def _one_by_one(*_: Any, **__: Any) -> Iterator[_Done]:
    """In place of torch's coalescing manager: coalesced collectives know no fake tensors."""
    yield _Done()


def _norm_kernel(chunk: int, flag: Any, lists: Any, *_: Any) -> tuple[torch.Tensor, None]:
    """TE's multi_tensor_l2norm: no temporaries; the value does not matter."""
    return torch.ones(1), None


def _scale_kernel(chunk: int, flag: Any, lists: Any, scale: float) -> None:
    """TE's multi_tensor_scale: no temporaries."""
    for source, target in zip(*lists, strict=True):
        target.copy_(source)


def _no_rng_states() -> tuple[None, None, None]:
    return None, None, None


@contextmanager
def _no_rng_fork(*_: Any, **__: Any) -> Iterator[None]:
    yield


def _patches(kernel: KernelScope) -> Iterator[Any]:
    yield from cpu.patches(kernel)
    # fake storages have no contents, and copying them leaks both storages under a dispatch mode
    yield mock.patch.object(torch.UntypedStorage, "copy_", lambda storage, *_: storage)
    yield mock.patch.object(megatron_random, "_get_all_rng_states", _no_rng_states)
    yield mock.patch.object(megatron_random, "_set_all_rng_states", _nothing)
    yield mock.patch.object(megatron_random.CudaRNGStatesTracker, "fork", _no_rng_fork)
    yield mock.patch.object(torch.distributed, "all_gather_object", _gather_own_object)
    yield mock.patch.object(param_and_grad_buffer, "_coalescing_manager", _one_by_one)
    yield mock.patch.object(clip_grads, "l2_norm_impl", _norm_kernel)
    for module in (clip_grads, megatron_optimizer):
        yield mock.patch.object(module, "multi_tensor_scale_impl", _scale_kernel)
    for name, value in (
        ("_grad_accum_fusion_available", True),
        ("fused_weight_gradient_mlp_cuda", _NoWgradKernels),
    ):
        yield mock.patch.object(tensor_parallel_layers, name, value, create=True)


def _no_scope(name: str) -> AbstractContextManager[None]:
    return nullcontext()


@contextmanager
def megatron_without_gpu(
    case: MegatronCase, pp_rank: int = 0, kernel: KernelScope = _no_scope
) -> Iterator[None]:
    """Inside, Megatron is the first rank of stage `pp_rank` of the case, on fake CPU tensors.

    `kernel(name)` surrounds each function that a GPU would run as one compiled kernel.
    """
    with ExitStack() as stack:
        for patch in _patches(kernel):
            stack.enter_context(patch)
        stack.enter_context(fake_world(case, case.rank_of_stage(pp_rank)))
        stack.callback(MTPLossLoggingHelper.tracker.clear)
        for rotary in (RotaryEmbedding, YarnRotaryEmbedding):
            stack.callback(rotary.forward.cache_clear)  # holds tensors of this fake mode
        stack.enter_context(FakeTensorMode())
        stack.enter_context(CudaSemantics())
        for patch in routing_patches(case.experts) if case.experts else ():
            stack.enter_context(patch)
        yield


def fake_chunks(case: MegatronCase) -> list[Any]:
    """Model chunks of the current rank, whose attention has the memory of a flash kernel."""
    config = transformer_config(case, perform_initialization=False)
    return build_chunks(case, FlashLikeAttention, config)
