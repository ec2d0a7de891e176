"""Bytes of one model chunk, one microbatch: its blocks in a row, forward and backward."""

from dataclasses import dataclass, replace
from functools import lru_cache

from advisor.layers.ends import embedding_operators, embedding_weights, head_groups
from advisor.layers.operators import Module
from advisor.layers.shape import RankShape
from advisor.layers.transformer import LAYER_INPUT, transformer_layer
from advisor.memory.arena import Peak
from advisor.memory.liveness import (
    LayerFootprint,
    footprint,
    gradients_before_replay,
    walk_forward,
)
from advisor.memory.working_set import Beside, WorkingSet
from advisor.models.layer_kind import FeedForward, LayerKind, Role
from advisor.recompute import (
    Checkpoint,
    RecomputePlan,
    Segment,
    computed_until_stop,
    kept_tensors,
    offloaded_bytes,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkFootprint:
    """What one microbatch of one chunk keeps, and the most it needs in either pass (kept bytes
    included), above what was alive before its forward. left: what its backward leaves until the
    next forward of the chunk. unsure: by how much kept may differ, one sigma."""

    kept: int
    forward: Peak
    backward: Peak
    left: int = 0
    unsure: int = 0


@dataclass(frozen=True, slots=True)
class AttentionMask:
    """Bytes of the boolean mask that comes with a microbatch: this rank's [b, 1, s / cp, s], and
    the whole one that it is cut from (megatron-core 0.19.2 utils.py, get_batch_on_this_cp_rank)."""

    num_bytes: int = 0
    uncut_bytes: int = 0

    @property
    def while_cut(self) -> int:
        """Bytes while the one is copied out of the other."""
        return self.num_bytes + self.uncut_bytes if self.uncut_bytes > self.num_bytes else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Block:
    """Consecutive equal units of a chunk: layers, checkpoints, or one of its ends.

    left, left_gradient: a MoE layer's dispatcher holds the probabilities of its last forward, and
    with them the graph that they came from. In a replay that graph begins with the checkpoint's
    input: input and gradient stay (a whole checkpoint's gradient is that of the layer before).
    entry: bytes of the input, which alone is alive when the block begins.
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

    @property
    def left_behind(self) -> int:
        """Bytes that the backward of one unit leaves until its layers run forward again."""
        return self.left + self.left_gradient


@lru_cache(maxsize=8192)
def chunk_footprint(
    shape: RankShape,
    plan: RecomputePlan,
    first: bool,
    last: bool,
    attention_mask: AttentionMask = AttentionMask(),
    working_set: WorkingSet | None = None,
) -> ChunkFootprint:
    """Footprint of a chunk under `plan`; `first` holds the embedding, `last` norm, head and loss.

    attention_mask: on a chunk that gets one, or of no bytes. It lives through the forward, and
    until the backward where a checkpoint takes it as an argument. working_set: parameters and
    gradients that come and go with the blocks.

    The backward starts with the last block while everything is kept, and frees block after block;
    the gradient received from the next stage stays to the end of the pass.
    """
    blocks = _blocks(shape, plan, first, last)
    if working_set is not None:
        blocks = _with_working_set(blocks, working_set)
    before, forward, backward = 0, Peak(), Peak()
    received = 0 if last else _sent_bytes(shape, plan)
    waiting = _tied_weight_gradient(shape) if first and last else received
    stays = _left_by_later(blocks)
    copied = _copied_embedding_gradient(shape) if first and _predicts(plan) else 0
    for index, block in enumerate(blocks):
        below = before + (block.count - 1) * block.kept
        forward = _higher(forward, block, block.forward, below)
        below += block.joined_gradient
        if index < len(blocks) - 1:
            beside = waiting + stays[index] + (0 if block.joined_gradient else copied)
            # a spent graph behind holds the gradient that this block starts from
            inside = block.held_backward if blocks[index + 1].left_gradient else block.backward
            backward = _higher(backward, block, inside, below + beside)
        else:
            inside = block.backward if last else block.held_backward
            backward = _higher(backward, block, inside, below)
            if block.count > 1:
                earlier = below - block.kept + waiting
                backward = _higher(backward, block, block.backward, earlier)
        if block.left_behind and block.count > 1:
            others = (block.count - 1) * block.left_behind - block.left_gradient
            backward = _higher(
                backward, block, block.backward, before + waiting + others + stays[index]
            )
        before += block.count * block.kept
    if copied:
        backward = backward.or_higher(3 * copied, "sum of the embedding's gradients")
    if first and last:
        backward = backward.or_higher(_tied_gradient_sum(shape), "sum of the tied gradients")
    if working_set is not None:
        backward = backward.or_higher(working_set.step, "optimizer step")
    mask = attention_mask.num_bytes
    kept_mask = mask if _keeps_mask(plan) else 0
    forward = Peak(forward.num_bytes + mask, forward.point)
    return ChunkFootprint(
        kept=before + kept_mask,
        forward=forward.or_higher(attention_mask.while_cut, "cut of the attention mask"),
        backward=Peak(backward.num_bytes + kept_mask, backward.point),
        left=sum(block.count * block.left_behind for block in blocks)
        - (blocks[0].left_gradient if blocks else 0),
        unsure=plan.unsure_bytes,
    )


def kept_bytes(shape: RankShape, plan: RecomputePlan) -> int:
    """Bytes that one microbatch keeps in the layers of a chunk, its ends left out."""
    kept = 0
    for segment in plan.segments:
        whole = segment.whole
        each = _kept_input(shape, segment) if whole else _segment_block(shape, segment).kept
        kept += segment.copies * each
    return kept


def _left_by_later(blocks: tuple[_Block, ...]) -> list[int]:
    """Bytes that the backward of the blocks after each has left, but for the gradient that the
    block itself starts from."""
    if not any(block.left for block in blocks):
        return [0] * len(blocks)
    stays, total = [], 0
    following: _Block | None = None
    for block in reversed(blocks):
        stays.append(total - (following.left_gradient if following else 0))
        total += block.count * block.left_behind
        following = block
    return stays[::-1]


def _copied_embedding_gradient(shape: RankShape) -> int:
    """Gradient of the embedding from multi-token prediction; it waits for the embedding's own."""
    return embedding_weights(shape)[0].num_elements * shape.dtype.itemsize


def _tied_weight_gradient(shape: RankShape) -> int:
    """A tied output layer's gradient tensor, which waits for the embedding's in the same pass."""
    if not shape.model.share_embeddings_and_output_weights:
        return 0
    return shape.weight_gradient_bytes(embedding_weights(shape)[0].num_elements)


def _tied_gradient_sum(shape: RankShape) -> int:
    """The tied weight's gradient from both ends and their sum, when everything else is gone."""
    if not shape.model.share_embeddings_and_output_weights:
        return 0
    each = embedding_weights(shape)[0].num_elements * shape.dtype.itemsize
    return _tied_weight_gradient(shape) + 2 * each


def _keeps_mask(plan: RecomputePlan) -> bool:
    """Whether a checkpoint of `plan` takes the attention mask as an argument."""
    return any(
        segment.whole or any(Module.CORE_ATTENTION in run.modules for run in segment.runs)
        for segment in plan.segments
    )


def _higher(peak: Peak, block: _Block, inside: Peak, beside: int) -> Peak:
    """`peak`, or that of a block with `beside` bytes alive outside it."""
    num_bytes = inside.num_bytes + beside
    return Peak(num_bytes, f"{inside.point} ({block.name})") if num_bytes > peak.num_bytes else peak


def _blocks(shape: RankShape, plan: RecomputePlan, first: bool, last: bool) -> tuple[_Block, ...]:
    blocks = [_segment_block(shape, segment) for segment in plan.segments]
    if first:
        blocks.insert(0, _plain_block("embedding", footprint(embedding_operators(shape), ())))
    if last:
        blocks += [
            _plain_block(name, footprint(operators, ())) for name, operators in head_groups(shape)
        ]
    return tuple(blocks)


def _with_working_set(blocks: tuple[_Block, ...], found: WorkingSet) -> tuple[_Block, ...]:
    """`blocks` with what is beside them. Of several layers in a row the first two and the last
    stand for themselves: from there on kept tensors shrink while what is left behind grows."""
    single: list[_Block] = []
    for block in blocks:
        ends = [1, 1, block.count - 3, 1] if block.count > 3 else [1] * block.count
        single += [replace(block, count=count) for count in ends]
    named = {"embedding": found.embedding, "head": found.head, "loss": found.loss}
    layers = [index for index, block in enumerate(single) if block.name not in named]
    ends_of_layers = {layers[0]: found.first_layer, layers[-1]: found.last_layer}
    raised, left = [], 0
    for index in range(len(single) - 1, -1, -1):
        block = single[index]
        beside = named.get(block.name) or ends_of_layers.get(index, found.layer)
        raised.append(_raised(block, beside, left))
        left += beside.left * block.count
    return tuple(reversed(raised))


def _raised(block: _Block, beside: Beside, left: int) -> _Block:
    """`block` with `beside` it what is gathered and reduced, and `left` bytes of later blocks."""

    def more(peak: Peak, num_bytes: int) -> Peak:
        return Peak(peak.num_bytes + num_bytes, peak.point)

    backward = beside.backward + left
    forward = more(block.forward, beside.forward)
    return replace(
        block,
        forward=forward.or_higher(block.entry + beside.entry, "all-gather"),
        backward=more(block.backward, backward),
        held_backward=more(block.held_backward, backward),
    )


def _plain_block(name: str, layer: LayerFootprint, count: int = 1) -> _Block:
    return _Block(
        name=name,
        kept=layer.kept,
        forward=layer.forward,
        backward=layer.backward,
        held_backward=layer.held_backward,
        count=count,
    )


def _sent_bytes(shape: RankShape, plan: RecomputePlan) -> int:
    """Bytes that go on to the next chunk: hidden states, those of every depth of multi-token
    prediction together."""
    hidden = shape.hidden(LAYER_INPUT).num_bytes
    return hidden * (1 + (shape.model.mtp_num_layers or 0)) if _predicts(plan) else hidden


def _predicts(plan: RecomputePlan) -> bool:
    return any(
        kind.role is Role.MULTI_TOKEN_PREDICTION
        for segment in plan.segments
        for kind in segment.layers
    )


@lru_cache(maxsize=8192)
def _segment_block(shape: RankShape, segment: Segment) -> _Block:
    if segment.whole:
        nested = segment.checkpoint is Checkpoint.REENTRANT
        block = _reentrant_block(shape, segment) if nested else _hooked_block(shape, segment)
        hidden = shape.hidden(LAYER_INPUT).num_bytes
        forward = Peak(block.forward.num_bytes + segment.input.beside * hidden, block.forward.point)
        return replace(block, forward=forward, count=segment.copies, entry=hidden)
    (kind,) = segment.layers
    operators = transformer_layer(shape, kind)
    layer = footprint(operators, segment.runs)
    away = offloaded_bytes(operators, segment.runs, segment.offloaded)
    hidden = shape.hidden(LAYER_INPUT).num_bytes
    block = _plain_block(_NAMES[kind.role], layer, segment.copies)
    if kind.role is Role.MULTI_TOKEN_PREDICTION:
        joined = (shape.model.mtp_num_layers or 0) * hidden
        block = replace(block, backward=block.held_backward, joined_gradient=joined)
    replays_router = any(Module.ROUTER in run.modules for run in segment.runs)
    if replays_router and _holds_graph(shape, segment.layers):
        block = replace(block, left=2 * hidden)
    return _offloaded(replace(block, entry=shape.hidden(LAYER_INPUT).num_bytes), away)


def _holds_graph(shape: RankShape, layers: tuple[LayerKind, ...]) -> bool:
    """Whether Megatron's token dispatcher is in one of `layers`."""
    has_experts = any(kind.feed_forward is FeedForward.MOE for kind in layers)
    return has_experts and shape.model.transformer_impl.is_megatron


_NAMES = {
    Role.LAYER: "layer", Role.FINAL_LAYERNORM: "final norm",
    Role.MULTI_TOKEN_PREDICTION: "multi-token prediction",
}  # fmt: skip


def _offloaded(block: _Block, away: int) -> _Block:
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
def _reentrant_block(shape: RankShape, segment: Segment) -> _Block:
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
    return _Block(
        name=f"checkpoint of {len(layers)}",
        kept=_kept_input(shape, segment),
        forward=forward,
        backward=backward,
        held_backward=backward,
        left=hidden if _holds_graph(shape, layers) else 0,
        left_gradient=hidden if _holds_graph(shape, layers) else 0,
    )


def _kept_input(shape: RankShape, segment: Segment) -> int:
    """Bytes on the device of the one input that a checkpoint keeps."""
    if segment.input.offloaded:
        return 0
    hidden = shape.hidden(LAYER_INPUT).num_bytes
    return -(-hidden // shape.tp) if segment.shards_input else hidden


def _input_beside(shape: RankShape, kind: LayerKind) -> int:
    """Bytes of a checkpoint's input that its first layer does not keep itself."""
    kept = kept_tensors(transformer_layer(shape, kind), ())
    return 0 if LAYER_INPUT in kept else shape.hidden(LAYER_INPUT).num_bytes


@lru_cache(maxsize=8192)
def _hooked_block(shape: RankShape, segment: Segment) -> _Block:
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
        backward, held = (
            peak.or_higher(below + again.num_bytes + arrived, "replay").or_higher(
                below + inside.num_bytes, inside.point
            )
            for peak, inside in ((backward, layer.backward), (held, layer.held_backward))
        )
        below += layer.kept
    return _Block(
        name=f"checkpoint of {segment.num_layers}",
        kept=_kept_input(shape, segment),
        forward=forward,
        backward=backward,
        held_backward=held,
    )
