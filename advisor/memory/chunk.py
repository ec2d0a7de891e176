"""Bytes of one model chunk, one microbatch: its blocks in a row, forward and backward."""

from dataclasses import dataclass, replace
from functools import lru_cache

from advisor.layers.ends import embedding_operators, embedding_weights, head_operators
from advisor.layers.operators import Module
from advisor.layers.shape import RankShape
from advisor.layers.transformer import LAYER_INPUT, transformer_layer
from advisor.memory.liveness import LayerFootprint, footprint, walk_forward
from advisor.recompute import RecomputePlan, Segment


@dataclass(frozen=True, slots=True, kw_only=True)
class Peak:
    """The most bytes alive in one pass of a chunk, and where: layer and operator."""

    num_bytes: int
    point: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkFootprint:
    """What one microbatch of one chunk keeps, and the most it needs in either pass (kept bytes
    included), above what was alive before its forward."""

    kept: int
    forward: Peak
    backward: Peak


@dataclass(frozen=True, slots=True, kw_only=True)
class _Block:
    """Consecutive equal units of a chunk: layers, checkpoints, or one of its ends."""

    name: str
    kept: int
    forward_peak: int
    backward_peak: int
    held_backward_peak: int
    forward_point: str
    backward_point: str
    held_backward_point: str
    count: int = 1


@lru_cache(maxsize=8192)
def chunk_footprint(
    shape: RankShape, plan: RecomputePlan, first: bool, last: bool, attention_mask: int = 0
) -> ChunkFootprint:
    """Footprint of a chunk under `plan`; `first` holds the embedding, `last` norm, head and loss.

    attention_mask: bytes of the boolean mask that comes with the batch, on a chunk that gets one.
    It lives through the forward, and until the backward where a checkpoint takes it as an argument.

    The backward starts with the last block while everything is kept, and frees block after block;
    the gradient received from the next stage stays to the end of the pass.
    """
    blocks = _blocks(shape, plan, first, last)
    before, forward, backward = 0, Peak(num_bytes=0, point=""), Peak(num_bytes=0, point="")
    received = 0 if last else shape.hidden(LAYER_INPUT).num_bytes
    waiting = _tied_weight_gradient(shape) if first and last else received
    for index, block in enumerate(blocks):
        below = before + (block.count - 1) * block.kept
        forward = _higher(forward, below + block.forward_peak, block, block.forward_point)
        if index < len(blocks) - 1:
            peak, point = block.backward_peak + waiting, block.backward_point
        elif received:
            peak, point = block.held_backward_peak, block.held_backward_point
        else:
            peak, point = block.backward_peak, block.backward_point
        backward = _higher(backward, below + peak, block, point)
        before = below + block.kept
    if first and last:
        sums = _tied_gradient_sum(shape)
        backward = _higher(backward, sums, blocks[0], "sum of the tied weight's gradients")
    kept_mask = attention_mask if _keeps_mask(plan) else 0
    return ChunkFootprint(
        kept=before + kept_mask,
        forward=replace(forward, num_bytes=forward.num_bytes + attention_mask),
        backward=replace(backward, num_bytes=backward.num_bytes + kept_mask),
    )


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


def _higher(peak: Peak, num_bytes: int, block: _Block, point: str) -> Peak:
    if num_bytes <= peak.num_bytes:
        return peak
    return Peak(num_bytes=num_bytes, point=f"{point} ({block.name})")


def _blocks(shape: RankShape, plan: RecomputePlan, first: bool, last: bool) -> tuple[_Block, ...]:
    blocks = [_segment_block(shape, segment) for segment in plan.segments]
    if first:
        blocks.insert(0, _end_block("embedding", footprint(embedding_operators(shape), ())))
    if last:
        blocks.append(_end_block("head", footprint(head_operators(shape), ())))
    return tuple(blocks)


def _end_block(name: str, end: LayerFootprint) -> _Block:
    return _Block(
        name=name,
        kept=end.kept,
        forward_peak=end.forward_peak,
        backward_peak=end.backward_peak,
        held_backward_peak=end.held_backward_peak,
        forward_point=end.forward_point,
        backward_point=end.backward_point,
        held_backward_point=end.held_backward_point,
    )


@lru_cache(maxsize=8192)
def _segment_block(shape: RankShape, segment: Segment) -> _Block:
    layer = footprint(transformer_layer(shape), segment.runs)
    if segment.whole:
        return _checkpoint_block(shape, segment, layer)
    return _Block(
        name="layer",
        kept=layer.kept,
        forward_peak=layer.forward_peak,
        backward_peak=layer.backward_peak,
        held_backward_peak=layer.held_backward_peak,
        forward_point=layer.forward_point,
        backward_point=layer.backward_point,
        held_backward_point=layer.held_backward_point,
        count=segment.num_layers,
    )


def _checkpoint_block(shape: RankShape, segment: Segment, layer: LayerFootprint) -> _Block:
    """One checkpoint around `num_layers` layers (tensor_parallel/random.py CheckpointFunction).

    Keeps the first layer's input, or the rank's shard of it, which the gathered input replaces. The
    backward runs the forward of all its layers again, which then keep everything, holds the
    replayed output and the incoming gradient to the end, and goes back through them.
    """
    hidden = shape.hidden(LAYER_INPUT).num_bytes
    kept = -(-hidden // shape.tp) if segment.shards_input else hidden
    without_grad = walk_forward(transformer_layer(shape), {})
    below = (segment.num_layers - 1) * layer.kept
    replay = below + layer.forward_peak + hidden  # the incoming gradient waits meanwhile
    backward = below + layer.held_backward_peak + hidden  # the replayed output is held
    peak = max(replay, backward)
    point = layer.held_backward_point if backward >= replay else "replay"
    return _Block(
        name=f"checkpoint of {segment.num_layers}",
        kept=kept,
        forward_peak=without_grad.peak + (hidden if segment.num_layers > 1 else 0),
        backward_peak=peak,
        held_backward_peak=peak,
        forward_point=without_grad.point,
        backward_point=point,
        held_backward_point=point,
    )
