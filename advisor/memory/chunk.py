"""Bytes of one model chunk, one microbatch: its blocks in a row, forward and backward."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from advisor.layers.family import family_of
from advisor.layers.operators import Module
from advisor.layers.shape import RankShape
from advisor.layers.transformer import LAYER_INPUT, embedding_operators, head_groups
from advisor.layers.weights import embedding_weights
from advisor.memory.arena import Peak
from advisor.memory.chunk_blocks import (
    Block,
    keeps_input,
    kept_by_copy,
    plain_block,
    segment_block,
)
from advisor.memory.liveness import footprint
from advisor.memory.working_set import ShardingOverhead, WorkingSet
from advisor.models.layer_kind import Role
from advisor.plan.recompute_plan import RecomputePlan


class ChunkFootprint(Struct, frozen=True, kw_only=True):
    """What one microbatch of one chunk keeps, and the most it needs in either pass (kept bytes
    included), above what was alive before its forward. left: what its backward leaves until the
    next forward of the chunk. unsure: by how much kept may differ, one sigma."""

    kept: int
    forward: Peak
    backward: Peak
    left: int = 0
    unsure: int = 0


class AttentionMask(Struct, frozen=True):
    """Bytes of the boolean mask that comes with a microbatch: this rank's [b, 1, s / cp, s], and
    the whole one that it is cut from (megatron-core 0.19.2 utils.py, get_batch_on_this_cp_rank)."""

    num_bytes: int = 0
    uncut_bytes: int = 0

    @property
    def while_cut(self) -> int:
        """Bytes while the one is copied out of the other."""
        return self.num_bytes + self.uncut_bytes if self.uncut_bytes > self.num_bytes else 0


NO_MASK: Final = AttentionMask()


@lru_cache(maxsize=8192)
def chunk_footprint(
    shape: RankShape,
    plan: RecomputePlan,
    first: bool,
    last: bool,
    attention_mask: AttentionMask = NO_MASK,
    working_set: WorkingSet | None = None,
) -> ChunkFootprint:
    """Footprint of a chunk under `plan`; `first` holds the embedding, `last` norm, head and loss.

    attention_mask: on a chunk that gets one, or of no bytes. It lives through the forward, and
    until the backward where a checkpoint takes it as an argument. working_set: parameters and
    gradients that come and go with the blocks.

    The backward starts with the last block while everything is kept, and frees block after block;
    the gradient received from the next stage, [seq_length / cp (/ tp under SP), micro_batch_size,
    hidden_size] in the type of the activations, stays to the end of the pass. Bytes of one rank and
    one microbatch; the logits of the last chunk, [seq_length / cp, micro_batch_size, vocabulary /
    tp], are among them. Source: megatron-core 0.16.1 schedules.py (deallocate_output_tensor),
    transformer_block.py; held against its peaks in tests/oracles.
    """
    if working_set is not None:
        shape = with_gradients(shape, working_set)
    blocks = _beside_copies(blocks_of(shape, plan, first, last))
    if working_set is not None:
        blocks = _with_working_set(blocks, working_set)
    before, forward, backward = 0, Peak(), Peak()
    in_pool = shape.side is not None and shape.side.inside
    received = 0 if last or in_pool else _sent_bytes(shape, plan)
    waiting = tied_weight_gradient(shape) if first and last else received
    stays = _left_by_later(blocks)
    copied = _copied_embedding_gradient(shape) if first and _predicts(plan) else 0
    held = _held_embedding(shape, plan) if first else 0
    cached = 0
    for index, block in enumerate(blocks):
        below = before + (block.count - 1) * block.kept
        behind_first_layer = index > 1 or block.count > 1
        variables = held if behind_first_layer and block.name != "loss" else 0
        cached += block.count * block.cached
        forward = _higher(forward, block, block.forward, below + variables + cached)
        below += block.joined_gradient
        if index < len(blocks) - 1:
            tied = 0 if block.name == "head" else waiting  # where it is made
            beside = tied + stays[index] + (0 if block.joined_gradient else copied)
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
        backward = backward.or_higher(3 * copied, "sum of the embedding gradients")
    if first and last and working_set is None:
        backward = backward.or_higher(tied_gradient_sum(shape), "sum of the tied gradients")
    if working_set is not None:
        backward = backward.or_higher(working_set.step, "optimizer step")
    mask = attention_mask.num_bytes
    kept_mask = mask if _keeps_mask(plan) else 0
    forward = Peak(forward.num_bytes + mask, forward.point)
    return ChunkFootprint(
        kept=before + kept_mask,
        forward=forward.or_higher(attention_mask.while_cut, "slice of the attention mask"),
        backward=Peak(backward.num_bytes + kept_mask, backward.point),
        left=sum(block.count * block.left_behind for block in blocks)
        - (blocks[0].left_gradient if blocks else 0),
        unsure=plan.kept_bytes_sigma,
    )


@lru_cache(maxsize=8192)
def layers_backward(shape: RankShape, plan: RecomputePlan, first: bool, last: bool) -> Peak:
    """The highest backward of a layer of the chunk if all that layers and embedding keep stays
    meanwhile."""
    layers = [segment_block(shape, segment) for segment in plan.segments]
    kept = sum(block.count * block.kept for block in layers)
    if first:
        kept += footprint(embedding_operators(shape), ()).kept
    waiting = _sent_bytes(shape, plan) if not last else 0
    if first and last:
        waiting = tied_weight_gradient(shape)
    highest = Peak()
    for block in layers:
        highest = _higher(highest, block, block.backward, kept - block.kept + waiting)
    return highest


def overlapped(footprint: ChunkFootprint, layers: Peak, layer: int, hidden: int) -> ChunkFootprint:
    """`footprint` where the backward of each layer, at most `layers`, has `layer` bytes more, in
    turns with the forward of another microbatch, and that of the ends the `hidden` states that
    begin it."""
    backward = Peak(footprint.backward.num_bytes + hidden, footprint.backward.point)
    point = f"{layers.point}, during the forward of another microbatch"
    return replace(footprint, backward=backward.or_higher(layers.num_bytes + layer, point))


def with_gradients(shape: RankShape, working_set: WorkingSet) -> RankShape:
    """`shape` whose weights' gradients are those of the working set."""
    dtype, adds = working_set.weight_grads_dtype, working_set.adds_weight_grads
    if dtype is None and not adds:
        return shape
    return replace(shape, weight_grads_dtype=dtype, adds_weight_grads=adds)


