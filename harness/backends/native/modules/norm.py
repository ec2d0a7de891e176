"""Norms of hidden states and heads."""

import torch
from torch import Tensor, nn

from advisor.models.options import Normalization
from harness.backends.native.modules.kernels import normalize
from harness.backends.native.modules.layer_settings import LayerSettings


class Norm(nn.Module):
    """RMSNorm or LayerNorm, as the model says."""

    def __init__(self, settings: LayerSettings, width: int) -> None:
        super().__init__()
        self.kind = settings.model.normalization
        self.weight = nn.Parameter(torch.empty(width, **settings.where))
        self.bias: nn.Parameter | None = None
        if self.kind is Normalization.LAYER_NORM:
            self.bias = nn.Parameter(torch.empty(width, **settings.where))

    def forward(self, x: Tensor) -> Tensor:
        """Normalizes the last dimension."""
        return normalize(self.kind, x, self.weight, self.bias)
