"""Megatron Core on a machine without CUDA: what its code asks of torch.cuda goes to the CPU. All
patches are undone on exit. Real tensors compute real values; the folder `fake` lays fake ones over
the same patches.

What Megatron's own layers lack where there is no Transformer Engine and no Apex is added: attention
by torch's flash kernel, weight gradients added where they are summed, norms' sequence
parallelism."""

import functools
import logging
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from megatron.core.tensor_parallel import layers
from megatron.core.tensor_parallel import random as megatron_random
from megatron.core.transformer import multi_latent_attention
from megatron.core.transformer.moe import moe_utils, shared_experts, token_dispatcher
from megatron.core.transformer.torch_norm import WrappedTorchNorm
from torch import Tensor
from torch.overrides import TorchFunctionMode

from harness.backends.megatron_core.installed import has_transformer_engine
from harness.backends.training_rank import causal_attention, flash_only

CPU = torch.device("cpu")
KernelScope = Callable[[], AbstractContextManager[None]]


class CudaToCpu(TorchFunctionMode):
    """Sends `device="cuda"` to the CPU, and names types as on a GPU, where Megatron compares."""

    replacements: Mapping[Any, Callable[..., Any]] = {Tensor.cuda: lambda tensor, *_, **__: tensor}

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = dict(kwargs) if kwargs else {}
        if str(given.get("device", "")).startswith("cuda"):
            given["device"] = CPU
        if "pin_memory" in given:  # pinning needs a CUDA driver
            given["pin_memory"] = False
        result = self.replacements.get(func, func)(*args, **given)
        if func is Tensor.type and isinstance(result, str):
            return f"torch.cuda.{result.rpartition('.')[2]}"
        return result


def _as_one_kernel(function: Callable[..., Any], kernel: KernelScope) -> Callable[..., Any]:
    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        with kernel():
            return function(*args, **kwargs)

    return run


def _compiled_functions() -> Iterator[tuple[ModuleType | type, str, Callable[..., Any]]]:
    """Functions and methods that Megatron wrapped in torch.compile: where, and what is inside."""
    for name, module in list(sys.modules.items()):
        if name.startswith("megatron.core"):
            own = (v for v in vars(module).values() if getattr(v, "__module__", "") == name)
            classes: list[ModuleType | type] = [value for value in own if isinstance(value, type)]
            for holder in (module, *classes):
                for attribute, value in list(vars(holder).items()):
                    inner = getattr(value, "__dict__", {}).get("_torchdynamo_orig_callable")
                    if callable(inner):
                        yield holder, attribute, inner


class _Stream:
    """Stands for a CUDA stream or event: there is one order of execution here."""

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: self

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...


def _stream_patches() -> Iterator[Any]:
    """Streams next to which token dispatchers and shared experts work."""
    for name in ("Stream", "current_stream", "stream"):
        yield patch.object(torch.cuda, name, lambda *_: _Stream())
    alltoall = token_dispatcher.MoEAlltoAllTokenDispatcher
    yield patch.object(alltoall, "cuda_dtoh_stream", _Stream(), create=True)  # not in 0.13
    yield patch.object(shared_experts.SharedExpertMLP, "stream", _Stream())


def _rng_patches() -> Iterator[Any]:
    """The CPU's generator in place of the GPU's; that the tracker moves it is no mishap here."""
    state, to_state = torch.get_rng_state, torch.set_rng_state
    yield patch.object(torch.cuda, "get_rng_state", lambda *_, **__: state())
    yield patch.object(torch.cuda, "manual_seed", torch.manual_seed)
    yield patch.object(megatron_random, "_get_cuda_rng_state", lambda *_, **__: state())
    yield patch.object(megatron_random, "_set_cuda_rng_state", lambda new, *_, **__: to_state(new))
    yield patch.object(logging.getLogger(megatron_random.__name__), "disabled", True)


def _sizes(sizes: Tensor, as_numpy: bool = False, **_: Any) -> Any:
    """Sizes of an all-to-all as numbers: Megatron makes numbers of a GPU's tensors only."""
    return sizes.numpy() if as_numpy and isinstance(sizes, Tensor) else sizes