@lru_cache(maxsize=8192)
def kept_bytes(shape: RankShape, plan: RecomputePlan) -> int:
    """Bytes that one microbatch keeps in the layers of a chunk on one rank: of a whole checkpoint
    its input, else what autograd saves of each layer under the plan's runs. Embedding, output layer
    and loss are left out, and so is what a running pass needs."""
    return sum(segment.copies * kept_by_copy(shape, segment) for segment in plan.segments)


def _held_embedding(shape: RankShape, plan: RecomputePlan) -> int:
    """The embedding's output where a variable holds it beside the layers, and the first one does
    not keep it anyway."""
    if not family_of(shape.model).holds_embedding or keeps_input(shape, plan.segments[0]):
        return 0
    return shape.hidden(LAYER_INPUT).num_bytes


def _left_by_later(blocks: tuple[Block, ...]) -> list[int]:
    """Bytes that the backward of the blocks after each has left, but for the gradient that the
    block itself starts from."""
    if not any(block.left for block in blocks):
        return [0] * len(blocks)
    stays, total = [], 0
    following: Block | None = None
    for block in reversed(blocks):
        stays.append(total - (following.left_gradient if following else 0))
        total += block.count * block.left_behind
        following = block
    return stays[::-1]


def _copied_embedding_gradient(shape: RankShape) -> int:
    """Gradient of the embedding from multi-token prediction; it waits for the embedding's own."""
    return embedding_weights(shape)[0].num_elements * shape.dtype.itemsize


def tied_weight_gradient(shape: RankShape) -> int:
    """A tied output layer's gradient tensor, which waits for the embedding's in the same pass."""
    if not shape.model.share_embeddings_and_output_weights:
        return 0
    return shape.weight_gradient_bytes(embedding_weights(shape)[0].num_elements)


def tied_gradient_sum(shape: RankShape) -> int:
    """The tied weight's gradient from both ends and their sum, when everything else is gone."""
    if not shape.model.share_embeddings_and_output_weights:
        return 0
    each = embedding_weights(shape)[0].num_elements * shape.dtype.itemsize
    return tied_weight_gradient(shape) + 2 * each


def _keeps_mask(plan: RecomputePlan) -> bool:
    """Whether a checkpoint of `plan` takes the attention mask as an argument."""
    return any(
        segment.whole or any(Module.CORE_ATTENTION in run.modules for run in segment.runs)
        for segment in plan.segments
    )


def _higher(peak: Peak, block: Block, inside: Peak, beside: int) -> Peak:
    """`peak`, or that of a block with `beside` bytes alive outside it."""
    num_bytes = inside.num_bytes + beside
    if num_bytes <= peak.num_bytes:
        return peak
    return Peak(num_bytes, inside.point + _PLACES.get(block.name, f" in a {block.name}"))


_PLACES: Final = {
    "multi-token prediction": " in multi-token prediction",
    **dict.fromkeys(("embedding", "final norm", "head", "loss"), ""),
}
"""Blocks whose operators say where they are, and one that has no article."""


def blocks_of(shape: RankShape, plan: RecomputePlan, first: bool, last: bool) -> tuple[Block, ...]:
    """Layers and checkpoints of a chunk between the ends that it holds."""
    blocks = [segment_block(shape, segment) for segment in plan.segments]
    if first:
        blocks.insert(0, plain_block("embedding", footprint(embedding_operators(shape), ())))
    if last:
        entry = shape.hidden(LAYER_INPUT).num_bytes
        for name, operators in head_groups(shape):
            block = plain_block(name, footprint(operators, ()))
            blocks.append(replace(block, entry=entry) if name == "head" else block)
    return tuple(blocks)


