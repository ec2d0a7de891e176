"""Self-attention with query groups, and multi-latent attention (megatron-core 0.16.1 attention.py,
multi_latent_attention.py)."""

from typing import Final

import torch
from torch import Tensor, nn

from advisor.layers.operators import Module
from harness.backends.native.modules.kernels import CoreAttention, rotate
from harness.backends.native.modules.layer_settings import LayerSettings, Norm
from harness.backends.native.modules.linear import ParallelLinear
from harness.backends.native.regions import Regions

_CORE: Final = frozenset({Module.CORE_ATTENTION})
_QKV: Final = frozenset({Module.LINEAR_QKV})
_PROJ: Final = frozenset({Module.LINEAR_PROJ})


class SelfAttention(nn.Module):
    """linear_qkv, rotary embedding, core attention, linear_proj. mixed_qkv is laid out as
    Megatron's: per key/value head its query heads, the key, the value. The key, the value and,
    except for grouped attention with several groups, the query are views of it."""

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
        query, key, value = torch.split(
            grouped, [grouped.shape[-1] - 2 * self.channels, self.channels, self.channels], dim=-1
        )
        return query.reshape(b, s, -1, self.channels), key, value


class LatentAttention(nn.Module):
    """Down-projections, norms, rotary up-projections, core attention, linear_proj."""

    def __init__(self, settings: LayerSettings, frequencies: Tensor | None) -> None:
        super().__init__()
        model = settings.model
        widths = model.kv_lora_rank, model.qk_pos_emb_head_dim
        self._widths = list(widths)
        self.linear_kv_down_proj = settings.linear(model.hidden_size, sum(widths))
        self.kv_layernorm = Norm(settings, model.kv_lora_rank) if model.qk_layernorm else None
        self.linear_q_down_proj: ParallelLinear | None = None
        self.q_layernorm: Norm | None = None
        if model.q_lora_rank is not None:
            self.linear_q_down_proj = settings.linear(model.hidden_size, model.q_lora_rank)
            self.q_layernorm = Norm(settings, model.q_lora_rank) if model.qk_layernorm else None
        self.up_projections = UpProjections(settings, frequencies)
        self.core_attention = CoreAttention(model.attention_dropout)
        self.linear_proj = settings.linear(
            model.num_attention_heads * model.v_head_dim,
            model.hidden_size,
            column_parallel=False,
            bias=model.add_bias_linear,
        )

    def forward(self, x: Tensor, regions: Regions) -> Tensor:
        """The branch before its bias; the caller adds that with dropout and residual."""
        query = x if self.linear_q_down_proj is None else self.linear_q_down_proj(x)
        combined = self.linear_kv_down_proj(x)
        compressed, k_pos_emb = torch.split(combined, self._widths, dim=-1)
        if self.q_layernorm is not None:
            query = self.q_layernorm(query)
        if self.kv_layernorm is not None:
            compressed = self.kv_layernorm(compressed)
        heads, dropped = regions.droppable(
            Module.QKV_UP_PROJ, self.up_projections, query, compressed, k_pos_emb
        )
        context = regions.run(_CORE, self.core_attention, *heads)
        dropped.until_backward_of(context)
        branch: Tensor = self.linear_proj(context)
        return branch


class UpProjections(nn.Module):
    """All heads' query, key and value from the compressed ones."""

    def __init__(self, settings: LayerSettings, frequencies: Tensor | None) -> None:
        super().__init__()
        model = settings.model
        self._frequencies = frequencies
        self._nope, self._heads = model.qk_head_dim, model.num_attention_heads
        query_in = model.q_lora_rank or model.hidden_size
        self.linear_q_up_proj = settings.linear(query_in, self._heads * model.qk_channels)
        self.linear_kv_up_proj = settings.linear(
            model.kv_lora_rank, self._heads * (self._nope + model.v_head_dim)
        )

    def forward(
        self, query: Tensor, compressed: Tensor, k_pos_emb: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """[b, s, heads, channels] each, from [b, s, rank]; the rotary part of the key,
        [b, s, qk_pos_emb_head_dim], is the same for all heads."""
        # forward: no module hooks, as this may be replayed inside a backward
        nope, turned = self._per_head(self.linear_q_up_proj.forward(query))
        key, value = self._per_head(self.linear_kv_up_proj.forward(compressed))
        shared = self._rotate(k_pos_emb[:, :, None]).expand(-1, -1, self._heads, -1)
        query = torch.cat((nope, self._rotate(turned)), dim=-1)
        return query, torch.cat((key, shared), dim=-1), value.contiguous()

    def _per_head(self, wide: Tensor) -> tuple[Tensor, Tensor]:
        """The first qk_head_dim channels of every head, and the others."""
        heads = wide.view(*wide.shape[:-1], self._heads, -1)
        return heads[..., : self._nope], heads[..., self._nope :]

    def _rotate(self, x: Tensor) -> Tensor:
        return x if self._frequencies is None else rotate(x, self._frequencies)
