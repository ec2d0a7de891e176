"""Kernels that a GPU has and a CPU has not, as autograd functions that keep what those keep.

nn.RMSNorm and nn.LayerNorm are one kernel each on CUDA, with fp32 statistics of each row; dropout
keeps a mask of one byte; flash attention takes dropout inside. Source: torch 2.13
derivatives.yaml (_fused_rms_norm, native_layer_norm, native_dropout).
"""

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch.distributed.tensor import DTensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode


class _Norm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
    ) -> torch.Tensor:
        statistics = 1 if bias is None else 2
        rows = [torch.empty(*x.shape[:-1], 1, dtype=torch.float32) for _ in range(statistics)]
        ctx.save_for_backward(x, weight, *rows)
        ctx.has_bias = bias is not None
        return torch.empty_like(x)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        x, weight = ctx.saved_tensors[:2]
        made = torch.empty_like(x), torch.empty_like(weight)
        return *made, torch.empty_like(weight) if ctx.has_bias else None


class _Dropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(torch.empty_like(x, dtype=torch.bool))
        return torch.empty_like(x)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        _ = ctx.saved_tensors
        return torch.empty_like(grads[0])


class _Flash(torch.autograd.Function):
    """cuDNN's and flex attention's: values narrower than keys, which the CPU's kernel has not."""

    @staticmethod
    def forward(ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        batch, heads, tokens, _ = q.shape
        out = torch.empty(batch, tokens, heads, v.shape[-1]).transpose(1, 2)
        ctx.save_for_backward(q, k, v, out, torch.empty(q.shape[:-1], dtype=torch.float32))
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return tuple(torch.empty_like(tensor) for tensor in ctx.saved_tensors[:3])


def _rms_norm(input: Any, normalized_shape: Any, weight: Any = None, eps: Any = None) -> Any:
    if isinstance(input, DTensor):  # of which each rank norms its own rows
        local = _Norm.apply(input.to_local(), weight.to_local(), None)
        return DTensor.from_local(local, input.device_mesh, input.placements)
    return _Norm.apply(input, weight, None)


def _layer_norm(
    input: Any, normalized_shape: Any, weight: Any = None, bias: Any = None, eps: Any = None
) -> Any:
    return _Norm.apply(input, weight, bias)


def _dropout(input: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
    return _Dropout.apply(input) if training and p else input


def _attention(query: Any, key: Any, value: Any, **options: Any) -> Any:
    if isinstance(query, DTensor):  # of which each rank has its own heads
        local = (tensor.to_local() for tensor in (query, key, value))
        out = F.scaled_dot_product_attention(*local, **options)
        return DTensor.from_local(out, query.device_mesh, query.placements)
    if query.shape[-1] != value.shape[-1]:
        return _Flash.apply(query, key, value)
    return F.scaled_dot_product_attention(query, key, value, **options)


class GpuKernels(TorchFunctionMode):
    """Inside this mode the layers run as on a GPU, as far as memory goes."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is F.rms_norm:
            return _rms_norm(*args, **kwargs)
        if func is F.layer_norm:
            return _layer_norm(*args, **kwargs)
        if func is torch.histc:  # of int64, which a CPU has not
            return torch.empty(kwargs["bins"], dtype=args[0].dtype)
        if func is F.dropout:
            return _dropout(*args, **kwargs)
        if func is F.scaled_dot_product_attention:
            return _attention(*args, **{**kwargs, "dropout_p": 0.0})
        return func(*args, **kwargs)


class NoProducts(TorchDispatchMode):
    """Inside this mode products of matrices take their memory and no time: they are zero."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.mm.default:
            left, right = args
            return left.new_zeros(left.shape[0], right.shape[1])
        if func is torch.ops.aten.addmm.default:
            _, left, right = args
            return left.new_zeros(left.shape[0], right.shape[1])
        return func(*args, **(kwargs or {}))
