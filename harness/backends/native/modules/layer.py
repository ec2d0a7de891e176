"""One transformer layer of Megatron's modules (megatron-core 0.16.1 transformer_layer.py)."""

from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import Tensor, nn

from advisor.layers.operators import Module
from advisor.models.spec import ModelSpec, Normalization, PositionEmbedding
from advisor.recompute import Segment
from harness.backends.native.modules.attention import flash_attention
from harness.backends.native.modules.kernels import (
    bias_activation,
    bias_dropout_add,
    normalize,
    rotary_frequencies,
    rotate,
)
from harness.backends.native.modules.linear import ParallelLinear, TensorParallel
from harness.backends.native.regions import Regions, policy_contexts, replay_later
from harness.backends.native.setting import OpPolicy

_MLP: Final = frozenset({Module.LINEAR_FC1, Module.ACTIVATION, Module.LINEAR_FC2})
_CORE: Final = frozenset({Module.CORE_ATTENTION})
_QKV: Final = frozenset({Module.LINEAR_QKV})
_PROJ: Final = frozenset({Module.LINEAR_PROJ})


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerSettings:
    """What every layer of a model is built from."""

    model: ModelSpec
    seq_length: int
    dtype: torch.dtype
    device: torch.device
    tensor: TensorParallel = field(default_factory=TensorParallel)
    policy: OpPolicy | None = None
    offloaded: frozenset[Module] = frozenset()

    @property
    def where(self) -> dict[str, Any]:
        """Keywords that make a parameter."""
        return {"dtype": self.dtype, "device": self.device}

    def frequencies(self) -> Tensor | None:
        """Rotary angles that all layers share; None without rotary embedding."""
        if self.model.position_embedding_type is not PositionEmbedding.ROPE:
            return None
        width = int(self.model.kv_channels * self.model.rotary_percent)
        return rotary_frequencies(self.seq_length, width, self.device)


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


class CoreAttention(nn.Module):
    """Causal flash attention; its dropout is the model's."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.dropout = dropout

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """[b, s, heads, channels] each to [b, s, heads x channels]."""
        return flash_attention(query, key, value, self.dropout).flatten(2)


class SelfAttention(nn.Module):
    """linear_qkv, rotary embedding, core attention, linear_proj.

    mixed_qkv is laid out as Megatron's: per key/value head its query heads, the key, the value. The
    key, the value and, but for grouped attention with several groups, the query are views of it.
    """

    def __init__(self, settings: LayerSettings, frequencies: Tensor | None) -> None:
        super().__init__()
        model, tp = settings.model, settings.tensor
        self.groups = model.num_query_groups // tp.size
        self.channels = model.kv_channels
        self._frequencies = frequencies
        self.linear_qkv = ParallelLinear(
            model.hidden_size, model.query_projection_size + 2 * model.kv_projection_size, tp,
            column_parallel=True, bias=model.add_bias_linear or model.add_qkv_bias,
            adds_bias=True, **settings.where,
        )  # fmt: skip
        norms = [Norm(settings, self.channels) if model.qk_layernorm else None for _ in range(2)]
        self.q_layernorm, self.k_layernorm = norms
        self.core_attention = CoreAttention(model.attention_dropout)
        self.linear_proj = ParallelLinear(
            model.query_projection_size, model.hidden_size, tp, column_parallel=False,
            bias=model.add_bias_linear, **settings.where,
        )  # fmt: skip

    def forward(self, x: Tensor, regions: Regions) -> Tensor:
        """The branch before its bias; the caller adds that with dropout and residual."""
        mixed = regions.run(_QKV, self.linear_qkv, x)
        query, key, value = self._split(mixed)
        if self.q_layernorm is not None and self.k_layernorm is not None:
            query, key = self.q_layernorm(query), self.k_layernorm(key)
        if self._frequencies is not None:
            query, key = rotate(query, self._frequencies), rotate(key, self._frequencies)
        context = regions.run(_CORE, self.core_attention, query, key, value)
        return regions.run(_PROJ, self.linear_proj, context)

    def _split(self, mixed: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        b, s, _ = mixed.shape
        grouped = mixed.view(b, s, self.groups, -1)
        query_width = grouped.shape[-1] - 2 * self.channels
        query, key, value = torch.split(
            grouped, [query_width, self.channels, self.channels], dim=-1
        )
        return query.reshape(b, s, -1, self.channels), key, value


class Mlp(nn.Module):
    """linear_fc1, bias and activation in one, linear_fc2."""

    def __init__(self, settings: LayerSettings) -> None:
        super().__init__()
        model, tp = settings.model, settings.tensor
        self.activation = model.activation
        self.linear_fc1 = ParallelLinear(
            model.hidden_size, model.fc1_size, tp, column_parallel=True,
            bias=model.add_bias_linear, blocks=2 if model.activation.gated else 1,
            **settings.where,
        )  # fmt: skip
        self.linear_fc2 = ParallelLinear(
            model.ffn_hidden_size, model.hidden_size, tp, column_parallel=False,
            bias=model.add_bias_linear, **settings.where,
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        """The branch before its bias."""
        widened = self.linear_fc1(x)
        activated = bias_activation(self.activation, widened, self.linear_fc1.bias)
        output: Tensor = self.linear_fc2(activated)
        return output


class TransformerLayer(nn.Module):
    """Norm, attention, residual, norm, MLP, residual, under one segment of a plan.

    A checkpoint around a single layer is this module's own, inside of whatever shards it; one
    around several is the block's.
    """

    def __init__(
        self, settings: LayerSettings, segment: Segment, frequencies: Tensor | None
    ) -> None:
        super().__init__()
        model = settings.model
        self.hidden_dropout = model.hidden_dropout
        self.policy = settings.policy
        self.replays_itself = segment.whole and segment.num_layers == 1
        self.regions = Regions(segment.runs, settings.offloaded)
        self.input_layernorm = Norm(settings, model.hidden_size)
        self.self_attention = SelfAttention(settings, frequencies)
        self.pre_mlp_layernorm = Norm(settings, model.hidden_size)
        self.mlp = Mlp(settings)

    def forward(self, x: Tensor) -> Tensor:
        """[b, s (/ tp under SP), hidden] to the same."""
        if self.policy is not None:
            output: Tensor = replay_later(self._run, x, contexts=policy_contexts(self.policy))
            return output
        if self.replays_itself:
            replayed: Tensor = replay_later(self._run, x)
            return replayed
        return self._run(x)

    def _run(self, x: Tensor) -> Tensor:
        regions, attention, mlp = self.regions, self.self_attention, self.mlp
        normed, dropped = regions.droppable(Module.INPUT_LAYERNORM, self.input_layernorm, x)
        branch = attention(normed, regions)
        dropped.until_backward_of(branch)
        x = bias_dropout_add(branch, attention.linear_proj.bias, x, self.hidden_dropout)
        normed, dropped = regions.droppable(Module.PRE_MLP_LAYERNORM, self.pre_mlp_layernorm, x)
        branch = regions.run(_MLP, mlp, normed)
        dropped.until_backward_of(branch)
        return bias_dropout_add(branch, mlp.linear_fc2.bias, x, self.hidden_dropout)
