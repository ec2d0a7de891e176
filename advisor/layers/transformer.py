"""The operators of a model's parts, in execution order, as its family of layers writes them."""

from advisor.layers.family import family_of
from advisor.layers.operators import LAYER_INPUT, Operator
from advisor.layers.shape import RankShape
from advisor.models.layer_kind import DENSE, LayerKind

__all__ = ["LAYER_INPUT", "embedding_operators", "head_operators", "transformer_layer"]


def transformer_layer(shape: RankShape, kind: LayerKind = DENSE) -> tuple[Operator, ...]:
    """Operators of one layer."""
    return family_of(shape.model).layer(shape, kind)


def embedding_operators(shape: RankShape) -> tuple[Operator, ...]:
    """Embedding lookup, and its dropout where hidden_dropout > 0."""
    return family_of(shape.model).embedding(shape)


def head_groups(shape: RankShape) -> tuple[tuple[str, tuple[Operator, ...]], ...]:
    """Final norm, output layer and cross entropy of the last stage, by what runs as one."""
    return family_of(shape.model).head(shape)


def head_operators(shape: RankShape) -> tuple[Operator, ...]:
    """The same, one after another."""
    return tuple(operator for _, operators in head_groups(shape) for operator in operators)
