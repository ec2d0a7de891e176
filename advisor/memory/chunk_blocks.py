"""The blocks of a chunk: consecutive equal units of layers, checkpoints, or an end of the model."""

from functools import lru_cache

from msgspec import Struct
from msgspec.structs import replace

from advisor.layers.operators import Module
from advisor.layers.shape import RankShape
from advisor.layers.transformer import LAYER_INPUT, transformer_layer
from advisor.memory.arena import Peak
from advisor.memory.liveness import (
    LayerFootprint,
    footprint,
    gradients_before_replay,
    layer_kept_bytes,
    walk_forward,
)
from advisor.models.layer_kind import FeedForward, LayerKind, Role
from advisor.plan.recompute_plan import (
    Checkpoint,
    Segment,
    computed_until_stop,
    kept_tensors,
    offloaded_bytes,
)


class ReplayedLayer(Struct, frozen=True, kw_only=True):
    """A layer of a checkpoint around several: peaks of its replay, while gradients wait, and of its
    backward, also where the caller keeps the incoming gradient; bytes when it has gone back."""

    replay: Peak
    backward: Peak
    held_backward: Peak
    end: int


class Block(Struct, frozen=True, kw_only=True):
    """Consecutive equal units of a chunk: layers, checkpoints, or one of its ends.

    left, left_gradient: a MoE layer's dispatcher holds the probabilities of its last forward, and
    with them the graph that they came from. In a replay that graph begins with the checkpoint's
    input: input and gradient stay (a whole checkpoint's gradient is that of the layer before).
    entry: bytes of the input, which alone is alive when the block begins. cached: 16-bit copies of
    weights that autocast holds to the end of the forward, and the block does not keep.
    several: a checkpoint around several layers, one by one from the first.
    away: bytes of a unit that are on their way to the host, or back, beside the unit behind it.
    joined_gradient: the gradients of all depths of multi-token prediction are one tensor, which
    lives until the first depth is through; its bytes beyond the block's own.
    """

    name: str
    kept: int
    forward: Peak
    backward: Peak
    held_backward: Peak
    joined_gradient: int = 0
    count: int = 1
    left: int = 0
    left_gradient: int = 0
    entry: int = 0
    cached: int = 0
    several: tuple[ReplayedLayer, ...] = ()
    away: int = 0

    @property
    def left_behind(self) -> int:
        """Bytes that the backward of one unit leaves until its layers run forward again."""
        return self.left + self.left_gradient


def plain_block(name: str, layer: LayerFootprint, count: int = 1) -> Block:
    """`count` units that keep and need what `layer` says, bytes of one rank and one microbatch."""
    return Block(
        name=name,
        kept=layer.kept,
        forward=layer.forward,
        backward=layer.backward,
        held_backward=layer.held_backward,
        count=count,
    )


@lru_cache(maxsize=8192)
def segment_block(shape: RankShape, segment: Segment) -> Block:
    """The block of all copies of `segment`: layers one by one, or checkpoints around several.

    A checkpoint keeps its input, [seq_length / cp (/ tp under SP), micro_batch_size, hidden_size]
    in the type of the activations, once a segment; a layer what its operators save and no run
    replays, less what is offloaded. Sources: megatron-core 0.16.1 tensor_parallel/random.py and
    transformer_block.py, torch 2.13 utils/checkpoint.py.
    """
    if segment.whole:
        nested = segment.checkpoint is Checkpoint.REENTRANT
        block = _reentrant_block(shape, segment) if nested else _hooked_block(shape, segment)
        hidden = shape.hidden(LAYER_INPUT).num_bytes
        forward = Peak(block.forward.num_bytes + segment.input.beside * hidden, block.forward.point)
        cached = sum(_cast_bytes(shape, kind) for kind in segment.layers) if shape.autocast else 0
        return replace(block, forward=forward, count=segment.copies, entry=hidden, cached=cached)
    (kind,) = segment.layers
    operators = transformer_layer(shape, kind)
    layer = footprint(operators, segment.runs)
    sent = offloaded_bytes(operators, segment.runs, frozenset())
    away = offloaded_bytes(operators, segment.runs, segment.offloaded) - sent
    hidden = shape.hidden(LAYER_INPUT).num_bytes
    block = plain_block(_NAMES[kind.role], layer, segment.copies)
    if kind.role is Role.MULTI_TOKEN_PREDICTION:
        joined = (shape.model.mtp_num_layers or 0) * hidden
        block = replace(block, backward=block.held_backward, joined_gradient=joined)
    replays_router = any(Module.ROUTER in run.modules for run in segment.runs)
    if replays_router and _holds_graph(shape, segment.layers):
        block = replace(block, left=2 * hidden)
    block = replace(block, entry=hidden, kept=block.kept - sent, away=sent)
    return _offloaded(block, away)


