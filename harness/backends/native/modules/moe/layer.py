"""The feed-forward part of a MoE layer on one device: shared experts, router, routed experts.

As megatron-core 0.16.1 moe/moe_layer.py with the allgather dispatcher; no token is dropped.
"""

from typing import Any

import torch
from torch import Tensor, nn

from advisor.layers.megatron.moe.shared import SHARED_MODULES
from harness.backends.native.modules.layer_settings import LayerSettings
from harness.backends.native.modules.mlp import Mlp
from harness.backends.native.modules.moe.experts import GroupedMlp
from harness.backends.native.modules.moe.router import Router
from harness.backends.native.regions import Regions


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
    """An MLP that sees every token, behind a sigmoid gate where the model has one."""

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
    """Tokens [rows, hidden] and probabilities [rows] sorted by expert, and the token that each row
    is of (moe_utils.py permute)."""
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
