"""Bytes of one model chunk, one microbatch: its units in a row, forward and backward."""

from collections.abc import Iterator
from functools import lru_cache
from typing import Final

from msgspec import Struct

from advisor.layers.family import family_of
from advisor.layers.operators import Module
from advisor.layers.shape import RankShape
from advisor.layers.transformer import LAYER_INPUT
from advisor.layers.weights import embedding_weights
from advisor.memory.chunk_units import Unit, keeps_input, kept_by_copy, units_of
from advisor.memory.events import Peak, Segment, in_a_row, taken
from advisor.memory.working_set import WorkingSet
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


class _Row(Struct, frozen=True):
    """Equal units in a row, each next to `copied` bytes that the one before has on its way to the
    host, or back."""

    unit: Unit
    copies: int
    copied: int = 0


class _Chunk(Struct, frozen=True):
    """A chunk's units, and the gradients that it holds itself. received: the one that comes from
    the next stage stays to the end of the backward, [seq_length / cp (/ tp under SP),
    micro_batch_size, hidden_size]. tied: a tied output layer's waits for the embedding's.
    predicted: the embedding's from multi-token prediction waits for the embedding's own."""

    rows: list[_Row]
    last: bool
    received: int
    tied: int
    predicted: int

    def forward(self, embedded: int) -> Iterator[Segment]:
        """Its units in order. embedded: the embedding's output, which a variable holds next to the
        layers after the first."""
        for index, row in enumerate(self.rows):
            after_first = index > 1 or row.copies > 1
            variable = embedded if after_first and row.unit.name != "loss" else 0
            yield row.unit.forward.around(row.copied + variable).times(row.copies)

    def backward(self) -> Iterator[Segment]:
        """Its units from the last one back. A unit whose incoming gradient is held, by the chunk or
        by the graph that the unit after it has left, does not free it."""
        ends, graph = len(self.rows) - 1, 0
        for index in range(ends, -1, -1):
            row, unit = self.rows[index], self.rows[index].unit
            more = row.copied + unit.joined - graph
            if index < ends and not unit.joined:
                more += self.predicted
            held = graph or (index == ends and not self.last)
            yield (unit.held if held else unit.backward).around(more)
            if index == ends:
                yield taken(self.received)
            if row.copies > 1:
                others = unit.backward.around(more - unit.gradient_left)
                yield others.times(row.copies - 1)
            if unit.name == "head":
                yield taken(self.tied)
            graph = unit.gradient_left

    @property
    def kept(self) -> int:
        """Bytes that all units keep."""
        return sum(row.copies * row.unit.kept for row in self.rows)

    @property
    def stays(self) -> int:
        """Bytes of gathered parameters that come with its forward, and go with its backward: static
        memory has them throughout."""
        return sum(row.copies * row.unit.stays for row in self.rows)

    @property
    def left(self) -> int:
        """Bytes of graphs that its backward leaves, except the gradient that it hands on."""
        graphs = sum(row.copies * row.unit.left for row in self.rows)
        return graphs - (self.rows[0].unit.gradient_left if self.rows else 0)


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
    gradients that come and go with the units.

    Bytes of one rank and one microbatch; the logits of the last chunk, [seq_length / cp,
    micro_batch_size, vocabulary / tp], are among them. Source: megatron-core 0.16.1 schedules.py
    (deallocate_output_tensor), transformer_block.py; held against its peaks in tests/oracles.
    """
    if working_set is not None:
        shape = working_set.with_gradients(shape)
    found = _chunk(shape, plan, first, last, working_set)
    mask = attention_mask.num_bytes
    kept_mask = mask if _keeps_mask(plan) else 0
    embedded = _held_embedding(shape, plan) if first else 0
    there = in_a_row((taken(mask - found.stays), *found.forward(embedded))).peak
    there = Peak(mask).or_higher(there.num_bytes, there.point)
    back = in_a_row((taken(found.kept + kept_mask), *found.backward()), last=True).peak
    back = Peak(kept_mask).or_higher(back.num_bytes, back.point)
    if found.predicted:
        back = back.or_higher(kept_mask + 3 * found.predicted, "sum of the embedding gradients")
    if working_set is not None:
        back = back.or_higher(kept_mask + working_set.step, "optimizer step")
    elif first and last:
        back = back.or_higher(kept_mask + tied_gradient_sum(shape), "sum of the tied gradients")
    return ChunkFootprint(
        kept=found.kept + kept_mask,
        forward=there.or_higher(attention_mask.while_cut, "slice of the attention mask"),
        backward=back,
        left=0 if working_set is not None else found.left,
        unsure=plan.kept_bytes_sigma,
    )


def _chunk(
    shape: RankShape, plan: RecomputePlan, first: bool, last: bool, working_set: WorkingSet | None
) -> _Chunk:
    in_pool = shape.side is not None and shape.side.inside
    return _Chunk(
        rows=[*_rows(units_of(shape, plan, first, last, working_set))],
        last=last,
        received=0 if last or in_pool else sent_bytes(shape, plan),
        tied=tied_weight_gradient(shape) if first and last else 0,
        predicted=_copied_embedding_gradient(shape) if first and _predicts(plan) else 0,
    )


def _rows(units: list[tuple[Unit, int]]) -> Iterator[_Row]:
    """A layer runs next to what the one before it has on its way. The last layer's copies are
    waited for, ahead of the head."""
    copied = 0
    for unit, copies in units:
        if unit.away == copied or copies == 1:
            yield _Row(unit, copies, 0 if unit.name in _ENDS else copied)
        else:
            yield _Row(unit, 1, copied)
            yield _Row(unit, copies - 1, unit.away)
        copied = unit.away


_ENDS: Final = frozenset({"embedding", "head", "loss"})


@lru_cache(maxsize=8192)
def kept_bytes(shape: RankShape, plan: RecomputePlan) -> int:
    """Bytes that one microbatch keeps in the layers of a chunk on one rank: of a whole checkpoint
    its input, else what autograd saves of each layer under the plan's runs. Embedding, output layer
    and loss are left out, and so is what a running pass needs."""
    return sum(segment.copies * kept_by_copy(shape, segment) for segment in plan.segments)


def _held_embedding(shape: RankShape, plan: RecomputePlan) -> int:
    """The embedding's output where a variable holds it next to the layers, and the first one does
    not keep it anyway."""
    if not family_of(shape.model).holds_embedding or keeps_input(shape, plan.segments[0]):
        return 0
    return shape.hidden(LAYER_INPUT).num_bytes


def _copied_embedding_gradient(shape: RankShape) -> int:
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


def sent_bytes(shape: RankShape, plan: RecomputePlan) -> int:
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
