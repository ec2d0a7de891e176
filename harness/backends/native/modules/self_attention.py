"""Self-attention with query groups (megatron-core 0.16.1 attention.py)."""

from typing import Final

import torch
from torch import Tensor, nn

from advisor.layers.operators import Module
from harness.backends.native.modules.attention import CoreAttention
from harness.backends.native.modules.kernels import rotate
from harness.backends.native.modules.layer_settings import LayerSettings
from harness.backends.native.modules.norm import Norm
from harness.backends.native.regions import Regions

_CORE: Final = frozenset({Module.CORE_ATTENTION})
_QKV: Final = frozenset({Module.LINEAR_QKV})
_PROJ: Final = frozenset({Module.LINEAR_PROJ})


class SelfAttention(nn.Module):
    """linear_qkv, rotary embedding, core attention, linear_proj.

    mixed_qkv is laid out as Megatron's: per key/value head its query heads, the key, the value. The
    key, the value and, but for grouped attention with several groups, the query are views of it.
    """

    def __init__(self, settings: LayerSettings, frequencies: Tensor | None) -> None:
        super().__init__()
        model = settings.model
        self.groups = model.num_query_groups // settings.tensor.size
        self.channels = model.kv_channels
        self._frequencies = frequencies
        self.linear_qkv = settings.linear(
            model.hidden_size,
            model.query_projection_size + 2 * model.kv_projection_size,
            bias=model.add_bias_linear or model.add_qkv_bias,
            adds_bias=True,
        )
        norms = [Norm(settings, self.channels) if model.qk_layernorm else None for _ in range(2)]
        self.q_layernorm, self.k_layernorm = norms
        self.core_attention = CoreAttention(model.attention_dropout)
        self.linear_proj = settings.linear(
            model.query_projection_size,
            model.hidden_size,
            column_parallel=False,
            bias=model.add_bias_linear,
        )

    def forward(self, x: Tensor, regions: Regions) -> Tensor:
        """The branch before its bias; the caller adds that with dropout and residual."""
        mixed = regions.run(_QKV, self.linear_qkv, x)
        query, key, value = self._split(mixed)
        if self.q_layernorm is not None and self.k_layernorm is not None:
            query, key = self.q_layernorm(query), self.k_layernorm(key)
        if self._frequencies is not None:
            query, key = rotate(query, self._frequencies), rotate(key, self._frequencies)
        context = regions.run(_CORE, self.core_attention, query, key, value)
        branch: Tensor = regions.run(_PROJ, self.linear_proj, context)
        return branch

    def _split(self, mixed: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        b, s, _ = mixed.shape
        grouped = mixed.view(b, s, self.groups, -1)
        query_width = grouped.shape[-1] - 2 * self.channels
        query, key, value = torch.split(
            grouped, [query_width, self.channels, self.channels], dim=-1
        )
        return query.reshape(b, s, -1, self.channels), key, value
