"""What every layer of a whole model needs at its own worst moment, whatever the others do.

chunk_footprint adds up one plan; here its sum is taken apart, so that a plan may be chosen layer by
layer: the peak is the largest of floor, of each layer's need on what the layers before it keep, and
of `end` on what all of them keep.
"""

from collections.abc import Iterator, Sequence

from msgspec import Struct

from advisor.layers.shape import RankShape, tied_weight_gradient
from advisor.memory.chunk import tied_gradient_sum
from advisor.memory.chunk_units import Unit, rows_of, unit_of
from advisor.memory.working_set import ShardingOverhead, WorkingSet
from advisor.plan.recompute_plan import RecomputePlan


class Place(Struct, frozen=True):
    """One unit of a chunk: bytes next to what it has itself forward and backward, and what the
    place needs whatever unit is there, all above what the units before it keep."""

    forward: int
    backward: int
    least: int = 0

    def need(self, forward: int, backward: int) -> int:
        """Bytes of a unit here at its worst moment, from the most that it has in either pass."""
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
    shape = shape if working_set is None else working_set.with_gradients(shape)
    units = [unit_of(shape, *row) for row, _ in rows_of(shape, plan, True, True)]
    waiting = tied_weight_gradient(shape)
    tied = [0 if unit.name == "head" else waiting for unit in units[:-1]]  # where it is made
    places = [Place(0, each) for each in (*tied, 0)]
    if working_set is not None:
        found = zip(units, places, _gathered_each(units, working_set), strict=True)
        places = [_gathered(unit, place, *more) for unit, place, more in found]
    first, last = 1, 1 + len(plan.segments)
    end = above = 0
    for unit, place in zip(units[last:], places[last:], strict=True):
        end = max(end, above + _need(place, unit))
        above += unit.kept
    step = working_set.step if working_set is not None else tied_gradient_sum(shape)
    return Room(
        places=tuple(places[first:last]),
        below=units[0].kept,
        end=end,
        floor=max(_need(places[0], units[0]), step),
    )


def _need(place: Place, unit: Unit) -> int:
    return place.need(unit.highest_forward, unit.highest_backward)


def _gathered_each(
    units: Sequence[Unit], found: WorkingSet
) -> Iterator[tuple[ShardingOverhead, int, int]]:
    """Of each unit what is gathered for it, the gathered parameters of later units, which static
    memory has throughout though they are not there yet, and what later units have left."""
    each = found.of_each([unit.name for unit in units])
    for index, one in enumerate(each):
        later = each[index + 1 :]
        yield one, sum(other.stays for other in later), sum(other.left for other in later)


def _gathered(unit: Unit, place: Place, more: ShardingOverhead, absent: int, left: int) -> Place:
    """`place` with what is gathered and reduced next to its unit."""
    back = left - absent + place.backward
    return Place(
        forward=more.forward - absent,
        backward=more.backward + back,
        least=unit.entry + max(more.entry - absent, more.exit + back),
    )
