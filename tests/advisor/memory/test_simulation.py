"""A step's requests on the allocator, next to the sums that the same walks give."""

import pytest
from msgspec.structs import replace

from advisor.base.units import MIB
from advisor.frameworks.registry import parts_of
from advisor.job.job import Job
from advisor.job.pipeline_split import Pipeline
from advisor.memory.chunk import ChunkTrace
from advisor.memory.chunk_units import OTHER_STREAM
from advisor.memory.simulation import GraphTraces, Held, SimulatedPeaks, _groups, simulate
from advisor.memory.static import StaticMemory
from advisor.search.job_memory import JobMemory
from tests.advisor.frameworks.torch.jobs import stack_job
from tests.advisor.jobs import evaluator_of, experiment_job

NOTHING = StaticMemory(weights=0, gradients=0, optimizer=0)


def held(**changes: object) -> Held:
    nothing = Held(weights=(1,), static=NOTHING, in_buffers=False, resident=(), step=0)
    return replace(nothing, **changes)


def one_layer(forward: int, backward: int) -> ChunkTrace:
    """A chunk that keeps `forward` bytes and needs `backward` more to go back."""
    return ChunkTrace(((0, ((0, forward),)),), ((0, ((1, backward), (1, 0))), (0, ((0, 0),))))


def run(
    rank: Held, *traces: ChunkTrace, expandable: bool = False, graphs: GraphTraces | None = None
) -> SimulatedPeaks:
    """One chunk and one microbatch."""
    return simulate(rank, traces, (0,), 1, 0, 1, expandable_segments=expandable, graphs=graphs)


def test_states_of_the_first_step_take_the_place_of_what_the_passes_left() -> None:
    """By hand: 30 of main parameters, 40 kept and 60 to go back are a segment each. The moments,
    30 each, go into those of 40 and 60: the second step needs 40 and 60 anew."""
    states = replace(NOTHING, optimizer=90 * MIB)
    found = run(
        held(static=states, weights=(90,), main_params=30 * MIB), one_layer(40 * MIB, 60 * MIB)
    )
    assert found.allocated == (90 + 40 + 60) * MIB
    assert found.reserved == (30 + 40 + 60 + 40 + 60) * MIB
    assert found.unused == 40 * MIB


def test_weights_that_move_into_a_buffer_leave_their_segments_to_the_passes() -> None:
    """100 of weights, and as much again for the buffer; activations of 50 then fit into what the
    weights had."""
    weights = replace(NOTHING, weights=100 * MIB)
    found = [
        run(held(static=weights, weights=(1,), in_buffers=moved), one_layer(50 * MIB, 20 * MIB))
        for moved in (False, True)
    ]
    assert [one.allocated for one in found] == [170 * MIB, 170 * MIB]
    assert [one.reserved for one in found] == [170 * MIB, 200 * MIB]


def test_what_another_stream_allocated_is_of_no_use_to_this_one() -> None:
    """By hand: 50 that come and go there, then 40 here, which need a segment of their own."""
    there = ((OTHER_STREAM, 50 * MIB), (OTHER_STREAM, 0))
    found = [
        run(held(), ChunkTrace(((0, first),), ((0, ((1, 40 * MIB), (1, 0))),)))
        for first in (there, tuple((0, size) for _, size in there))
    ]
    assert [one.allocated for one in found] == [50 * MIB, 50 * MIB]
    assert [one.reserved for one in found] == [90 * MIB, 50 * MIB]


def test_weights_are_stepped_in_groups_of_so_many_elements() -> None:
    found = held(weights=(3, 3, 4, 10), stepped_together=6)
    assert list(_groups(found)) == [(0.3, (3, 3)), (0.2, (4,)), (0.5, (10,))]
    assert list(_groups(replace(found, stepped_together=0))) == [(1.0, found.weights)]


def test_copies_of_a_group_make_room_for_those_of_the_next() -> None:
    """By hand: two weights' copies of 40 each, one after the other, next to moments that stay: 40
    are taken twice, and of each weight two moments of 20."""
    together, apart = (
        run(
            held(
                static=replace(NOTHING, optimizer=120 * MIB),
                weights=(1, 1),
                step=80 * MIB,
                stepped_together=number,
            ),
            one_layer(0, 0),
            expandable=True,
        )
        for number in (0, 1)
    )
    assert together.allocated == (40 + 80 + 80) * MIB
    assert apart.allocated == (40 + 80 + 40) * MIB


