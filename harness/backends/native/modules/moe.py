"""The feed-forward part of a MoE layer on one device: router, routed and shared experts. As
megatron-core 0.16.1 moe/moe_layer.py with the allgather dispatcher (no token is dropped),
router.py, moe_utils.py, experts.py TEGroupedMLP and fusions/fused_bias_swiglu.py, and it keeps what
they keep; but experts take turns instead of being searched for: memory and time must not hang on
weights that hardly learn."""

from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn import functional

from advisor.layers.operators import SHARED_MODULES, Module
from advisor.models.options import LoadBalancing, RouterDType, ScoreFunction
from harness.backends.native.modules.layer_settings import LayerSettings, Mlp
from harness.backends.native.modules.linear import applied
from harness.backends.native.regions import Regions

_LEAST_SUM: Final = 1e-20  # of the chosen scores, which divides them


class Router(nn.Module):
    """From hidden states to the probabilities and the map of each token's experts."""

    def __init__(self, settings: LayerSettings) -> None:
        super().__init__()
        model = settings.model
        self.model, self.num_experts = model, model.num_moe_experts or 1
        self.loss_scale = model.moe_aux_loss_coeff / settings.num_microbatches
        self.weight = nn.Parameter(
            torch.empty(self.num_experts, model.hidden_size, **settings.where)
        )

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """[b, s, hidden] to probabilities and map, [b x s, experts] each."""
        dtype = torch.float32 if self.model.moe_router_dtype is RouterDType.FP32 else x.dtype
        logits = applied(_Gating, x.flatten(0, 1), self.weight, dtype)
        chosen = take_turns(logits.shape[0], self.num_experts, self.model.moe_router_topk, x.device)
        probs = torch.zeros_like(logits).scatter(1, chosen, self._weights(logits, chosen))
        routing_map = torch.zeros_like(logits, dtype=torch.bool).scatter(1, chosen, True)
        return self._with_loss(probs, logits, routing_map, x.shape[0]), routing_map

    def _weights(self, logits: Tensor, chosen: Tensor) -> Tensor:
        """[tokens, topk]: what each chosen expert's output is multiplied by."""
        if self.model.moe_router_score_function is ScoreFunction.SIGMOID:
            scores = torch.sigmoid(logits.float()).type_as(logits)
            biased = self.model.moe_router_enable_expert_bias  # which then keeps its scores
            scores = scores.gather(1, chosen) if biased else applied(_Pick, scores, chosen)
            one = self.model.moe_router_topk == 1
            return scores if one else scores / (scores.sum(-1, keepdim=True) + _LEAST_SUM)
        if self.model.moe_router_pre_softmax:
            return applied(_Pick, _softmax(logits).type_as(logits), chosen)
        return _softmax(applied(_Pick, logits, chosen)).type_as(logits)

    def _with_loss(
        self, probs: Tensor, logits: Tensor, routing_map: Tensor, sequences: int
    ) -> Tensor:
        """`probs`, whose backward is that of the auxiliary loss too, if there is one."""
        kind = self.model.moe_router_load_balancing_type
        if not self.loss_scale or kind is LoadBalancing.NONE:
            return probs
        if self.model.moe_router_score_function is ScoreFunction.SIGMOID:
            scores = torch.sigmoid(logits)
            scores = scores / (scores.sum(-1, keepdim=True) + _LEAST_SUM)
        else:
            scores = _softmax(logits)
        groups = sequences if kind is LoadBalancing.SEQ_AUX_LOSS else 1
        counts = routing_map.view(groups, -1, self.num_experts).sum(1)
        tokens = len(logits) // groups
        scale = self.loss_scale * self.num_experts / (tokens**2 * self.model.moe_router_topk)
        return applied(_LoadBalancing, probs, scores, counts, scale / groups)


def take_turns(tokens: int, num_experts: int, topk: int, device: torch.device) -> Tensor:
    """[tokens, topk] experts, each as often as any other, give or take one."""
    return torch.arange(tokens * topk, device=device).view(tokens, topk) % num_experts


def _softmax(x: Tensor) -> Tensor:
    return functional.softmax(x, dim=-1, dtype=torch.float32)


