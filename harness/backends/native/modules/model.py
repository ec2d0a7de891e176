"""One pipeline stage of a GPT model, and how its weights begin."""

import zlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor, nn

from advisor.layers.operators import MOE_MODULES, Module
from advisor.models.layer_kind import FeedForward, LayerKind
from advisor.models.options import PositionEmbedding
from advisor.plan.recompute_plan import RecomputePlan, Segment
from harness.backends.native.modules import kernels, linear, moe
from harness.backends.native.modules.attention import LatentAttention, SelfAttention
from harness.backends.native.modules.layer_settings import LayerSettings, Mlp, Norm
from harness.backends.native.regions import Regions, policy_contexts, replay_later

_MLP: Final = frozenset({Module.LINEAR_FC1, Module.ACTIVATION, Module.LINEAR_FC2})


class TransformerLayer(nn.Module):
    """Norm, attention, residual, norm, MLP or experts, residual, under one segment of a plan. A
    checkpoint around a single layer is this module's own; one around several is the block's."""

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
        self.mlp: Mlp | moe.MoeLayer = (
            moe.MoeLayer(settings) if has_experts else Mlp(settings, model.ffn_hidden_size)
        )

    def forward(self, x: Tensor) -> Tensor:
        """[b, s (/ tp under SP), hidden] to the same."""
        if self.policy is not None:
            contexts = partial(policy_contexts, self.policy)
            output: Tensor = replay_later(self._run, x, contexts=contexts)
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
        x = kernels.bias_dropout_add(branch, attention.linear_proj.bias, x, self.hidden_dropout)
        normed, dropped = regions.droppable(Module.PRE_MLP_LAYERNORM, self.pre_mlp_layernorm, x)
        branch, bias = self._feed_forward(normed)
        dropped.until_backward_of(branch)
        return kernels.bias_dropout_add(branch, bias, x, self.hidden_dropout)

    def _feed_forward(self, normed: Tensor) -> tuple[Tensor, Tensor | None]:
        """The branch before its bias, and that."""
        if isinstance(self.mlp, moe.MoeLayer):
            experts = partial(self.mlp, regions=self.regions)
            return self.regions.run(MOE_MODULES, experts, normed), None
        return self.regions.run(_MLP, self.mlp, normed), self.mlp.linear_fc2.bias


class Embedding(nn.Module):
    """Word embeddings, learned positions, dropout."""

    def __init__(self, settings: LayerSettings) -> None:
        super().__init__()
        model, tp = settings.model, settings.tensor
        self.tp, self.dropout = tp, model.hidden_dropout
        self.word_embeddings = linear.VocabParallelEmbedding(
            model.padded_vocab_size(tp.size), model.hidden_size, tp, **settings.where
        )
        self.position_embeddings: nn.Parameter | None = None
        if model.position_embedding_type is PositionEmbedding.LEARNED:
            shape = (model.max_position_embeddings, model.hidden_size)
            self.position_embeddings = nn.Parameter(torch.empty(shape, **settings.where))

    def forward(self, tokens: Tensor) -> Tensor:
        """[b, s] token ids to [b, s (/ tp under SP), hidden]."""
        hidden: Tensor = self.word_embeddings(tokens)
        if self.position_embeddings is not None:
            positions = self.position_embeddings[None, : tokens.shape[1]]
            if self.tp.sequence_parallel:
                positions = positions.chunk(self.tp.size, dim=1)[self.tp.rank]
            hidden = hidden + positions
        return kernels.drop(hidden, self.dropout)


