"""Requests of a chunk: together they are what its fold says, and parameters that stay gathered come
and go with their group."""

from collections.abc import Iterator

import pytest
from msgspec.structs import replace

from advisor.frameworks.megatron.plan import chunk_plan
from advisor.frameworks.megatron.setting import parse_setting
from advisor.frameworks.torch.parameter_groups import (
    Part,
    Sharding,
    fsdp_static,
    fsdp_working_set,
)
from advisor.layers.shape import RankShape
from advisor.layers.transformer import LAYER_INPUT
from advisor.memory import chunk_units
from advisor.memory.chunk import chunk_footprint, chunk_trace
from advisor.memory.simulation import Rank
from advisor.memory.static import layer_elements
from advisor.memory.working_set import WorkingSet
from advisor.models.layer_kind import DENSE, FeedForward, LayerKind
from advisor.models.options import TransformerImpl
from advisor.models.presets import load_model
from advisor.plan.recompute_plan import ON_HOST, Checkpoint, RecomputePlan, Segment
from tests.advisor.frameworks.torch.jobs import stack_job
from tests.advisor.jobs import evaluator_of
from tests.advisor.toys import toy_shape

_, JOB = stack_job("fsdp2")
SHAPE = evaluator_of(JOB).shape
LAYERS = SHAPE.model.num_layers
LAYER = layer_elements(SHAPE)
EMBEDDING = SHAPE.model.vocab_size * SHAPE.model.hidden_size
HEAD = EMBEDDING + SHAPE.model.hidden_size
TOTAL = LAYERS * LAYER + EMBEDDING + HEAD
MIXTRAL = RankShape(
    model=load_model("mixtral_8x7b"),
    seq_length=1024,
    micro_batch_size=1,
    expert_model_parallel_size=4,
)


class Unrounded:
    """An allocator that gives each request what it asks for."""

    live = peak = 0

    def allocate(self, size: int, stream: int = 0) -> int:
        self.live += size
        self.touch(0)
        return size

    def release(self, size: int) -> None:
        self.live -= size

    def touch(self, size: int) -> None:
        self.peak = max(self.peak, self.live + size)


