"""Parameter counts, as model cards print them: a fold over the operators' weights."""

from collections import Counter
from functools import lru_cache

from msgspec import Struct
from msgspec.structs import replace

from advisor.layers.family import implementation_of_towers
from advisor.layers.operators import Weight
from advisor.layers.shape import RankShape, embedding_weights, output_weights
from advisor.layers.transformer import transformer_layer, vision_ends, vision_operators
from advisor.models.layer_kind import FeedForward, LayerKind, Mixer, Role
from advisor.models.spec import ModelSpec


class ParameterCount(Struct, frozen=True, kw_only=True):
    """Parameters of a whole model by where they stand; the vocabulary is not padded.

    embedding: word embeddings and learned positions. layers: all transformer layers.
    output: final norm, and the output layer where it is not the word embedding.
    vision: the tower and its projector, in a model that sees.
    multi_token_prediction: its layers and projections, which model cards leave out of the total.
    """

    embedding: int
    layers: int
    output: int
    vision: int = 0
    multi_token_prediction: int = 0

    @property
    def total(self) -> int:
        """Sum of the first four."""
        return self.embedding + self.layers + self.output + self.vision


@lru_cache(maxsize=256)
def active_parameters(spec: ModelSpec) -> int:
    """Parameters that one token goes through: all but the routed experts it is not sent to.
    Embedding and output layer count; model cards often leave the embedding out."""
    if spec.num_moe_experts is None:
        return parameter_count(spec).total
    moe = sum(kind.feed_forward is FeedForward.MOE for kind in spec.layer_kinds)
    shape = RankShape(model=spec, seq_length=1, micro_batch_size=1)
    experts = sum(
        weight.num_elements
        for operator in transformer_layer(shape, LayerKind(Mixer.NONE, FeedForward.MOE))
        for weight in operator.weights
        if weight.expert
    )
    idle = spec.num_moe_experts - spec.moe_router_topk
    return parameter_count(spec).total - moe * experts // spec.num_moe_experts * idle


@lru_cache(maxsize=256)
def parameter_count(spec: ModelSpec) -> ParameterCount:
    """Parameters of `spec` on one rank that holds everything. Megatron pads the vocabulary to a
    multiple; published counts do not, so the multiple is 1 here."""
    unpadded = replace(spec, make_vocab_size_divisible_by=1)
    shape = RankShape(model=unpadded, seq_length=1, micro_batch_size=1)
    layers = sum(count * _layer(shape, kind) for kind, count in Counter(spec.layer_kinds).items())
    output = _elements(output_weights(shape, holds_embedding=True))
    last = spec.layer_kinds[-1]
    if spec.mtp_num_layers is not None:
        output += _layer(shape, last._replace(role=Role.FINAL_LAYERNORM))
    mtp = _layer(shape, last._replace(role=Role.MULTI_TOKEN_PREDICTION))
    return ParameterCount(
        embedding=_elements(embedding_weights(shape)),
        layers=layers,
        output=output,
        vision=_of_tower(shape) if spec.vision is not None else 0,
        multi_token_prediction=mtp * (spec.mtp_num_layers or 0),
    )


def _of_tower(shape: RankShape) -> int:
    shape = replace(shape, model=replace(shape.model, transformer_impl=implementation_of_towers()))
    ends = (one for end in vision_ends(constant=False) for one in vision_operators(shape, end))
    blocks = sum(_layer(shape, kind) for kind in shape.model.tower_kinds)
    return blocks + sum(_elements(one.weights) for one in ends)


def _layer(shape: RankShape, kind: LayerKind) -> int:
    return sum(_elements(operator.weights) for operator in transformer_layer(shape, kind))


def count_parameters(spec: ModelSpec) -> int:
    """Parameters of the whole model, embeddings counted once where they are tied."""
    return parameter_count(spec).total


def _elements(weights: tuple[Weight, ...]) -> int:
    return sum(weight.num_elements for weight in weights)
