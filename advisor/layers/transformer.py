"""The operators of a model's parts, in execution order, as its family of layers writes them."""

from msgspec.structs import replace

from advisor.layers.family import family_of
from advisor.layers.operators import LAYER_INPUT, Operator
from advisor.layers.shape import RankShape
from advisor.models.layer_kind import DENSE, LayerKind

__all__ = ["LAYER_INPUT", "embedding_operators", "head_operators", "transformer_layer"]


def transformer_layer(shape: RankShape, kind: LayerKind = DENSE) -> tuple[Operator, ...]:
    """Operators of one layer."""
    return _sided(shape, family_of(shape.model).layer(_whole(shape), kind))


def embedding_operators(shape: RankShape) -> tuple[Operator, ...]:
    """Embedding lookup, and its dropout where hidden_dropout > 0."""
    return _sided(shape, family_of(shape.model).embedding(_whole(shape)))


def head_groups(shape: RankShape) -> tuple[tuple[str, tuple[Operator, ...]], ...]:
    """Final norm, output layer and cross entropy of the last stage, by what runs as one."""
    groups = family_of(shape.model).head(_whole(shape))
    if shape.side is None:
        return groups
    return tuple((name, _sided(shape, operators)) for name, operators in groups)


def _whole(shape: RankShape) -> RankShape:
    """`shape` with both pools."""
    return shape if shape.side is None else replace(shape, side=None)


def _sided(shape: RankShape, operators: tuple[Operator, ...]) -> tuple[Operator, ...]:
    """What `shape.side` allocates of them."""
    if shape.side is None:
        return operators
    from advisor.layers.captured import one_side

    return one_side(operators, shape.side)


def head_operators(shape: RankShape) -> tuple[Operator, ...]:
    """The same, one after another."""
    return tuple(operator for _, operators in head_groups(shape) for operator in operators)