@pytest.fixture(autouse=True)
def every_request(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Small ones too, in what these tests ask for and nowhere else."""
    chunk_trace.cache_clear()
    chunk_units.unit_requests.cache_clear()
    monkeypatch.setattr(chunk_units, "NEGLIGIBLE", 0)
    yield
    chunk_trace.cache_clear()
    chunk_units.unit_requests.cache_clear()


def agrees(
    shape: RankShape,
    plan: RecomputePlan,
    ends: tuple[bool, bool] = (True, True),
    working_set: WorkingSet | None = None,
    held: int = 0,
) -> bool:
    """Whether the simulation without rounding has the fold's bytes, in either pass and between
    them. Parameters that stay count as static in the fold. held: bytes that the requests have more
    in the backward, where there is no head."""
    trace = chunk_trace(shape, plan, *ends, working_set)
    fold = chunk_footprint(shape, plan, *ends, working_set=working_set)
    rank, live = Rank(expandable_segments=False), {}
    rank.allocator = plain = Unrounded()
    rank.run(trace.forward, live)
    forward, kept = plain.peak, plain.live
    plain.peak = 0
    rank.run(trace.backward, live)
    more = 0 if ends[1] else held
    return (forward, kept, plain.peak - more) == (
        fold.forward.num_bytes + trace.stays,
        fold.kept + trace.stays,
        fold.backward.num_bytes + trace.stays,
    )


ENDS = [(True, True), (True, False), (False, False), (False, True)]
SPECS = ["none", "selective:mlp", "selective:core_attn,layernorm", "full:block:2"]
SPECS += [f"full:uniform:{number}" for number in (1, 2, 3)]


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("engine", ["local", "transformer_engine"])
def test_fold_and_simulation_of_dense_layers_agree(engine: str, spec: str) -> None:
    shape = toy_shape(transformer_impl=engine)
    plan = chunk_plan(parse_setting(spec), shape.model, (DENSE,) * 6, shape.sequence_parallel)
    assert all(agrees(shape, plan, ends) for ends in ENDS)


@pytest.mark.parametrize("spec", ["none", "selective:moe", "selective:moe_act,core_attn"])
@pytest.mark.parametrize("engine", [TransformerImpl.LOCAL, TransformerImpl.TRANSFORMER_ENGINE])
@pytest.mark.parametrize("fused", [False, True])
def test_fold_and_simulation_of_experts_agree(
    engine: TransformerImpl, spec: str, fused: bool
) -> None:
    """Left out: whole checkpoints around experts, whose graphs the requests do not have."""
    model = replace(MIXTRAL.model, transformer_impl=engine, moe_permute_fusion=fused)
    shape, moe = replace(MIXTRAL, model=model), LayerKind(feed_forward=FeedForward.MOE)
    plan = chunk_plan(parse_setting(spec), model, (DENSE, moe, moe), shape.sequence_parallel)
    assert all(agrees(shape, plan, ends) for ends in ENDS)


@pytest.mark.parametrize("each", [1, 2, 3])
@pytest.mark.parametrize("checkpoint", Checkpoint)
def test_fold_and_simulation_of_a_checkpoint_agree(checkpoint: Checkpoint, each: int) -> None:
    """The requests of one by hooks hold its output to the end; with a head three layers hide it no
    more."""
    shape, reentrant = toy_shape(), checkpoint is Checkpoint.REENTRANT
    segment = Segment((DENSE,) * each, whole=True, copies=2, checkpoint=checkpoint)
    held = 0 if reentrant else shape.hidden(LAYER_INPUT).num_bytes
    for ends in ENDS if each < 3 or reentrant else ENDS[1:3]:
        assert agrees(shape, RecomputePlan((segment,)), ends, held=held)
    hosted = replace(segment, input=ON_HOST)
    assert chunk_footprint(shape, RecomputePlan((hosted,)), False, False).kept == 0
    assert each == 3 or agrees(shape, RecomputePlan((hosted,)))


def _plan(each: int) -> RecomputePlan:
    """Layers by themselves, or `each` in a checkpoint."""
    if each == 1:
        return RecomputePlan((Segment((DENSE,), copies=LAYERS),))
    several, kind = (DENSE,) * each, Checkpoint.NON_REENTRANT
    return RecomputePlan((Segment(several, whole=True, copies=LAYERS // each, checkpoint=kind),))


@pytest.mark.parametrize("each", [1, 2])
@pytest.mark.parametrize("reshards", [False, True])
def test_fold_and_simulation_of_gathered_parameters_agree(reshards: bool, each: int) -> None:
    working_set = fsdp_working_set(SHAPE, Sharding(ranks=8, reshards=reshards))
    assert agrees(SHAPE, _plan(each), working_set=working_set)
    assert chunk_footprint(SHAPE, _plan(each), True, True, working_set=working_set).left == 0


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
    second = [(place, *requests[2]) for place, requests in trace.forward[2:-1]]
    come = [(place, size) for place, _, size in second if size]
    gone = [place for place, requests in trace.backward if (second[0][1], 0) in requests]
    first, last = (EMBEDDING + HEAD, 0) if root_holds_ends else (EMBEDDING, HEAD)
    sizes = [2 * first, *[2 * each * LAYER] * (LAYERS // each), *([2 * last] if last else [])]
    assert [size for _, size in come] == sizes
    assert [place for place in gone if place in dict(come)] == [place for place, _ in come][::-1]
    assert fsdp_static(Part(TOTAL, TOTAL), sharding).weights - trace.stays == sharding.shard(TOTAL)
    rank, live = Rank(expandable_segments=False), {}
    rank.allocator = plain = Unrounded()
    rank.run((*trace.forward, *trace.backward), live)
    shards = LAYERS * sharding.shard(LAYER)
    shards += 0 if root_holds_ends else sharding.shard(EMBEDDING) + sharding.shard(HEAD)
    assert plain.live == shards
