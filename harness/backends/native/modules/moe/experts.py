"""Routed experts: one grouped MLP, whose activation multiplies with the tokens' probabilities.

As megatron-core 0.16.1 moe/experts.py TEGroupedMLP and fusions/fused_bias_swiglu.py.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from advisor.layers.operators import Module
from harness.backends.native.modules.layer_settings import LayerSettings
from harness.backends.native.regions import Regions


class GroupedMlp(nn.Module):
    """linear_fc1, weighted SwiGLU, linear_fc2 of the rows of all experts, sorted by expert."""

    def __init__(self, settings: LayerSettings) -> None:
        super().__init__()
        model = settings.model
        ffn = model.expert_ffn_hidden_size
        self.linear_fc1 = GroupedLinear(settings, model.hidden_size, model.fc1_size_of(ffn))
        self.activation = WeightedSwiglu()
        self.linear_fc2 = GroupedLinear(settings, ffn, model.hidden_size)

    def forward(self, tokens: Tensor, probs: Tensor, counts: list[int], regions: Regions) -> Tensor:
        """[rows, hidden] and [rows] to [rows, hidden]; `counts` are the rows of each expert."""
        widened = self.linear_fc1(tokens, counts)
        activated, dropped = regions.droppable(
            Module.EXPERT_ACTIVATION, self.activation, widened, probs
        )
        output: Tensor = self.linear_fc2(activated, counts)
        dropped.until_backward_of(output)
        return output


class GroupedLinear(nn.Module):
    """Weights [experts, out, in], without bias."""

    def __init__(self, settings: LayerSettings, in_size: int, out_size: int) -> None:
        super().__init__()
        shape = settings.model.num_moe_experts or 1, out_size, in_size
        self.weight = nn.Parameter(torch.empty(shape, **settings.where))

    def forward(self, rows: Tensor, counts: list[int]) -> Tensor:
        """[rows, in] to [rows, out]."""
        function: Any = _GroupedLinear
        output: Tensor = function.apply(rows, self.weight, counts)
        return output


class _GroupedLinear(torch.autograd.Function):
    """One product an expert, written into one output; keeps the rows."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, weight: Tensor, counts: list[int]) -> Tensor:
        ctx.save_for_backward(rows, weight)
        ctx.counts = counts
        output = rows.new_empty(rows.shape[0], weight.shape[1])
        parts = zip(torch.split(rows, counts), weight, torch.split(output, counts), strict=True)
        for part, own, out in parts:
            torch.mm(part, own.t(), out=out)
        return output

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        rows, weight = ctx.saved_tensors
        (grad,) = grads
        grad_rows, grad_weight = torch.empty_like(rows), torch.empty_like(weight)
        splits = (torch.split(tensor, ctx.counts) for tensor in (grad, rows, grad_rows))
        for of_output, part, of_part, own, of_own in zip(*splits, weight, grad_weight, strict=True):
            torch.mm(of_output, own, out=of_part)
            torch.mm(of_output.t(), part, out=of_own)
        return grad_rows, grad_weight, None


class WeightedSwiglu(nn.Module):
    """silu(gate) x value x probability of the token."""

    def forward(self, x: Tensor, probs: Tensor) -> Tensor:
        """[rows, 2 ffn] and [rows] to [rows, ffn]."""
        function: Any = _WeightedSwiglu
        output: Tensor = function.apply(x, probs)
        return output


class _WeightedSwiglu(torch.autograd.Function):
    """Keeps its input and the probabilities; what it computes between has the input's type."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, probs: Tensor) -> Tensor:
        ctx.save_for_backward(x, probs)
        gate, value = x.chunk(2, dim=-1)
        return functional.silu(gate).mul_(value).mul_(probs[:, None])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor]:
        x, probs = ctx.saved_tensors
        gate, value = x.chunk(2, dim=-1)
        grad = torch.empty_like(x)
        grad_gate, grad_value = grad.chunk(2, dim=-1)
        torch.ops.aten.silu.out(gate, out=grad_value)
        torch.mul(grad_value, value, out=grad_gate).mul_(grads[0])
        grad_probs = grad_gate.sum(-1, dtype=probs.dtype)
        grad_value.mul_(grads[0]).mul_(probs[:, None])
        torch.mul(grads[0], value, out=grad_gate).mul_(probs[:, None])
        torch.ops.aten.silu_backward.grad_input(grad_gate, gate, grad_input=grad_gate)
        return grad, grad_probs
