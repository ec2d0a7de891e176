"""What of a chunk's time its forward takes."""

import pytest
from msgspec.structs import replace

from advisor.layers.transformer import LAYER_INPUT
from advisor.models.layer_kind import DENSE
from advisor.plan.recompute_plan import InputStorage, RecomputePlan, Segment
from advisor.time.passes import chunk_times, end_times, layer_times
from advisor.time.stage_times import chunk_forward, ends_forward
from tests.advisor.time.test_step_time import MACHINE, NETWORK, SHAPE

WHOLE = Segment((DENSE,), whole=True, copies=3)
INPUT = SHAPE.hidden(LAYER_INPUT).num_bytes


def test_kernels_are_those_of_all_layers_and_communication_is_shared_by_both_passes() -> None:
    plan = RecomputePlan((WHOLE, Segment((DENSE, DENSE))))
    there, both = (of(SHAPE, MACHINE, NETWORK, plan) for of in (chunk_forward, chunk_times))
    layer = layer_times(SHAPE, MACHINE, NETWORK, DENSE)
    assert there.forward == pytest.approx(5 * layer.forward) == pytest.approx(both.forward)
    assert 0 < there.exposed < both.exposed
    assert (there.backward, there.recompute, there.host, there.offload) == (0, 0, 0, 0)


@pytest.mark.parametrize(("overlapped", "hidden_layers"), [(False, 0), (True, 1)])
def test_an_input_that_waits_on_the_host_is_copied_next_to_its_own_layer(
    overlapped: bool, hidden_layers: int
) -> None:
    """One copy of each of three layers takes twice as long as the layer's kernels."""
    forward = layer_times(SHAPE, MACHINE, NETWORK, DENSE).forward
    machine = replace(MACHINE, host_bytes_per_second=INPUT / (2 * forward))
    storage = InputStorage(offloaded=True, overlapped=overlapped)
    plan = RecomputePlan((replace(WHOLE, input=storage),))
    there = chunk_forward(SHAPE, machine, NETWORK, plan)
    assert there.offload == pytest.approx(3 * (2 - hidden_layers) * forward)
    cut = RecomputePlan((replace(WHOLE, input=storage, shards_input=True),))
    quarter = 3 * max(0.0, 0.5 - hidden_layers) * forward
    assert chunk_forward(SHAPE, machine, NETWORK, cut).offload == pytest.approx(quarter)


def test_ends_have_a_part_of_their_seconds() -> None:
    for first, last in ((True, False), (False, True), (True, True)):
        there = ends_forward(SHAPE, MACHINE, NETWORK, first, last)
        both = end_times(SHAPE, MACHINE, NETWORK, first, last)
        assert there.forward == pytest.approx(both.forward)
        assert 0 <= there.exposed < both.exposed
