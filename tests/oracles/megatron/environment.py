"""Runs Megatron Core without a GPU: fake tensors, a fake process group, CUDA's byte behaviour.

All patches are undone on exit. What they must achieve: `device="cuda"` and CUDA's random states
do not exist here; dropout, RMSNorm and LayerNorm keep on a CPU other tensors than on a GPU; and
functions Megatron hands to torch.compile are one kernel on a GPU, so that only what they return
(or leave saved for the backward pass) takes memory.
"""

import functools
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from types import ModuleType
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.models.common.embeddings.rotary_pos_embedding import RotaryEmbedding
from megatron.core.tensor_parallel import layers as tensor_parallel_layers
from megatron.core.tensor_parallel import random as megatron_random
from megatron.core.transformer.torch_norm import WrappedTorchNorm
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.testing._internal.distributed.fake_pg import FakeStore

from .case import OracleCase

CPU = torch.device("cpu")
KernelScope = Callable[[str], AbstractContextManager[None]]


class RmsNormLikeCuda(torch.autograd.Function):
    """CUDA's fused RMSNorm: keeps its input and one fp32 `rstd` a row (torch rms_norm)."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        rstd = torch.empty((*x.shape[:-1], 1), dtype=torch.float32, device=x.device)
        ctx.save_for_backward(x, weight, rstd)
        return torch.empty(x.shape, dtype=x.dtype, device=x.device)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x, weight, _ = ctx.saved_tensors
        return torch.empty(x.shape, dtype=x.dtype, device=x.device), torch.empty_like(weight)


class LayerNormLikeCuda(torch.autograd.Function):
    """CUDA's LayerNorm: keeps its input and fp32 `mean` and `rstd` (bf16 on fake CPU tensors)."""

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor
    ) -> torch.Tensor:
        rows = (*x.shape[:-1], 1)
        mean = torch.empty(rows, dtype=torch.float32, device=x.device)
        rstd = torch.empty(rows, dtype=torch.float32, device=x.device)
        ctx.save_for_backward(x, weight, bias, mean, rstd)
        return torch.empty(x.shape, dtype=x.dtype, device=x.device)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x, weight, bias, _, _ = ctx.saved_tensors
        grad = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        return grad, torch.empty_like(weight), torch.empty_like(bias)


class FlashLikeFunction(torch.autograd.Function):
    """Keeps what flash attention keeps: q, k, v as given, out, fp32 log-sum-exp [b, heads, s]."""

    @staticmethod
    def forward(
        ctx: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
    ) -> torch.Tensor:
        s, b, heads, _ = query.shape
        out = torch.empty((s, b, heads, value.shape[-1]), dtype=query.dtype, device=query.device)
        lse = torch.empty((b, heads, s), dtype=torch.float32, device=query.device)
        ctx.save_for_backward(query, key, value, out, lse)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, ...]:
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


class CudaSemantics(TorchFunctionMode):
    """Sends `cuda` to the CPU and replaces the three functions whose saved tensors differ there."""

    replacements: Mapping[Any, Callable[..., Any]] = {
        functional.dropout: _dropout,
        functional.layer_norm: _layer_norm,
        functional.rms_norm: _rms_norm,
        torch.Tensor.cuda: lambda tensor, *_, **__: tensor,
    }

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if str(kwargs.get("device", "")).startswith("cuda"):
            kwargs["device"] = CPU
        if "pin_memory" in kwargs:  # pinning needs a CUDA driver
            kwargs["pin_memory"] = False
        return self.replacements.get(func, func)(*args, **kwargs)


def _torch_norm(cls: type, config: Any, hidden_size: int, eps: float = 1e-5, **_: Any) -> Any:
    """The local spec's norm, without its refusal of sequence parallelism (TE's has none)."""
    kinds = {"LayerNorm": torch.nn.LayerNorm, "RMSNorm": torch.nn.RMSNorm}
    norm = kinds[config.normalization](hidden_size, eps=eps)
    for parameter in norm.parameters():
        parameter.sequence_parallel = config.sequence_parallel
    return norm


def _as_one_kernel(function: Callable[..., Any], kernel: KernelScope) -> Callable[..., Any]:
    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        with kernel(f"compiled:{function.__name__}"):
            return function(*args, **kwargs)

    return run


