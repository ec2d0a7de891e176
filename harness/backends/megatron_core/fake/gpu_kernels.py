"""What kernels of a GPU keep for the backward, where those of a CPU keep something else. They
compute nothing: they return empty tensors of the right shapes."""

from collections.abc import Callable, Mapping
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn import functional


class NormLikeCuda(torch.autograd.Function):
    """CUDA's fused norms: RMSNorm keeps its input and one fp32 `rstd` a row (torch rms_norm),
    LayerNorm, which has a bias, `mean` too (bf16 on fake CPU tensors)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """What a kernel keeps for the backward."""
        rows = (*x.shape[:-1], 1)
        statistics = (
            torch.empty(rows, dtype=torch.float32, device=x.device)
            for _ in range(1 if bias is None else 2)
        )
        ctx.save_for_backward(x, weight, bias, *statistics)
        return torch.empty(x.shape, dtype=x.dtype, device=x.device)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of the shapes that the kernel gives."""
        x, weight, bias, *_ = ctx.saved_tensors
        grad = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        return grad, torch.empty_like(weight), None if bias is None else torch.empty_like(bias)


class FlashLikeFunction(torch.autograd.Function):
    """Keeps what flash attention keeps: q, k, v as given, out, fp32 log-sum-exp [b, heads, s]."""

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, offset: Tensor | None = None
    ) -> Tensor:
        """What a kernel keeps for the backward."""
        s, b, heads, _ = query.shape
        out = torch.empty((s, b, heads, value.shape[-1]), dtype=query.dtype, device=query.device)
        lse = torch.empty((b, heads, s), dtype=torch.float32, device=query.device)
        ctx.save_for_backward(query, key, value, out, lse, offset)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of the shapes that the kernel gives."""
        query, key, value, _, _, offset = ctx.saved_tensors
        gradient = None if offset is None else torch.empty_like(offset)
        return torch.empty_like(query), torch.empty_like(key), torch.empty_like(value), gradient


class FlashLikeAttention(torch.nn.Module):
    """Core attention of the local layer spec with the memory of a flash kernel. Left out: the
    kernel's own backward workspace (fp32 dq accumulator, expanded dk and dv), which differs between
    flash-attn, cuDNN and torch."""

    def __init__(self, config: Any, layer_number: int, **unused: Any) -> None:
        super().__init__()
        self.softmax_offset: torch.nn.Parameter | None = None  # a learned logit a head
        if getattr(config, "softmax_type", "") == "learnable":  # not in 0.13 and 0.14
            heads = config.num_attention_heads // config.tensor_model_parallel_size
            self.softmax_offset = torch.nn.Parameter(torch.empty(heads, dtype=config.params_dtype))

    def forward(self, query: Tensor, key: Tensor, value: Tensor, *_: Any, **unused: Any) -> Tensor:
        """What a kernel keeps for the backward."""
        out: Tensor = FlashLikeFunction.apply(query, key, value, self.softmax_offset)  # type: ignore[no-untyped-call]
        return out.view(*out.shape[:2], -1)


def _norm(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Any:
    return NormLikeCuda.apply(x, weight, bias)  # type: ignore[no-untyped-call]


def dropout(x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """CUDA's dropout: a 1-byte mask; p = 0 returns the input itself (a CPU keeps a bf16 mask)."""
    return torch.native_dropout(x, p, training)[0] if training and p > 0 else x


REPLACEMENTS: Final[Mapping[Any, Callable[..., Any]]] = {
    functional.dropout: dropout,
    functional.layer_norm: lambda x, _, weight, bias, eps=0.0: _norm(x, weight, bias),
    functional.rms_norm: lambda x, _, weight, eps=0.0: _norm(x, weight),
}
"""By the function of torch.nn.functional in whose place it stands."""
