"""Router of a MoE layer: gating, top-k routing, the loss that balances experts.

As megatron-core 0.16.1 moe/router.py and moe_utils.py, and it keeps what they keep; but experts
take turns instead of being searched for: memory and time must not hang on weights that hardly
learn.
"""

from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn import functional

from advisor.models.options import LoadBalancing, RouterDType, ScoreFunction
from harness.backends.native.modules.layer_settings import LayerSettings

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
        wide = self.model.moe_router_dtype is RouterDType.FP32
        function: Any = _Gating
        logits: Tensor = function.apply(
            x.flatten(0, 1), self.weight, torch.float32 if wide else x.dtype
        )
        chosen = take_turns(logits.shape[0], self.num_experts, self.model.moe_router_topk, x.device)
        probs = torch.zeros_like(logits).scatter(1, chosen, self._weights(logits, chosen))
        routing_map = torch.zeros_like(logits, dtype=torch.bool).scatter(1, chosen, True)
        return self._with_loss(probs, logits, routing_map, x.shape[0]), routing_map

    def _weights(self, logits: Tensor, chosen: Tensor) -> Tensor:
        """[tokens, topk]: what each chosen expert's output is multiplied by."""
        if self.model.moe_router_score_function is ScoreFunction.SIGMOID:
            scores = torch.sigmoid(logits.float()).type_as(logits)
            biased = self.model.moe_router_enable_expert_bias  # which then keeps its scores
            scores = scores.gather(1, chosen) if biased else _pick(scores, chosen)
            one = self.model.moe_router_topk == 1
            return scores if one else scores / (scores.sum(-1, keepdim=True) + _LEAST_SUM)
        if self.model.moe_router_pre_softmax:
            return _pick(_softmax(logits).type_as(logits), chosen)
        return _softmax(_pick(logits, chosen)).type_as(logits)

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
        function: Any = _LoadBalancing
        output: Tensor = function.apply(probs, scores, counts, scale / groups)
        return output


def take_turns(tokens: int, num_experts: int, topk: int, device: torch.device) -> Tensor:
    """[tokens, topk] experts, each as often as any other, give or take one."""
    return torch.arange(tokens * topk, device=device).view(tokens, topk) % num_experts


def _softmax(x: Tensor) -> Tensor:
    return functional.softmax(x, dim=-1, dtype=torch.float32)


def _pick(scores: Tensor, chosen: Tensor) -> Tensor:
    function: Any = _Pick
    picked: Tensor = function.apply(scores, chosen)
    return picked


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