def _compiled_functions() -> Iterator[tuple[ModuleType, str, Callable[..., Any]]]:
    """Module attributes that Megatron wrapped in torch.compile, with the function inside."""
    for name, module in list(sys.modules.items()):
        if name.startswith("megatron.core"):
            for attribute, value in list(vars(module).items()):
                inner = getattr(value, "__dict__", {}).get("_torchdynamo_orig_callable")
                if callable(inner):
                    yield module, attribute, inner


class _NoWgradKernels:
    """Stands for apex's kernels that add a weight gradient into `main_grad` in place."""

    @staticmethod
    def wgrad_gemm_accum_fp32(*_: torch.Tensor) -> None: ...

    wgrad_gemm_accum_fp16 = wgrad_gemm_accum_fp32


def _cpu() -> torch.device:
    return CPU


def _nothing(*_: Any, **__: Any) -> None: ...


def _no_rng_states() -> tuple[None, None, None]:
    return None, None, None


@contextmanager
def _no_rng_fork(*_: Any, **__: Any) -> Iterator[None]:
    yield


def _patches(kernel: KernelScope) -> Iterator[Any]:
    yield mock.patch.object(torch.cuda, "current_device", _cpu)
    yield mock.patch.object(torch.cuda, "synchronize", _nothing)
    # fake storages have no contents, and copying them leaks both storages under a dispatch mode
    yield mock.patch.object(torch.UntypedStorage, "copy_", lambda storage, *_: storage)
    yield mock.patch.object(WrappedTorchNorm, "__new__", _torch_norm)
    yield mock.patch.object(megatron_random, "_get_all_rng_states", _no_rng_states)
    yield mock.patch.object(megatron_random, "_set_all_rng_states", _nothing)
    yield mock.patch.object(megatron_random.CudaRNGStatesTracker, "fork", _no_rng_fork)
    # without TE, CheckpointWithoutOutput(fp8=False) would enter a TE-only path
    init = megatron_random.CheckpointWithoutOutput.__init__
    yield mock.patch.object(
        megatron_random.CheckpointWithoutOutput, "__init__", lambda self: init(self, fp8=None)
    )
    for name, value in (
        ("_grad_accum_fusion_available", True),
        ("fused_weight_gradient_mlp_cuda", _NoWgradKernels),
    ):
        yield mock.patch.object(tensor_parallel_layers, name, value, create=True)
    for module, attribute, function in _compiled_functions():
        yield mock.patch.object(module, attribute, _as_one_kernel(function, kernel))


@contextmanager
def _fake_world(case: OracleCase, pp_rank: int) -> Iterator[None]:
    dist.init_process_group(
        "fake", rank=case.rank_of_stage(pp_rank), world_size=case.world_size, store=FakeStore()
    )
    try:
        parallel_state.initialize_model_parallel(
            tensor_model_parallel_size=case.tensor_model_parallel_size,
            pipeline_model_parallel_size=case.pipeline_model_parallel_size,
            virtual_pipeline_model_parallel_size=case.virtual_pipeline_model_parallel_size,
            context_parallel_size=case.context_parallel_size,
            create_gloo_process_groups=False,  # gloo cannot rendezvous on a FakeStore
        )
        yield
    finally:
        parallel_state.destroy_model_parallel()
        dist.destroy_process_group()


def _no_scope(name: str) -> AbstractContextManager[None]:
    return nullcontext()


@contextmanager
def megatron_without_gpu(
    case: OracleCase, pp_rank: int = 0, kernel: KernelScope = _no_scope
) -> Iterator[None]:
    """Inside, Megatron is the first rank of stage `pp_rank` of the case, on fake CPU tensors.

    `kernel(name)` surrounds each function that a GPU would run as one compiled kernel.
    """
    with ExitStack() as stack:
        for patch in _patches(kernel):
            stack.enter_context(patch)
        stack.enter_context(_fake_world(case, pp_rank))
        stack.callback(RotaryEmbedding.forward.cache_clear)  # holds tensors of this fake mode
        stack.enter_context(FakeTensorMode())
        stack.enter_context(CudaSemantics())
        yield
