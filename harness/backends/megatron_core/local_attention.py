"""Core attention of the local layer spec by torch's own flash kernels, where there is no TE."""

from typing import Any

import torch
from torch.nn import functional

from harness.backends.sdpa import flash_only


class SdpaAttention(torch.nn.Module):
    """Causal attention through scaled_dot_product_attention; no scores are kept.

    query [s, b, heads, channels], key and value with their own number of heads; gives
    [s, b, heads x channels of the values].
    """

    def __init__(self, config: Any, layer_number: int, **_: Any) -> None:
        super().__init__()
        self._dropout: float = config.attention_dropout

    def forward(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_: Any, **__: Any
    ) -> torch.Tensor:
        """Megatron's mask is always causal here, and is not read."""
        q, k, v = (x.permute(1, 2, 0, 3) for x in (query, key, value))
        with flash_only(q, v):
            out = functional.scaled_dot_product_attention(
                q,
                k,
                v,
                is_causal=True,
                dropout_p=self._dropout if self.training else 0.0,
                enable_gqa=query.shape[2] != key.shape[2],
            )
        return out.permute(2, 0, 1, 3).flatten(2)
