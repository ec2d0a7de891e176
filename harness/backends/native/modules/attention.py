"""Causal flash attention on GPU and CPU: keeps q, k, v, the output and the log-sum-exp."""

from typing import Any, Final

import torch
from torch import Tensor, nn

from harness.backends.sdpa import causal_attention, flash_only

_SEEDS: Final = 2**31


def flash_attention(query: Tensor, key: Tensor, value: Tensor, dropout: float) -> Tensor:
    """Attention of [micro_batch_size, seq_length, heads, channels] each; channels are the value's.

    The CPU's flash kernel knows no dropout, and no values of another width than the keys': there an
    operator of our own stands in, which keeps the same tensors and draws its mask from a seed.
    """
    q, k, v = (tensor.transpose(1, 2) for tensor in (query, key, value))
    if not query.is_cuda and (dropout > 0 or q.shape[-1] != v.shape[-1]):
        seed = int(torch.randint(_SEEDS, ()).item())
        dropped: tuple[Tensor, Tensor] = dropped_attention(q, k, v, dropout, seed)
        return dropped[0].transpose(1, 2)
    with flash_only(q, v):
        return causal_attention(q, k, v, dropout).transpose(1, 2)


class CoreAttention(nn.Module):
    """Causal flash attention; its dropout is the model's."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.dropout = dropout

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """[b, s, heads, channels] each to [b, s, heads x channels]."""
        return flash_attention(query, key, value, self.dropout).flatten(2)


@torch.library.custom_op("recompute_harness::dropped_attention", mutates_args=())
def dropped_attention(
    query: Tensor, key: Tensor, value: Tensor, dropout: float, seed: int
) -> tuple[Tensor, Tensor]:
    """Causal attention of [batch, heads, seq, channels] with dropout on the probabilities.

    Returns the output, whose memory has the heads inside the sequence as flash attention's, and
    the log-sum-exp [batch, heads, seq] in fp32.
    """
    scores = _scores(query, key)
    lse = scores.logsumexp(-1)
    probabilities = (scores - lse[..., None]).exp() * _keep_mask(scores, dropout, seed)
    out = probabilities @ _expand(value, query.shape[1]).float()
    return out.to(query.dtype).transpose(1, 2).contiguous().transpose(1, 2), lse


def _scores(query: Tensor, key: Tensor) -> Tensor:
    scores = query.float() @ _expand(key, query.shape[1]).float().transpose(-1, -2)
    future = torch.ones(scores.shape[-2:], dtype=torch.bool, device=query.device).triu(1)
    scale = float(query.shape[-1]) ** -0.5
    masked: Tensor = (scores * scale).masked_fill_(future, float("-inf"))
    return masked


def _expand(grouped: Tensor, heads: int) -> Tensor:
    return grouped.repeat_interleave(heads // grouped.shape[1], dim=1)


def _keep_mask(like: Tensor, dropout: float, seed: int) -> Tensor:
    """1 / (1 - dropout) where a probability stays, else 0."""
    generator = torch.Generator(like.device).manual_seed(seed)
    kept = torch.rand(like.shape, generator=generator, device=like.device) >= dropout
    return kept.float() / (1 - dropout)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    query, key, value, ctx.dropout, ctx.seed = inputs
    ctx.save_for_backward(query, key, value, *output)


def _backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
    query, key, value, out, lse = ctx.saved_tensors
    heads, wide = query.shape[1], grad.float()
    probabilities = (_scores(query, key) - lse[..., None]).exp()
    mask = _keep_mask(probabilities, ctx.dropout, ctx.seed)
    grad_value = (probabilities * mask).transpose(-1, -2) @ wide
    through = (wide @ _expand(value, heads).float().transpose(-1, -2)) * mask
    row = (wide * out.float()).sum(-1, keepdim=True)
    grad_scores = probabilities * (through - row) * float(query.shape[-1]) ** -0.5
    grad_query = grad_scores @ _expand(key, heads).float()
    grad_key = grad_scores.transpose(-1, -2) @ query.float()
    return (
        grad_query.to(query.dtype),
        _collapse(grad_key, key),
        _collapse(grad_value, value),
        None,
        None,
    )


def _collapse(expanded: Tensor, like: Tensor) -> Tensor:
    """Sum of the gradients of the query heads that share one key or value head."""
    b, groups, s, channels = like.shape
    return expanded.view(b, groups, -1, s, channels).sum(2).to(like.dtype)


dropped_attention.register_autograd(_backward, setup_context=_save)
_aten = torch.ops.aten
ATTENTION_FORWARD: Final = (
    _aten._scaled_dot_product_flash_attention_for_cpu,
    _aten._scaled_dot_product_flash_attention,
    _aten._scaled_dot_product_efficient_attention,
    _aten._scaled_dot_product_cudnn_attention,
    torch.ops.recompute_harness.dropped_attention,
)
"""What runs attention forward, on either device."""
ATTENTION_BACKWARD: Final = (
    _aten._scaled_dot_product_flash_attention_backward,
    _aten._scaled_dot_product_efficient_attention_backward,
    _aten._scaled_dot_product_cudnn_attention_backward,
)
"""Their backward on a GPU."""
