"""Megatron Core on a machine without CUDA: what its code asks of torch.cuda goes to the CPU.

All patches are undone on exit. Real tensors compute real values; the folder `fake` lays fake ones
over the same patches.
"""

import functools
import logging
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from types import ModuleType
from typing import Any
from unittest.mock import patch

import torch
from megatron.core.tensor_parallel import random as megatron_random
from megatron.core.transformer.moe import shared_experts, token_dispatcher
from torch.overrides import TorchFunctionMode

from harness.backends.megatron_core.local_layers import local_patches

CPU = torch.device("cpu")
KernelScope = Callable[[], AbstractContextManager[None]]


class CudaToCpu(TorchFunctionMode):
    """Sends `device="cuda"` to the CPU, and names types as on a GPU, where Megatron compares."""

    replacements: Mapping[Any, Callable[..., Any]] = {
        torch.Tensor.cuda: lambda tensor, *_, **__: tensor
    }

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = dict(kwargs) if kwargs else {}
        if str(given.get("device", "")).startswith("cuda"):
            given["device"] = CPU
        if "pin_memory" in given:  # pinning needs a CUDA driver
            given["pin_memory"] = False
        result = self.replacements.get(func, func)(*args, **given)
        if func is torch.Tensor.type and isinstance(result, str):
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


def _sizes(sizes: torch.Tensor, as_numpy: bool = False, **_: Any) -> Any:
    """Sizes of an all-to-all as numbers: Megatron makes numbers of a GPU's tensors only."""
    return sizes.numpy() if as_numpy and isinstance(sizes, torch.Tensor) else sizes


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