class TransformerBlock(nn.Module):
    """The layers of a stage under a plan, and the last stage's final norm. `layer_scope` surrounds
    the layers, and is set by who wants to count what they keep."""

    def __init__(
        self, settings: LayerSettings, plan: RecomputePlan, first_layer: int, *, last_stage: bool
    ) -> None:
        super().__init__()
        self.layer_scope: Callable[[], AbstractContextManager[Any]] = nullcontext
        self.layers = nn.ModuleDict()
        self._groups: list[tuple[Segment, list[TransformerLayer]]] = []
        frequencies = settings.frequencies()
        for segment in plan.segments:
            group = [
                TransformerLayer(settings, segment, kind, frequencies) for kind in segment.layers
            ]
            self._groups.append((segment, group))
            for layer in group:
                self.layers[str(first_layer + len(self.layers))] = layer
        self.final_layernorm: Norm | None = None
        if last_stage:
            self.final_layernorm = Norm(settings, settings.model.hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        """Through all layers, and the final norm where there is one."""
        with self.layer_scope():
            for segment, layers in self._groups:
                if segment.whole and segment.num_layers > 1:
                    x = replay_later(partial(_in_a_row, layers), x)
                else:
                    x = _in_a_row(layers, x)
        return x if self.final_layernorm is None else self.final_layernorm(x)


def _in_a_row(layers: list[TransformerLayer], x: Tensor) -> Tensor:
    for layer in layers:
        x = layer(x)
    return x


class GptModel(nn.Module):
    """One stage: embedding on the first, output layer (or the embedding's weight) on the last."""

    def __init__(
        self, settings: LayerSettings, plan: RecomputePlan, *, stage: int = 0, num_stages: int = 1
    ) -> None:
        super().__init__()
        model, tp = settings.model, settings.tensor
        self.tp, first, last = tp, stage == 0, stage == num_stages - 1
        self.embedding = Embedding(settings) if first else None
        self.decoder = TransformerBlock(settings, plan, stage * plan.num_layers, last_stage=last)
        self.output_layer: linear.ParallelLinear | None = None
        if last:
            self.output_layer = settings.linear(model.hidden_size, model.padded_vocab_size(tp.size))
            if model.share_embeddings_and_output_weights and self.embedding is not None:
                self.output_layer.weight = self.embedding.word_embeddings.weight

    def forward(self, x: Tensor) -> Tensor:
        """Token ids or hidden states to hidden states or this rank's logits."""
        if self.embedding is not None:
            x = self.embedding(x)
        x = self.decoder(x)
        return x if self.output_layer is None else self.output_layer(x)

    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Mean cross entropy of the tokens, fp32."""
        return linear.cross_entropy(logits, labels, self.tp).mean()

    def partly_seen_parameters(self) -> Iterator[nn.Parameter]:
        """Uncut parameters of which each TP rank computes a part of the gradient, to be summed:
        norms of the heads, and under SP whatever sees this rank's positions only."""
        if self.tp.size == 1:
            return
        for name, module in self.named_modules():
            if name.endswith(("q_layernorm", "k_layernorm")) or self.tp.sequence_parallel:
                whole = set(module._parameters) - set(_shards(module))
                yield from (p for key, p in module.named_parameters(recurse=False) if key in whole)


def _shards(module: nn.Module) -> dict[str, linear.Shard]:
    found: dict[str, linear.Shard] = getattr(module, "shards", {})
    return found


@torch.no_grad()
def initialise(model: GptModel, seed: int) -> None:
    """Normal(0, 0.02), norms 1, biases 0; the same weights however the model is cut: each has a
    generator seeded by its name, makes the whole tensor and takes this rank's part."""
    done: set[int] = set()
    for module_name, module in model.named_modules():
        for name, parameter in module.named_parameters(recurse=False):
            if id(parameter) in done:
                continue
            done.add(id(parameter))
            if name.endswith("bias"):
                parameter.zero_()
            elif parameter.ndim == 1:  # a norm
                parameter.fill_(1.0)
            else:
                _random(parameter, f"{seed}/{module_name}.{name}", _shards(module).get(name), model)


def _random(parameter: nn.Parameter, key: str, shard: linear.Shard | None, model: GptModel) -> None:
    generator = torch.Generator(parameter.device).manual_seed(zlib.crc32(key.encode()))
    shape, tp = list(parameter.shape), model.tp
    if shard is not None:
        shape[shard.dim] *= tp.size
    whole = torch.empty(shape, dtype=parameter.dtype, device=parameter.device)
    whole.normal_(0.0, 0.02, generator=generator)
    if shard is None:
        parameter.copy_(whole)
        return
    blocks = whole.chunk(shard.blocks, dim=shard.dim)
    mine = [block.chunk(tp.size, dim=shard.dim)[tp.rank] for block in blocks]
    parameter.copy_(torch.cat(mine, dim=shard.dim))
