"""Requests of a chunk: none is negative, and parameters that stay gathered come and go with their
group."""

import pytest

from advisor.frameworks.torch.parameter_groups import Sharding, fsdp_static, fsdp_working_set
from advisor.hardware.calibration import load_calibration
from advisor.memory.simulation import chunk_trace
from advisor.memory.static import layer_elements
from advisor.models.layer_kind import DENSE
from advisor.plan.recompute_plan import Checkpoint, RecomputePlan, Segment
from advisor.search.evaluate import Evaluator
from tests.advisor.frameworks.torch.jobs import stack_job

_, JOB = stack_job("fsdp2")
SHAPE = Evaluator(JOB, load_calibration(JOB.gpu, None)).shape
LAYERS = SHAPE.model.num_layers
LAYER = layer_elements(SHAPE)
EMBEDDING = SHAPE.model.vocab_size * SHAPE.model.hidden_size
HEAD = EMBEDDING + SHAPE.model.hidden_size
TOTAL = LAYERS * LAYER + EMBEDDING + HEAD


def _plan(each: int) -> RecomputePlan:
    """Layers by themselves, or `each` in a checkpoint."""
    if each == 1:
        return RecomputePlan((Segment((DENSE,), copies=LAYERS),))
    several, kind = (DENSE,) * each, Checkpoint.NON_REENTRANT
    return RecomputePlan((Segment(several, whole=True, copies=LAYERS // each, checkpoint=kind),))


@pytest.mark.parametrize("root_holds_ends", [False, True], ids=["groups", "root"])
@pytest.mark.parametrize("each", [1, 4])
def test_parameters_that_stay_come_with_the_forward_and_go_with_the_backward(
    each: int, root_holds_ends: bool
) -> None:
    """Exact bytes in 16 bit; those of one checkpoint come as one. When all have gone back, the
    gradients' shards are left."""
    sharding = Sharding(ranks=8, reshards=False, root_holds_ends=root_holds_ends)
    working_set = fsdp_working_set(SHAPE, sharding)
    trace = chunk_trace(SHAPE, _plan(each), True, True, working_set)
    second = [(place, *requests[1]) for place, requests in trace.forward[1:-1]]
    come = [(place, size) for place, _, size in second if size]
    gone = [place for place, requests in trace.backward if (second[0][1], 0) in requests]
    first, last = (EMBEDDING + HEAD, 0) if root_holds_ends else (EMBEDDING, HEAD)
    sizes = [2 * first, *[2 * each * LAYER] * (LAYERS // each), *([2 * last] if last else [])]
    assert [size for _, size in come] == sizes
    assert [place for place in gone if place in dict(come)] == [place for place, _ in come][::-1]
    assert fsdp_static(TOTAL, sharding).weights - trace.stays == sharding.shard(TOTAL)

    live: dict[int, int] = {}
    for place, requests in (*trace.forward, *trace.backward):
        for number, size in requests:
            if size > 0:
                live[place + number] = size
            elif not size:
                live.pop(place + number, None)
    shards = LAYERS * sharding.shard(LAYER)
    shards += 0 if root_holds_ends else sharding.shard(EMBEDDING) + sharding.shard(HEAD)
    assert sum(live.values()) == shards
