"""Bytes of one model chunk, one microbatch: its blocks in a row, forward and backward."""

from dataclasses import dataclass, replace
from functools import lru_cache

from advisor.layers.ends import embedding_operators, embedding_weights, head_operators
from advisor.layers.operators import Module
from advisor.layers.shape import RankShape
from advisor.layers.transformer import LAYER_INPUT, transformer_layer
from advisor.memory.arena import Peak
from advisor.memory.liveness import LayerFootprint, footprint, walk_forward
from advisor.recompute import RecomputePlan, Segment


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
    forward: Peak
    backward: Peak
    held_backward: Peak
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
    before, forward, backward = 0, Peak(), Peak()
    received = 0 if last else shape.hidden(LAYER_INPUT).num_bytes
    waiting = _tied_weight_gradient(shape) if first and last else received
    for index, block in enumerate(blocks):
        below = before + (block.count - 1) * block.kept
        forward = _higher(forward, block, block.forward, below)
        if index < len(blocks) - 1:
            backward = _higher(backward, block, block.backward, below + waiting)
        else:
            inside = block.backward if last else block.held_backward
            backward = _higher(backward, block, inside, below)
            if block.count > 1:
                earlier = below - block.kept + waiting
                backward = _higher(backward, block, block.backward, earlier)
        before = below + block.kept
    if first and last:
        backward = backward.or_higher(_tied_gradient_sum(shape), "sum of the tied gradients")
    kept_mask = attention_mask if _keeps_mask(plan) else 0
    return ChunkFootprint(
        kept=before + kept_mask,
        forward=Peak(forward.num_bytes + attention_mask, forward.point),
        backward=Peak(backward.num_bytes + kept_mask, backward.point),
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


def _higher(peak: Peak, block: _Block, inside: Peak, beside: int) -> Peak:
    """`peak`, or that of a block with `beside` bytes alive outside it."""
    num_bytes = inside.num_bytes + beside
    return Peak(num_bytes, f"{inside.point} ({block.name})") if num_bytes > peak.num_bytes else peak


def _blocks(shape: RankShape, plan: RecomputePlan, first: bool, last: bool) -> tuple[_Block, ...]:
    blocks = [_segment_block(shape, segment) for segment in plan.segments]
    if first:
        blocks.insert(0, _plain_block("embedding", footprint(embedding_operators(shape), ())))
    if last:
        blocks.append(_plain_block("head", footprint(head_operators(shape), ())))
    return tuple(blocks)


def _plain_block(name: str, layer: LayerFootprint, count: int = 1) -> _Block:
    return _Block(
        name=name,
        kept=layer.kept,
        forward=layer.forward,
        backward=layer.backward,
        held_backward=layer.held_backward,
        count=count,
    )


@lru_cache(maxsize=8192)
def _segment_block(shape: RankShape, segment: Segment) -> _Block:
    if segment.whole:
        block = _checkpoint_block(shape, segment.num_layers, segment.shards_input)
        return replace(block, count=segment.copies)
    layer = footprint(transformer_layer(shape), segment.runs)
    return _plain_block("layer", layer, segment.total_layers)


@lru_cache(maxsize=8192)
def _checkpoint_block(shape: RankShape, num_layers: int, shards_input: bool) -> _Block:
    """One checkpoint around `num_layers` layers (tensor_parallel/random.py CheckpointFunction).

    Keeps the first layer's input, or the rank's shard of it, which the gathered input replaces. The
    backward runs the forward of all its layers again, which then keep everything, holds the
    replayed output and the incoming gradient to the end, and goes back through them.
    """
    layer = footprint(transformer_layer(shape), ())
    hidden = shape.hidden(LAYER_INPUT).num_bytes
    kept = -(-hidden // shape.tp) if shards_input else hidden
    without_grad = walk_forward(transformer_layer(shape), {}).peak
    output = hidden if num_layers > 1 else 0
    below = (num_layers - 1) * layer.kept
    # During the replay the incoming gradient waits; afterwards the replayed output is held.
    replay = Peak(below + layer.forward.num_bytes + hidden, "replay")
    held = layer.held_backward
    backward = replay.or_higher(below + held.num_bytes + hidden, held.point)
    return _Block(
        name=f"checkpoint of {num_layers}",
        kept=kept,
        forward=Peak(without_grad.num_bytes + output, without_grad.point),
        backward=backward,
        held_backward=backward,
    )