def test_gradients_grow_when_the_first_backward_has_ended() -> None:
    """By hand: 50 of gradients are there from the first pass on, or come then and get the 60 that
    the backward has left, so that the next one needs 60 anew."""
    grown, made = (
        run(
            held(static=replace(NOTHING, gradients=50 * MIB), grown_gradients=grown),
            one_layer(40 * MIB, 60 * MIB),
        )
        for grown in (True, False)
    )
    assert grown.allocated == made.allocated == 150 * MIB
    assert (grown.reserved, made.reserved) == (160 * MIB, 150 * MIB)


@pytest.fixture(scope="module")
def job() -> Job:
    return experiment_job()


def simulated(job: Job, spec: str, stage: int) -> tuple[SimulatedPeaks, int]:
    """Stage `stage` of `job`, and its allocated peak by the walks."""
    evaluator, stack = evaluator_of(job), parts_of(job.config.framework)
    pipeline, setting = Pipeline(evaluator.stages), stack.settings.parse(spec)
    memory = JobMemory(job, evaluator.shape, evaluator.stages, pipeline, stack.memory)
    plans = [stack.memory.plan(setting, evaluator.shape, layers, job) for layers in pipeline.groups]
    detail = evaluator.stage_detail(setting, stage)
    return memory.simulate(plans, stage), detail.reserved.allocated


@pytest.mark.parametrize("spec", ["none", "selective:mlp", "full:uniform:1", "full:block:2"])
@pytest.mark.parametrize("stage", [0, 3])
def test_the_requests_add_up_to_the_peak_of_the_walks(job: Job, spec: str, stage: int) -> None:
    """Within 1 %: small requests, and what the schedule's variables hold, are no part of them."""
    found, walked = simulated(job, spec, stage)
    assert found.allocated == pytest.approx(walked, rel=0.01)
    assert found.unused >= 0


@pytest.mark.parametrize(
    ("framework", "model"),
    [
        ("torchtitan", "llama3_8b"),
        ("torchtitan", "qwen3_30b_a3b"),
        ("huggingface", "llama3_8b"),
        ("fsdp2", "llama3_8b"),
        ("deepspeed", "llama3_8b"),
    ],
)
@pytest.mark.parametrize("spec", ["none", "full"])
def test_requests_of_gathered_parameters_add_up_as_well(
    framework: str, model: str, spec: str
) -> None:
    """Those that stay between the passes; within 0.25 %: small requests, of a router among them."""
    changes = ("layout.data_parallel_sharding=gradients", "job.expandable_segments=true")
    _, job = stack_job(framework, model=model, overrides=changes)
    found, walked = simulated(job, spec, 0)
    assert found.allocated == pytest.approx(walked, rel=0.0025)


def test_what_is_offloaded_is_not_there_between_the_passes(job: Job) -> None:
    kept, _ = simulated(job, "none", 0)
    away, walked = simulated(job, "none+offload=core_attn,attn_proj", 0)
    assert away.allocated < kept.allocated
    assert away.allocated == pytest.approx(walked, rel=0.02)


def test_expandable_segments_leave_less(job: Job) -> None:
    fixed, expandable = (
        simulated(replace(job, config=replace(job.config, expandable_segments=on)), "none", 0)[0]
        for on in (False, True)
    )
    assert 0 <= expandable.unused < fixed.unused


def test_a_pool_of_graphs_serves_nobody_else() -> None:
    """By hand: the first step needs 40 kept and 60 to go back. What is free then goes to the
    driver; the graphs have 30 and 50 in a pool of their own, 16 of inputs stay, and the passes
    next to them need 10 and 10."""
    found = run(
        held(),
        one_layer(40 * MIB, 60 * MIB),
        graphs=GraphTraces(
            pool=(one_layer(30 * MIB, 50 * MIB),),
            outside=(one_layer(10 * MIB, 10 * MIB),),
            inputs=16 * MIB,
        ),
    )
    assert found.allocated == (30 + 50 + 16 + 10 + 10) * MIB
    assert found.reserved == found.allocated


def test_where_graphs_need_less_the_first_steps_decide() -> None:
    traces = (one_layer(40 * MIB, 60 * MIB),)
    graphs = GraphTraces(pool=(), outside=(one_layer(10 * MIB, 10 * MIB),), inputs=0)
    found = run(held(), *traces, expandable=True, graphs=graphs)
    assert found.allocated == 100 * MIB
