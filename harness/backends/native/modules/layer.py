"""What every layer of the native model is built from."""

from functools import partial
from typing import Final

from torch import Tensor, nn

from advisor.layers.megatron.moe.layer import MOE_MODULES
from advisor.layers.operators import Module
from advisor.models.layer_kind import FeedForward, LayerKind
from advisor.plan.recompute_plan import Segment
from harness.backends.native.modules.attention import LatentAttention, SelfAttention
from harness.backends.native.modules.kernels import bias_dropout_add
from harness.backends.native.modules.layer_settings import LayerSettings, Mlp, Norm
from harness.backends.native.modules.moe import MoeLayer
from harness.backends.native.regions import Regions, policy_contexts, replay_later

_MLP: Final = frozenset({Module.LINEAR_FC1, Module.ACTIVATION, Module.LINEAR_FC2})


class TransformerLayer(nn.Module):
    """Norm, attention, residual, norm, MLP or experts, residual, under one segment of a plan.

    A checkpoint around a single layer is this module's own, inside of whatever shards it; one
    around several is the block's.
    """

    def __init__(
        self, settings: LayerSettings, segment: Segment, kind: LayerKind, frequencies: Tensor | None
    ) -> None:
        super().__init__()
        model = settings.model
        self.hidden_dropout = model.hidden_dropout
        self.policy = settings.policy
        self.replays_itself = segment.whole and segment.num_layers == 1
        self.regions = Regions(segment.runs, settings.offloaded)
        self.input_layernorm = Norm(settings, model.hidden_size)
        attention = LatentAttention if model.multi_latent_attention else SelfAttention
        self.self_attention = attention(settings, frequencies)
        self.pre_mlp_layernorm = Norm(settings, model.hidden_size)
        has_experts = kind.feed_forward is FeedForward.MOE
        self.mlp: Mlp | MoeLayer = (
            MoeLayer(settings) if has_experts else Mlp(settings, model.ffn_hidden_size)
        )

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
        regions, attention = self.regions, self.self_attention
        normed, dropped = regions.droppable(Module.INPUT_LAYERNORM, self.input_layernorm, x)
        branch = attention(normed, regions)
        dropped.until_backward_of(branch)
        x = bias_dropout_add(branch, attention.linear_proj.bias, x, self.hidden_dropout)
        normed, dropped = regions.droppable(Module.PRE_MLP_LAYERNORM, self.pre_mlp_layernorm, x)
        branch, bias = self._feed_forward(normed)
        dropped.until_backward_of(branch)
        return bias_dropout_add(branch, bias, x, self.hidden_dropout)

    def _feed_forward(self, normed: Tensor) -> tuple[Tensor, Tensor | None]:
        """The branch before its bias, and that."""
        if isinstance(self.mlp, MoeLayer):
            experts = partial(self.mlp, regions=self.regions)
            return self.regions.run(MOE_MODULES, experts, normed), None
        return self.regions.run(_MLP, self.mlp, normed), self.mlp.linear_fc2.bias
