"""The operators of a model's parts, in execution order, as its family of layers writes them.

CUDA graphs have a pool of their own, from which nothing else is served: what the operators that
they hold and those next to them need at most adds up, though they need it at different times.
"""

from collections.abc import Iterable
from functools import lru_cache

from msgspec.structs import replace

from advisor.layers.adapters import frozen
from advisor.layers.family import VisionEnd, family_of
from advisor.layers.operators import LAYER_INPUT, Module, Operator, Operators, PoolSide, Tensor
from advisor.layers.shape import RankShape
from advisor.models.layer_kind import DENSE, LayerKind, Role

__all__ = ["LAYER_INPUT", "embedding_operators", "head_operators", "transformer_layer"]


def transformer_layer(shape: RankShape, kind: LayerKind = DENSE) -> tuple[Operator, ...]:
    """Operators of one layer, or of one block of a vision tower."""
    if kind.role is Role.VISION:
        operators = family_of(shape.model).layer(shape.tower, kind)
        operators = _tuned_tower(shape, operators, shape.tuning.freeze_vision_model)
        return _without_gradients(operators) if kind.constant else operators
    operators = family_of(shape.model).layer(_whole(shape), kind)
    if kind.constant:
        return _sided(shape, _without_gradients(tuple(map(frozen, operators))))
    return _sided(shape, _tuned(shape, operators))


def with_constant(shape: RankShape, layers: tuple[LayerKind, ...]) -> tuple[LayerKind, ...]:
    """`layers`, of which those of the decoder before the last num_trainable_layers are constant:
    frozen, and without a gradient to hand on (LLaMA-Factory checkpoints none of them)."""
    number = shape.tuning.num_trainable_layers
    if number is None:
        return layers
    mine = [n for n, kind in enumerate(layers) if kind.role is Role.LAYER]
    still = {*mine[: max(0, len(mine) - number)]}
    return tuple(kind._replace(constant=n in still) for n, kind in enumerate(layers))


def embedding_operators(shape: RankShape) -> tuple[Operator, ...]:
    """Embedding lookup, and its dropout where hidden_dropout > 0."""
    return _sided(shape, _tuned(shape, family_of(shape.model).embedding(_whole(shape))))


def head_groups(shape: RankShape) -> tuple[tuple[str, tuple[Operator, ...]], ...]:
    """Final norm, output layer and cross entropy of the last stage, by what runs as one."""
    groups = family_of(shape.model).head(_whole(shape))
    if shape.side is None and shape.tuning.trains_all:
        return groups
    return tuple((name, _sided(shape, _tuned(shape, operators))) for name, operators in groups)


def vision_ends(*, constant: bool) -> tuple[VisionEnd, VisionEnd]:
    """Both ends of a tower; constant: it runs without gradients."""
    with_gradients = VisionEnd.PATCH_EMBEDDING, VisionEnd.PROJECTOR
    return (
        (VisionEnd.CONSTANT_PATCHES, VisionEnd.CONSTANT_PROJECTOR) if constant else with_gradients
    )


def vision_operators(shape: RankShape, end: VisionEnd) -> tuple[Operator, ...]:
    """Operators of one end of a vision tower. What comes after a tower without gradients has no
    gradient of its input: a norm keeps what it multiplies its weight by. Before frozen blocks that
    have gradients, the angles are kept for these, and the embedded patches, a leaf of the graph."""
    vision, tuning = family_of(shape.model).vision, shape.tuning
    assert vision is not None, f"{shape.model.transformer_impl} has no towers"
    patches = end in (VisionEnd.PATCH_EMBEDDING, VisionEnd.CONSTANT_PATCHES)
    stays = tuning.freeze_vision_model if patches else tuning.freeze_vision_projection
    made = vision(shape, VisionEnd.PATCH_EMBEDDING if patches else VisionEnd.PROJECTOR)
    operators = _tuned_tower(shape, made, stays)
    trained = _trains(operators)
    if end is VisionEnd.CONSTANT_PATCHES or (end is VisionEnd.CONSTANT_PROJECTOR and not trained):
        return _without_gradients(operators)
    if end is VisionEnd.PATCH_EMBEDDING and not trained:
        *before, last = _without_gradients(operators)
        return (*before, replace(last, saved=(*made[-1].saved[:2], *made[0].outputs)))
    return tuple(map(_of_constant, operators)) if end is VisionEnd.CONSTANT_PROJECTOR else operators