def _beside_copies(blocks: tuple[Block, ...]) -> tuple[Block, ...]:
    """`blocks` with what the one before each has on its way to the host, or back. The last layer's
    copies are waited for, ahead of the head."""
    if not any(block.away for block in blocks):
        return blocks
    found: list[Block] = []
    for block in blocks:
        before = found[-1].away if found and block.name not in _ENDS else 0
        found.append(_beside(replace(block, count=1), before))
        if block.count > 1:
            found.append(_beside(replace(block, count=block.count - 1), block.away))
    return tuple(found)


_ENDS: Final = frozenset({"embedding", "head", "loss"})


def _beside(block: Block, num_bytes: int) -> Block:
    forward, backward, held = (
        Peak(peak.num_bytes + num_bytes, peak.point)
        for peak in (block.forward, block.backward, block.held_backward)
    )
    entry = block.entry + num_bytes
    return replace(block, forward=forward, backward=backward, held_backward=held, entry=entry)


def _with_working_set(blocks: tuple[Block, ...], found: WorkingSet) -> tuple[Block, ...]:
    """`blocks` with what is beside them. Of several layers in a row the first two and the last
    stand for themselves: from there on kept tensors shrink while what is left behind grows."""
    single: list[Block] = []
    for block in blocks:
        ends = [1, 1, block.count - 3, 1] if block.count > 3 else [1] * block.count
        single += [replace(block, count=count) for count in ends]
    raised = [
        (_raised_checkpoint if block.several else _raised)(block, beside, left)
        for block, (beside, left) in zip(single, beside_each(single, found), strict=True)
    ]
    return tuple(raised)


def beside_each(blocks: Sequence[Block], found: WorkingSet) -> list[tuple[ShardingOverhead, int]]:
    """What is beside each block of a chunk, and the bytes that later ones have left. In either pass
    the gathered parameters of later ones are not there: static memory has them throughout."""
    named = {"embedding": found.embedding, "head": found.head, "loss": found.loss}
    layers = [index for index, block in enumerate(blocks) if block.name not in named]
    ends_of_layers = {layers[0]: found.first_layer, layers[-1]: found.last_layer}
    each, left, absent = [], 0, 0
    for index in range(len(blocks) - 1, -1, -1):
        block = blocks[index]
        beside = named.get(block.name) or ends_of_layers.get(index, found.layer)
        entry, forward = beside.entry - absent, beside.forward - absent
        each.append((replace(beside, entry=entry, forward=forward), left - absent))
        copies = block.count * max(1, len(block.several))
        left += beside.left * copies
        absent += beside.stays * copies
    return each[::-1]


def _raised_checkpoint(block: Block, beside: ShardingOverhead, left: int) -> Block:
    """A checkpoint around several layers with `beside` it what is gathered and reduced for one, and
    `left` bytes of later blocks.

    Its replay gathers its layers one after another: the last one's parameters are there already,
    the all-gather of the one before has begun, that of the running one lives to the layer's end.
    Parameters stay until their layer has gone back. Source: torch 2.13
    distributed/fsdp/_fully_shard/_fsdp_param_group.py (post_forward, wait_for_unshard).
    """
    number, each = len(block.several), beside.again
    alone = beside.backward - beside.ahead + left
    passes = [Peak(0, "")] * 2
    for index, layer in enumerate(block.several):
        shards = (number - 1 - index) * (beside.left - beside.stays)
        ahead = 0 if index else beside.ahead
        others = index * each
        runs_last = index == number - 1
        replay = alone + each * (min(index + 3, number) - runs_last)
        back = alone + others + ahead + shards
        end = layer.end + beside.exit - beside.ahead + others + ahead + left + shards
        passes = [
            peak.or_higher(layer.replay.num_bytes + replay, layer.replay.point)
            .or_higher(inside.num_bytes + back, inside.point)
            .or_higher(end, "reduce-scatter")
            for peak, inside in zip(passes, (layer.backward, layer.held_backward), strict=True)
        ]
    forward = Peak(block.forward.num_bytes + beside.forward, block.forward.point)
    return replace(
        block,
        forward=forward.or_higher(block.entry + beside.entry, "all-gather"),
        backward=passes[0],
        held_backward=passes[1],
    )


def _raised(block: Block, beside: ShardingOverhead, left: int) -> Block:
    """`block` with `beside` it what is gathered and reduced, and `left` bytes of later blocks."""

    def more(peak: Peak, num_bytes: int) -> Peak:
        return Peak(peak.num_bytes + num_bytes, peak.point)

    backward = beside.backward + left
    forward = more(block.forward, beside.forward)
    end = block.entry + beside.exit + left
    return replace(
        block,
        forward=forward.or_higher(block.entry + beside.entry, "all-gather"),
        backward=more(block.backward, backward).or_higher(end, "reduce-scatter"),
        held_backward=more(block.held_backward, backward).or_higher(end, "reduce-scatter"),
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
