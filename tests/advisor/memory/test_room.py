"""A plan's peak, taken apart by layers, is the one that chunk_footprint adds up."""

from hypothesis import given, settings
from hypothesis import strategies as st

from advisor.frameworks.torch.block_regimes import INPUT, BlockRegime, decisions
from advisor.frameworks.torch.optimum.solve import ways_of
from advisor.frameworks.torch.parameter_groups import Sharding, fsdp_working_set
from advisor.frameworks.torch.plan import Semantics, block_segment
from advisor.layers.shape import RankShape
from advisor.layers.transformer import transformer_layer
from advisor.memory.cheapest import Way, peak_of
from advisor.memory.chunk import chunk_footprint
from advisor.memory.chunk_units import unit_of
from advisor.memory.room import room_of
from advisor.plan.recompute_plan import RecomputePlan, merged
from tests.advisor.frameworks.torch.jobs import stack_job
from tests.advisor.jobs import evaluator_of

STACK, JOB = stack_job("fsdp2")
SHAPE = evaluator_of(JOB).shape
(KIND,) = set(JOB.model.layer_kinds)
HOW = Semantics()
NAMES = [*decisions(transformer_layer(SHAPE, KIND))]
WORKING_SETS = (
    None,
    *(
        fsdp_working_set(SHAPE, Sharding(ranks=8, reshards=reshards, root_holds_ends=ends))
        for reshards in (True, False)
        for ends in (True, False)
    ),
)


@st.composite
def regimes(draw: st.DrawFn) -> BlockRegime:
    places = [draw(st.sampled_from(("again", "kept", "host"))) for _ in (*NAMES, INPUT)]
    named = dict(zip((*NAMES, INPUT), places, strict=True))
    if not draw(st.booleans()):
        return BlockRegime()
    kept = tuple(name for name in NAMES if named[name] == "kept")
    return BlockRegime(True, kept, tuple(name for name, one in named.items() if one == "host"))


@settings(max_examples=40, deadline=None)
@given(st.lists(regimes(), min_size=1, max_size=4), st.data())
def test_peak_of_any_plan(few: list[BlockRegime], data: st.DataObject) -> None:
    layers = len(JOB.model.layer_kinds)
    blocks = [data.draw(st.sampled_from(few)) for _ in range(layers)]
    segments = tuple(block_segment(one, SHAPE, KIND, HOW) for one in blocks)
    for working_set in WORKING_SETS:
        shape = SHAPE if working_set is None else working_set.with_gradients(SHAPE)
        found = chunk_footprint(
            SHAPE, RecomputePlan(merged(segments)), True, True, working_set=working_set
        )
        plain = block_segment(BlockRegime(), SHAPE, KIND, HOW)
        room = room_of(SHAPE, RecomputePlan((plain,) * layers), working_set)
        options = [[_option(shape, one) for one in few]]
        numbers = [few.index(one) for one in blocks]
        peak = peak_of(options, [0] * layers, room, numbers)
        assert peak == max(found.forward.num_bytes, found.backward.num_bytes)


def _option(shape: RankShape, regime: BlockRegime) -> Way:
    unit = unit_of(shape, block_segment(regime, shape, KIND, HOW))
    peaks = unit.highest_forward, unit.highest_backward
    return Way(0, unit.kept, *peaks, unit.away)


def test_what_is_put_on_the_host_is_added_up_as_its_segment_has_it() -> None:
    evaluator = evaluator_of(JOB)
    ways = ways_of(SHAPE, KIND, HOW, evaluator.rates, on_host=True)
    for regime, option in [*zip(ways.regimes, ways.options, strict=True)][::37]:
        found = _option(SHAPE, regime)
        assert (found.kept, found.forward, found.backward, found.away) == (
            option.kept,
            option.forward,
            option.backward,
            option.away,
        )
