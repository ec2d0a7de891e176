"""The optimum of a toy of 12 decisions, two blocks of six operators, next to every plan."""

from functools import cache
from itertools import product

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from advisor.frameworks.torch.optimum.solve import FEMTOSECONDS, Blocks
from advisor.frameworks.torch.parameter_groups import Sharding, fsdp_working_set
from advisor.frameworks.torch.plan import Semantics, chunk_plan
from advisor.frameworks.torch.setting import by_block
from advisor.layers.shape import RankShape
from advisor.memory.chunk import chunk_footprint
from advisor.models.options import Activation
from advisor.time.passes import chunk_times
from tests.advisor.jobs import evaluator_of

from .jobs import stack_job

_, JOB = stack_job("fsdp2")
RATES = evaluator_of(JOB).rates
MODEL = replace(JOB.model, num_layers=2, activation=Activation.GELU, vocab_size=512)
SHAPE = RankShape(model=MODEL, seq_length=2048, micro_batch_size=1)
WORKING_SET = fsdp_working_set(SHAPE, Sharding(ranks=8))
HOW = Semantics()
BLOCKS = Blocks(SHAPE, HOW, RATES, WORKING_SET, on_host=False)


@cache
def every_plan() -> list[tuple[int, int]]:
    """Peak and time in femtoseconds of each, as chunk_footprint and chunk_times have them."""
    (ways,) = BLOCKS.ways.values()
    assert len(ways.decided) * MODEL.num_layers == 12
    found = []
    for regimes in product(ways.regimes, repeat=MODEL.num_layers):
        plan = chunk_plan(by_block(regimes), SHAPE, MODEL.layer_kinds, HOW)
        peaks = chunk_footprint(SHAPE, plan, True, True, working_set=WORKING_SET)
        seconds = chunk_times(SHAPE, RATES.machine, RATES.network, plan).total
        most = max(peaks.forward.num_bytes, peaks.backward.num_bytes)
        found.append((most, round(seconds * FEMTOSECONDS)))
    return found


@settings(deadline=None)
@given(st.floats(-0.05, 1.05))
def test_it_is_the_fastest_within_any_budget(share: float) -> None:
    plans = every_plan()
    least, most = min(peak for peak, _ in plans), max(peak for peak, _ in plans)
    budget = least + int(share * (most - least))
    fitting = [cost for peak, cost in plans if peak <= budget]
    found = BLOCKS.within(0, budget)
    assert (found is None) == (not fitting)
    if found is not None:
        assert found.chosen.cost == found.chosen.bound
        # each block's time is rounded by itself
        assert abs(found.chosen.cost - min(fitting)) <= MODEL.num_layers