def patches(kernel: KernelScope = nullcontext) -> Iterator[Any]:
    """What real and fake tensors need alike; `kernel()` surrounds each compiled function."""
    yield patch.object(torch.cuda, "current_device", lambda: CPU)
    yield patch.object(torch.cuda, "synchronize", lambda *_: None)
    yield from local_patches()
    yield from _stream_patches()
    kernels: dict[Callable[..., Any], Callable[..., Any]] = {}  # Megatron compares functions
    for module, attribute, function in _compiled_functions():
        one = kernels.setdefault(function, _as_one_kernel(function, kernel))
        yield patch.object(module, attribute, one)


@contextmanager
def megatron_on_cpu() -> Iterator[None]:
    """Inside, Megatron computes on the CPU with real tensors; nothing is compiled."""
    with ExitStack() as stack:
        stack.enter_context(patch.object(token_dispatcher, "maybe_move_tensor_to_cpu", _sizes))
        for one in (*patches(), *_rng_patches()):
            stack.enter_context(one)
        stack.enter_context(CudaToCpu())
        yield


class SdpaAttention(torch.nn.Module):
    """Causal attention through scaled_dot_product_attention; no scores are kept. query [s, b,
    heads, channels], key, value with their own heads; gives [s, b, heads x channels of values]."""

    def __init__(self, config: Any, layer_number: int, **_: Any) -> None:
        super().__init__()
        self._dropout: float = config.attention_dropout

    def forward(self, query: Tensor, key: Tensor, value: Tensor, *_: Any, **__: Any) -> Tensor:
        """Megatron's mask is always causal here, and is not read."""
        q, k, v = (x.permute(1, 2, 0, 3) for x in (query, key, value))
        with flash_only(q, v):
            out = causal_attention(q, k, v, self._dropout if self.training else 0.0)
        return out.permute(2, 0, 1, 3).flatten(2)


def accumulate(total_input: Tensor, grad_output: Tensor, main_grad: Tensor) -> None:
    """main_grad [out, in] += grad_output [rows, out]^T x total_input [rows, in], in place: one GEMM
    that reads 16 bits and writes the type of `main_grad`, as Apex's; else a product next to it."""
    if main_grad.dtype is total_input.dtype:
        torch.addmm(main_grad, grad_output.t(), total_input, out=main_grad)
    elif hasattr(torch.ops.aten.addmm, "dtype_out"):
        torch.ops.aten.addmm.dtype_out(
            main_grad, grad_output.t(), total_input, main_grad.dtype, out=main_grad
        )
    else:
        main_grad.add_(grad_output.t() @ total_input)


@contextmanager
def without_apex() -> Iterator[None]:
    """Inside, Megatron's linear layers find `accumulate` where Apex's CUDA extension
    fused_weight_gradient_mlp_cuda is missing, without which they refuse
    gradient_accumulation_fusion. Transformer Engine's layers need none of it."""
    if layers._grad_accum_fusion_available:
        yield
        return
    extension = SimpleNamespace(wgrad_gemm_accum_fp32=accumulate, wgrad_gemm_accum_fp16=accumulate)
    with (
        patch.object(layers, "_grad_accum_fusion_available", True),
        patch.object(layers, "fused_weight_gradient_mlp_cuda", extension, create=True),
    ):
        yield


def _torch_norm(cls: type, config: Any, hidden_size: int, eps: float = 1e-5, **_: Any) -> Any:
    """The local spec's norm, without its refusal of sequence parallelism (TE's has none)."""
    kinds = {"LayerNorm": torch.nn.LayerNorm, "RMSNorm": torch.nn.RMSNorm}
    norm = kinds[config.normalization](hidden_size, eps=eps)
    for parameter in norm.parameters():
        parameter.sequence_parallel = config.sequence_parallel
    return norm


def local_patches() -> Iterator[Any]:
    """What Megatron's own layers lack without Transformer Engine; the norm with it too."""
    yield patch.object(WrappedTorchNorm, "__new__", _torch_norm)
    if has_transformer_engine():
        return
    # its classes are None, and isinstance() refuses them; 0.13 does not ask
    yield patch.object(multi_latent_attention, "HAVE_TE", False, create=True)
    # CheckpointWithoutOutput(fp8=False) would enter a path of Transformer Engine's
    init = megatron_random.CheckpointWithoutOutput.__init__
    yield patch.object(
        megatron_random.CheckpointWithoutOutput, "__init__", lambda self, **_: init(self, fp8=None)
    )
    # the router asks for a name that only Transformer Engine defines
    yield patch.object(moe_utils, "te_general_gemm", None, create=True)