def kept_by_copy(shape: RankShape, segment: Segment) -> int:
    """Bytes that one copy of `segment` keeps of one microbatch, as its block has them; found
    without a walk through its passes."""
    if segment.whole:
        return kept_input(shape, segment)
    (kind,) = segment.layers
    operators = transformer_layer(shape, kind)
    kept = layer_kept_bytes(operators, segment.runs)
    if segment.moves_to_host:
        kept -= offloaded_bytes(operators, segment.runs, segment.offloaded)
    return kept


def _cast_bytes(shape: RankShape, kind: LayerKind) -> int:
    """Bytes of the weights of a layer's linear layers as they compute."""
    weights = (weight for operator in transformer_layer(shape, kind) for weight in operator.weights)
    return sum(w.num_elements for w in weights if w.in_linear) * shape.dtype.itemsize


def _holds_graph(shape: RankShape, layers: tuple[LayerKind, ...]) -> bool:
    """Whether Megatron's token dispatcher is in one of `layers`."""
    has_experts = any(kind.feed_forward is FeedForward.MOE for kind in layers)
    return has_experts and not shape.model.transformer_impl.is_eager


_NAMES = {
    Role.LAYER: "layer",
    Role.FINAL_LAYERNORM: "final norm",
    Role.MULTI_TOKEN_PREDICTION: "multi-token prediction",
}


def _checkpoint_of(layers: int) -> str:
    return f"checkpoint of {layers} layer{'s' * (layers != 1)}"


def _offloaded(block: Block, away: int) -> Block:
    """`block` with `away` bytes of each layer on the host.

    The layer that runs has everything on the device; as much again is on its way, to the host
    behind a forward and back ahead of a backward.
    """
    if not away:
        return block
    forward, backward, held = (
        Peak(peak.num_bytes + away, peak.point)
        for peak in (block.forward, block.backward, block.held_backward)
    )
    return replace(
        block, kept=block.kept - away, forward=forward, backward=backward, held_backward=held
    )


@lru_cache(maxsize=8192)
def _forward_without_grad(shape: RankShape, kind: LayerKind) -> Peak:
    """The most bytes alive in a layer's forward that keeps nothing."""
    return walk_forward(transformer_layer(shape, kind), {}).peak


@lru_cache(maxsize=8192)
def _reentrant_block(shape: RankShape, segment: Segment) -> Block:
    """One checkpoint around the layers of `segment` (tensor_parallel/random.py CheckpointFunction,
    torch utils/checkpoint.py CheckpointFunction).

    Keeps the first layer's input, or the rank's shard of it, which the gathered input replaces. The
    backward runs the forward of all its layers again, which then keep everything, holds the
    replayed output and the incoming gradient to the end, and goes back through them.
    """
    hidden = shape.hidden(LAYER_INPUT).num_bytes
    layers = segment.layers
    forward = backward = Peak()
    below = 0
    for index, kind in enumerate(layers):
        layer = footprint(transformer_layer(shape, kind), ())
        without_grad = _forward_without_grad(shape, kind)
        first_input = hidden if len(layers) > 1 and index else 0
        forward = forward.or_higher(without_grad.num_bytes + first_input, without_grad.point)
        # During the replay the incoming gradient waits; afterwards the replayed output is held.
        backward = backward.or_higher(below + layer.forward.num_bytes + hidden, "replay")
        held = layer.held_backward
        beside = _input_beside(shape, kind) if index == 0 else 0
        backward = backward.or_higher(below + beside + held.num_bytes + hidden, held.point)
        below += layer.kept + beside
    return Block(
        name=_checkpoint_of(len(layers)),
        kept=kept_input(shape, segment),
        forward=forward,
        backward=backward,
        held_backward=backward,
        left=hidden if _holds_graph(shape, layers) else 0,
        left_gradient=hidden if _holds_graph(shape, layers) else 0,
    )


