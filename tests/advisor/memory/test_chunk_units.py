"""A unit by itself, and next to what is gathered for it."""

from advisor.layers.transformer import transformer_layer
from advisor.memory.chunk_units import rows_of, unit_of
from advisor.memory.liveness import footprint
from advisor.memory.working_set import ShardingOverhead, WorkingSet
from advisor.models.layer_kind import DENSE
from advisor.plan.recompute_plan import Checkpoint, RecomputePlan, Segment
from tests.advisor.toys import SHARD, toy_shape


def test_a_unit_begins_and_ends_with_what_it_keeps() -> None:
    shape = toy_shape()
    unit = unit_of(shape, Segment((DENSE,)))
    layer = footprint(transformer_layer(shape), ())
    assert (unit.kept, unit.entry, unit.left) == (layer.kept, SHARD, 0)
    assert unit.highest_forward == layer.forward.num_bytes
    assert unit.highest_backward == layer.backward.num_bytes
    assert unit.forward.net == layer.kept == -unit.backward.net


def test_what_is_gathered_for_a_unit_comes_and_goes_with_it() -> None:
    """By hand, above the unit's own peaks: 1000 more forward, 3000 back; entry and exit decide
    where they are larger."""
    shape, layers = toy_shape(), Segment((DENSE,))
    plain = unit_of(shape, layers)
    more = unit_of(shape, layers, ShardingOverhead(forward=1000, backward=3000, left=7, stays=5))
    assert more.highest_forward == plain.highest_forward + 1000 + 5
    assert more.highest_backward == plain.highest_backward + 3000
    assert (more.forward.net, more.backward.net) == (plain.kept + 5, 2 - plain.kept)
    large = unit_of(shape, layers, ShardingOverhead(entry=10**9, exit=2 * 10**9))
    assert large.forward.peak.num_bytes == 10**9 + SHARD
    assert large.forward.peak.point == "all-gather in a layer"
    assert large.highest_backward == plain.kept + 2 * 10**9 + SHARD - plain.kept
    assert large.backward.peak.point == "reduce-scatter in a layer"


def test_the_first_and_the_last_layer_have_overheads_of_their_own() -> None:
    shape = toy_shape()
    sizes = WorkingSet(
        first_layer=ShardingOverhead(left=1),
        layer=ShardingOverhead(left=10),
        last_layer=ShardingOverhead(left=100),
    )
    for copies, left in ((1, [100]), (2, [1, 100]), (3, [1, 10, 100]), (9, [1, 10, 100])):
        plan = RecomputePlan((Segment((DENSE,), copies=copies),))
        rows = rows_of(shape, plan, False, False, sizes)
        assert [unit_of(shape, *row).left for row, _ in rows] == left
        assert sum(number for _, number in rows) == copies


def test_a_reentrant_checkpoint_is_gathered_as_one() -> None:
    shape, overhead = toy_shape(), ShardingOverhead(forward=1000, backward=3000, left=7, stays=5)
    several = Segment((DENSE,) * 4, whole=True)
    plain, unit = unit_of(shape, several), unit_of(shape, several, overhead)
    assert (unit.layers, unit.stays, unit.left - plain.left) == (1, 5, 7 - 5)
    assert unit.highest_forward == plain.highest_forward + 1000 + 5
    assert unit.highest_backward == plain.highest_backward + 3000


def test_layers_of_a_checkpoint_are_gathered_one_after_another() -> None:
    """By hand: each layer of four leaves 7 and has 5 that stayed. All four are gathered when the
    third runs again, next to what two keep."""
    shape = toy_shape()
    several = Segment((DENSE,) * 4, whole=True, checkpoint=Checkpoint.NON_REENTRANT)
    plain = unit_of(shape, several)
    unit = unit_of(shape, several, ShardingOverhead(left=7, stays=5))
    assert unit.layers == 4
    assert unit.left == plain.left + 4 * (7 - 5)
    assert unit.stays == 4 * 5
    reduced = unit_of(shape, several, ShardingOverhead(exit=10**9))
    layer = footprint(transformer_layer(shape), ())
    assert reduced.highest_backward == 10**9 + 3 * layer.kept + SHARD
    assert reduced.backward.peak.point == "reduce-scatter in a checkpoint of 4 layers"
    again = unit_of(shape, several, ShardingOverhead(again=10**6))
    assert again.highest_backward == 4 * 10**6 + 204_544
    assert again.backward.peak.point == "replay in a checkpoint of 4 layers"
