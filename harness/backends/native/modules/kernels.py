"""Norms, activations, rotary embedding and causal flash attention that keep what a fused kernel
keeps. Sources: torch's CUDA kernels (layer_norm_kernel.cu), megatron-core 0.16.1 fusions/."""

from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn import functional

from advisor.models.options import Activation, Normalization
from harness.backends.native.modules.linear import applied
from harness.backends.training_rank import causal_attention, flash_only

NORM_EPSILON = 1e-5
_ROTARY_BASE = 10000.0
_FUSED_RMS_NORM = hasattr(torch.ops.aten, "_fused_rms_norm")  # torch 2.9 and later


class _RmsNorm(torch.autograd.Function):
    """Keeps the input and rstd in fp32, one a row; torch's CPU decomposition keeps four tensors."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        wide = x.float()
        rstd = torch.rsqrt(wide.square().mean(-1, keepdim=True) + NORM_EPSILON)
        ctx.save_for_backward(x, weight, rstd)
        return (wide * rstd * weight).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor]:
        x, weight, rstd = ctx.saved_tensors
        grad, normed = grads[0].float(), x.float() * rstd
        through = grad * weight
        mean = (through * normed).mean(-1, keepdim=True)
        return ((through - normed * mean) * rstd).to(x.dtype), _column_sum(grad * normed, weight)


class _LayerNorm(torch.autograd.Function):
    """Keeps the input, and mean and rstd in fp32; torch's CPU kernel keeps them in bf16."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        wide = x.float()
        mean = wide.mean(-1, keepdim=True)
        rstd = torch.rsqrt((wide - mean).square().mean(-1, keepdim=True) + NORM_EPSILON)
        ctx.save_for_backward(x, weight, mean, rstd)
        return ((wide - mean) * rstd * weight + bias).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x, weight, mean, rstd = ctx.saved_tensors
        grad, normed = grads[0].float(), (x.float() - mean) * rstd
        through = grad * weight
        projected = normed * (through * normed).mean(-1, keepdim=True)
        grad_x = (through - through.mean(-1, keepdim=True) - projected) * rstd
        return grad_x.to(x.dtype), _column_sum(grad * normed, weight), _column_sum(grad, weight)


def _column_sum(values: Tensor, like: Tensor) -> Tensor:
    return values.flatten(0, -2).sum(0).to(like.dtype)