def _of_constant(operator: Operator) -> Operator:
    """A norm of the projector whose input has no gradient, and is kept nowhere else."""
    if operator.module is not Module.PROJECTOR or not operator.name.endswith(".norm"):
        return operator
    free = frozenset(tensor.name for tensor in operator.inputs)
    kept = tuple(one for one in operator.saved if one.name in operator.saved_for_weights)
    if not kept:
        source = replace(operator.outputs[0], name=operator.inputs[0].name)
        kept = (source, *(one for one in operator.saved if one.name != source.name))
    return replace(operator, saved=kept, gradient_free_inputs=free)


def _without_gradients(operators: tuple[Operator, ...]) -> tuple[Operator, ...]:
    return tuple(replace(one, saved=(), no_grad=True) for one in operators)


def _trains(operators: Iterable[Operator]) -> bool:
    return any(not weight.frozen for one in operators for weight in one.weights)


@lru_cache(maxsize=1024)
def trains_tower(shape: RankShape) -> bool:
    """Whether some weight of the tower before the projector is trained."""
    kinds = dict.fromkeys(shape.model.tower_kinds)
    operators = [one for kind in kinds for one in transformer_layer(shape, kind)]
    return _trains((*operators, *vision_operators(shape, VisionEnd.PATCH_EMBEDDING)))


def _tuned_tower(
    shape: RankShape, operators: tuple[Operator, ...], stays: bool
) -> tuple[Operator, ...]:
    """`operators` as they are trained, or all frozen where they stay as they are."""
    return tuple(map(frozen, operators)) if stays else _tuned(shape, operators)


def _tuned(shape: RankShape, operators: tuple[Operator, ...]) -> tuple[Operator, ...]:
    """`operators` with what `shape.tuning` freezes and adds."""
    tuned = family_of(shape.model).tuned
    if shape.tuning.trains_all or tuned is None:
        return operators
    return tuned(_whole(shape), operators)


def _whole(shape: RankShape) -> RankShape:
    return shape if shape.side is None else replace(shape, side=None)


def _sided(shape: RankShape, operators: tuple[Operator, ...]) -> tuple[Operator, ...]:
    """What `shape.side` allocates of them."""
    return operators if shape.side is None else one_side(operators, shape.side)


def head_operators(shape: RankShape) -> tuple[Operator, ...]:
    """The same, one after another."""
    return tuple(operator for _, operators in head_groups(shape) for operator in operators)


@lru_cache(maxsize=4096)
def one_side(operators: tuple[Operator, ...], side: PoolSide) -> Operators:
    """`operators` with what the other side allocates made empty.

    A tensor lies where it is written, the layer's input where its output does. What a graph hands
    to others stays from forward to backward, whoever reads it; what it is handed is copied into an
    input of the graph's own, and then nobody's. A gradient lies with its tensor: at the edge of a
    graph that is the wrong side, by one tensor of the running layer."""
    held = [side.capture.holds(operator) for operator in operators]
    if all(captured is side.inside for captured in held):
        return operators if isinstance(operators, Operators) else Operators(operators)
    inside = _written_inside(operators, held)
    read = {
        tensor.storage.name
        for operator, captured in zip(operators, held, strict=True)
        for tensor in (() if captured else operator.inputs)
    }

    def sided(tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return tuple(
            tensor if inside.get(tensor.storage.name, held[-1]) is side.inside else _empty(tensor)
            for tensor in tensors
        )

    def on_side(operator: Operator, captured: bool) -> Operator:
        saved = operator.saved if side.inside or not captured else ()
        if side.inside and captured:
            saved += tuple(tensor for tensor in operator.outputs if tensor.storage.name in read)
        mine = captured is side.inside
        return replace(
            operator,
            inputs=sided(operator.inputs),
            outputs=sided(operator.outputs),
            saved=sided(saved),
            forward_holds=sided(operator.forward_holds),
            forward_workspace=operator.forward_workspace if mine else 0,
            backward_workspace=operator.backward_workspace if mine else 0,
            weight_gradient_bytes=operator.weight_gradient_bytes if mine else 0,
            narrow_weight_gradient_bytes=operator.narrow_weight_gradient_bytes if mine else 0,
        )

    return Operators(map(on_side, operators, held))


def _written_inside(operators: tuple[Operator, ...], held: list[bool]) -> dict[str, bool]:
    """By storage, whether a graph makes it: as the first operator that has it, except those that
    only read it."""
    found: dict[str, bool] = {}
    for operator, captured in zip(operators, held, strict=True):
        read = {tensor.storage.name for tensor in operator.inputs}
        for tensor in (*operator.outputs, *operator.saved):
            if tensor.storage.name not in read:
                found.setdefault(tensor.storage.name, captured)
    return found


def _empty(tensor: Tensor) -> Tensor:
    base = None if tensor.base is None else _empty(tensor.base)
    return Tensor(tensor.name, (0,), tensor.dtype, base, tensor.copy_of)