def kept_input(shape: RankShape, segment: Segment) -> int:
    """Bytes on the device of the one input that a checkpoint keeps: [seq_length / cp (/ tp under
    SP), micro_batch_size, hidden_size], cut by TP once more where distribute_saved_activations
    does, none where it waits on the host."""
    if segment.input.offloaded:
        return 0
    hidden = shape.hidden(LAYER_INPUT).num_bytes
    return -(-hidden // shape.tp) if segment.shards_input else hidden


def keeps_input(shape: RankShape, segment: Segment) -> bool:
    """Whether the input of its first layer stays on the device until the backward."""
    if segment.whole:
        return not segment.input.offloaded
    return LAYER_INPUT in kept_tensors(transformer_layer(shape, segment.layers[0]), segment.runs)


def _input_beside(shape: RankShape, kind: LayerKind) -> int:
    """Bytes of a checkpoint's input that its first layer does not keep itself."""
    kept = kept_tensors(transformer_layer(shape, kind), ())
    return 0 if LAYER_INPUT in kept else shape.hidden(LAYER_INPUT).num_bytes


@lru_cache(maxsize=8192)
def _hooked_block(shape: RankShape, segment: Segment) -> Block:
    """One checkpoint by saved-tensor hooks around the layers of `segment`.

    Keeps the first layer's input until the backward is through. The first tensor that is needed
    has all layers run forward again, the last one up to its last saved tensor where the replay
    stops early, while the gradients wait that came so far; neither the output nor its gradient is
    held.
    """
    hidden = shape.hidden(LAYER_INPUT).num_bytes
    early = segment.checkpoint is Checkpoint.EARLY_STOP
    forward = backward = held = Peak()
    below = 0
    several = []
    for index, kind in enumerate(segment.layers):
        operators = transformer_layer(shape, kind)
        layer, kept = footprint(operators, ()), kept_tensors(operators, ())
        without_grad = _forward_without_grad(shape, kind)
        forward = forward.or_higher(
            without_grad.num_bytes + (hidden if index else 0), without_grad.point
        )
        stops = early and index == segment.num_layers - 1
        again = walk_forward(computed_until_stop(operators) if stops else operators, kept).peak
        arrived = gradients_before_replay(operators) if index == segment.num_layers - 1 else hidden
        below += _input_beside(shape, kind) if index == 0 else 0
        one = ReplayedLayer(
            replay=Peak(below + again.num_bytes + arrived, "replay"),
            backward=_beside(layer.backward, below),
            held_backward=_beside(layer.held_backward, below),
            end=below + hidden,
        )
        backward, held = (
            peak.or_higher(one.replay.num_bytes, one.replay.point).or_higher(
                inside.num_bytes, inside.point
            )
            for peak, inside in ((backward, one.backward), (held, one.held_backward))
        )
        several.append(one)
        below += layer.kept
    return Block(
        name=_checkpoint_of(segment.num_layers),
        kept=kept_input(shape, segment),
        forward=forward,
        backward=backward,
        held_backward=held,
        several=tuple(several) if segment.num_layers > 1 else (),
    )


def _beside(peak: Peak, num_bytes: int) -> Peak:
    return Peak(peak.num_bytes + num_bytes, peak.point)