class _Gating(torch.autograd.Function):
    """Logits in the router's type; keeps input and weight as they are (moe_utils.py
    RouterGatingLinearFunction)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, dtype: torch.dtype) -> Tensor:
        ctx.save_for_backward(x, weight)
        return x.to(dtype) @ weight.to(dtype).t()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        x, weight = ctx.saved_tensors
        (grad,) = grads
        grad_weight = grad.t() @ x.to(grad.dtype)
        return (grad @ weight.to(grad.dtype)).to(x.dtype), grad_weight.to(weight.dtype), None


class _Pick(torch.autograd.Function):
    """scores.gather(1, chosen) that keeps the indices alone, as top-k does."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, chosen: Tensor) -> Tensor:
        ctx.save_for_backward(chosen)
        ctx.shape = scores.shape
        return scores.gather(1, chosen)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (chosen,) = ctx.saved_tensors
        return grads[0].new_zeros(ctx.shape).scatter_(1, chosen, grads[0]), None


class _LoadBalancing(torch.autograd.Function):
    """Hands `probs` on; its backward adds the gradient of the loss, which is the sum over groups of
    tokens and experts of scores x tokens of the expert x scale. Keeps the counts and the loss
    (moe_utils.py switch_load_balancing_loss_func, MoEAuxLossAutoScaler)."""

    @staticmethod
    def forward(ctx: Any, probs: Tensor, scores: Tensor, counts: Tensor, scale: float) -> Tensor:
        grouped = scores.view(len(counts), -1, counts.shape[1])
        loss = (grouped.sum(1) * counts).sum() * scale
        ctx.save_for_backward(counts, loss)
        ctx.scale, ctx.shape, ctx.dtype = scale, grouped.shape, scores.dtype
        return probs.view_as(probs)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None, None]:
        counts, _ = ctx.saved_tensors
        slope = (counts * ctx.scale).to(ctx.dtype)[:, None].expand(ctx.shape)
        return grads[0], slope.reshape(-1, ctx.shape[-1]), None, None


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
        return applied(_GroupedLinear, rows, self.weight, counts)


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
        return applied(_WeightedSwiglu, x, probs)


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


class MoeLayer(nn.Module):
    """Routed experts, and shared ones where the model has them."""

    def __init__(self, settings: LayerSettings) -> None:
        super().__init__()
        width = settings.model.moe_shared_expert_intermediate_size
        self.router = Router(settings)
        self.experts = GroupedMlp(settings)
        self.shared_experts = SharedExperts(settings, width) if width else None

    def forward(self, x: Tensor, regions: Regions) -> Tensor:
        """[b, s, hidden] to the same."""
        shared = None
        if self.shared_experts is not None:
            shared = regions.run(SHARED_MODULES, self.shared_experts, x)
        probs, routing_map = self.router(x)
        tokens, weights, rows = permute(x.flatten(0, 1), probs, routing_map)
        counts = routing_map.sum(0).tolist()
        output = unpermute(self.experts(tokens, weights, counts, regions), rows, x)
        return output if shared is None else output + shared


class SharedExperts(Mlp):
    """An MLP that sees every token, after a sigmoid gate where the model has one."""

    def __init__(self, settings: LayerSettings, ffn_hidden_size: int) -> None:
        super().__init__(settings, ffn_hidden_size)
        self.gate_weight: nn.Parameter | None = None
        if settings.model.moe_shared_expert_gate:
            shape = 1, settings.model.hidden_size
            self.gate_weight = nn.Parameter(torch.empty(shape, **settings.where))

    def forward(self, x: Tensor) -> Tensor:
        """[b, s, hidden] to the same."""
        output = super().forward(x)
        if self.gate_weight is None:
            return output
        return output * torch.sigmoid(x @ self.gate_weight[0])[..., None]


def permute(tokens: Tensor, probs: Tensor, routing_map: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens [rows, hidden] and probabilities [rows] by expert; each row's token (moe_utils.py)."""
    mask = routing_map.t().contiguous()
    numbers = torch.arange(len(tokens), device=tokens.device)
    rows = numbers.expand(len(mask), -1).masked_select(mask)
    weights = probs.t().contiguous().masked_select(mask)
    return tokens.index_select(0, rows), weights, rows


def unpermute(output: Tensor, rows: Tensor, like: Tensor) -> Tensor:
    """Sum of each token's rows, in the shape of `like` (moe_utils.py unpermute)."""
    index = rows[:, None].expand(-1, output.shape[1])
    zeros: Any = output.new_zeros(like.numel() // output.shape[1], output.shape[1])
    summed: Tensor = zeros.scatter_add_(0, index, output)
    return summed.view_as(like)
