"""What every layer of a whole model needs at its own worst moment, whatever the others do.

chunk_footprint adds up one plan; here its sum is taken apart, so that a plan may be chosen layer by
layer: the peak is the largest of floor, of each layer's need on what the layers before it keep, and
of `end` on what all of them keep.
"""

from msgspec import Struct

from advisor.layers.shape import RankShape
from advisor.memory.chunk import (
    beside_each,
    blocks_of,
    tied_gradient_sum,
    tied_weight_gradient,
    with_gradients,
)
from advisor.memory.chunk_blocks import Block
from advisor.memory.working_set import ShardingOverhead, WorkingSet
from advisor.plan.recompute_plan import RecomputePlan


class Place(Struct, frozen=True):
    """One block of a chunk: bytes beside what it has itself forward and backward, and what the
    place needs whatever block is there, all above what the blocks before it keep."""

    forward: int
    backward: int
    least: int = 0

    def need(self, forward: int, backward: int) -> int:
        """Bytes of a block here at its worst moment, from the most that it has in either pass."""
        return max(forward + self.forward, backward + self.backward, self.least)


class Room(Struct, frozen=True):
    """A model on one rank, one microbatch: its layers' places; `below`, bytes kept before the first
    layer; `end`, bytes of head and loss above what all of that keeps; `floor`, bytes of the moments
    that no layer changes."""

    places: tuple[Place, ...]
    below: int
    end: int
    floor: int


def room_of(shape: RankShape, plan: RecomputePlan, working_set: WorkingSet | None) -> Room:
    """Of a chunk with both ends whose plan has a segment of its own for every layer; any such plan
    says the same."""
    shape = shape if working_set is None else with_gradients(shape, working_set)
    blocks = blocks_of(shape, plan, True, True)
    waiting = tied_weight_gradient(shape)
    tied = [0 if block.name == "head" else waiting for block in blocks[:-1]]  # where it is made
    places = [Place(0, each) for each in (*tied, 0)]
    if working_set is not None:
        found = zip(blocks, places, beside_each(blocks, working_set), strict=True)
        places = [_beside(block, place, *beside) for block, place, beside in found]
    first, last = 1, 1 + len(plan.segments)
    end = above = 0
    for block, place in zip(blocks[last:], places[last:], strict=True):
        end = max(end, above + _need(place, block))
        above += block.kept
    step = working_set.step if working_set is not None else tied_gradient_sum(shape)
    return Room(
        places=tuple(places[first:last]),
        below=blocks[0].kept,
        end=end,
        floor=max(_need(places[0], blocks[0]), step),
    )


def _need(place: Place, block: Block) -> int:
    return place.need(block.forward.num_bytes, block.backward.num_bytes)


def _beside(block: Block, place: Place, beside: ShardingOverhead, left: int) -> Place:
    """`place` with what is gathered and reduced beside its block."""
    back = left + place.backward
    return Place(
        forward=beside.forward,
        backward=beside.backward + back,
        least=block.entry + max(beside.entry, beside.exit + back),
    )