def normalize(kind: Normalization, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """RMSNorm or LayerNorm over the last dimension: torch's kernel on a GPU, ours on a CPU."""
    if kind is Normalization.RMS_NORM:
        if x.is_cuda and _FUSED_RMS_NORM:
            return functional.rms_norm(x, weight.shape, weight, NORM_EPSILON)
        return applied(_RmsNorm, x, weight)
    if x.is_cuda:
        return functional.layer_norm(x, weight.shape, weight, bias, NORM_EPSILON)
    return applied(_LayerNorm, x, weight, bias)


class _BiasActivation(torch.autograd.Function):
    """Bias, activation and gate; keeps linear_fc1's output alone and computes the rest again. Like
    a fused kernel it has no tensor besides what it reads and returns."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, bias: Tensor | None, kind: Activation) -> Tensor:
        ctx.save_for_backward(x, bias)
        ctx.kind = kind
        if not kind.gated:
            out = torch.empty_like(x) if bias is None else x + bias
            return _activate(kind, x if bias is None else out, out)
        gate, value = (x if bias is None else x + bias).chunk(2, dim=-1)
        return _activate(kind, gate, torch.empty_like(value)).mul_(value)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor | None, None]:
        x, bias = ctx.saved_tensors
        if ctx.kind.gated:
            grad = torch.empty_like(x)
            gate, value = (x if bias is None else x + bias).chunk(2, dim=-1)
            grad_gate, grad_value = grad.chunk(2, dim=-1)
            torch.mul(grads[0], value, out=grad_value)
            _activate_backward(ctx.kind, grad_value, gate, grad_gate)
            _activate(ctx.kind, gate, grad_value).mul_(grads[0])
        else:
            grad = torch.empty_like(x) if bias is None else x + bias
            _activate_backward(ctx.kind, grads[0], x if bias is None else grad, grad)
        return grad, None if bias is None else _column_sum(grad, bias), None


def _activate(kind: Activation, x: Tensor, out: Tensor) -> Tensor:
    """activation(x) in `out`, which may be x itself."""
    if kind is Activation.SQUARED_RELU:
        return torch.clamp(x, min=0, out=out).square_()
    if kind is Activation.SWIGLU:
        torch.ops.aten.silu.out(x, out=out)
    else:
        torch.ops.aten.gelu.out(x, approximate="tanh", out=out)
    return out


def _activate_backward(kind: Activation, grad: Tensor, x: Tensor, out: Tensor) -> None:
    """Gradient at x in `out`, which may be x itself."""
    if kind is Activation.SQUARED_RELU:
        torch.clamp(x, min=0, out=out).mul_(grad).mul_(2)
    elif kind is Activation.SWIGLU:
        torch.ops.aten.silu_backward.grad_input(grad, x, grad_input=out)
    else:
        torch.ops.aten.gelu_backward.grad_input(grad, x, approximate="tanh", grad_input=out)


def bias_activation(kind: Activation, x: Tensor, bias: Tensor | None) -> Tensor:
    """activation(x + bias); the first half of the width gates the second where `kind` is gated."""
    return applied(_BiasActivation, x, bias, kind)


def rotary_frequencies(seq_length: int, width: int, device: torch.device) -> Tensor:
    """Angles [1, seq_length, 1, width] in fp32, once for all layers."""
    steps = torch.arange(0, width, 2, dtype=torch.float32, device=device) / width
    positions = torch.arange(seq_length, dtype=torch.float32, device=device)
    angles = torch.outer(positions, _ROTARY_BASE**-steps)
    return torch.cat((angles, angles), dim=-1)[None, :, None, :]


def rotate(x: Tensor, frequencies: Tensor) -> Tensor:
    """Rotary embedding of [micro_batch_size, seq_length, heads, kv_channels]. As Megatron's unfused
    one (rope_utils.py) it makes cos and sin in the compute type for each call and keeps both."""
    width = frequencies.shape[-1]
    turned, rest = x[..., :width], x[..., width:]
    cos, sin = frequencies.cos().to(x.dtype), frequencies.sin().to(x.dtype)
    first, second = turned.chunk(2, dim=-1)
    turned = turned * cos + torch.cat((-second, first), dim=-1) * sin
    return turned if not rest.shape[-1] else torch.cat((turned, rest), dim=-1)


def bias_dropout_add(branch: Tensor, bias: Tensor | None, residual: Tensor, p: float) -> Tensor:
    """residual + dropout(branch + bias); keeps a 1-byte mask where p > 0."""
    return residual + drop(branch if bias is None else branch + bias, p)


def drop(x: Tensor, p: float) -> Tensor:
    """Dropout with a 1-byte mask on a CPU too, where torch's own keeps one of x's type."""
    return torch.native_dropout(x, p, True)[0] if p > 0 else x


def flash_attention(query: Tensor, key: Tensor, value: Tensor, dropout: float) -> Tensor:
    """Attention of [micro_batch_size, seq_length, heads, channels] each; channels are the value's.
    The CPU's flash kernel knows no dropout, and no values of another width than the keys': there an
    operator of our own stands in, which keeps the same tensors and draws its mask from a seed."""
    q, k, v = (tensor.transpose(1, 2) for tensor in (query, key, value))
    if not query.is_cuda and (dropout > 0 or q.shape[-1] != v.shape[-1]):
        seed = int(torch.randint(2**31, ()).item())
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
    """Causal attention of [batch, heads, seq, channels] with dropout on the probabilities. Returns
    the output, whose memory has the heads inside the sequence as flash attention's, and the
    log-sum-exp [batch, heads, seq] in fp32."""
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
    of_pairs = _collapse(grad_key, key), _collapse(grad_value, value)
    return grad_query.to(query.dtype), *of_pairs, None, None


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
