"""The step as data ends where the step time ends, and peaks where the memory model peaks."""

from collections.abc import Iterator

import pytest
from msgspec.structs import replace

from advisor.answer.evaluation import Evaluation
from advisor.request.request import Request
from advisor.search.advise import advise
from advisor.search.evaluate import Evaluator
from advisor.step.predicted_step import TrainingStep, training_step
from advisor.step.timeline import TimedPass, live_memory, seconds_of, timeline
from tests.advisor.jobs import parallel

OVERLAP = ("layout.overlap_moe_expert_parallel_comm=true", "model.moe_shared_expert_overlap=false")
UNEVEN = (
    "layout.num_layers_in_first_pipeline_stage=17",
    "layout.num_layers_in_last_pipeline_stage=19",
)
LLAMA = Request(model="llama3_70b", gpus="32xH100")
DEEPSEEK = Request(model="deepseek_v3", gpus="1024xH100")
SMALL = Request(model="llama3_8b", gpus="4xH100", framework="deepspeed", recompute=("none",))
REQUESTS = {
    "interleaved, whole and selective": replace(
        LLAMA, recompute=("none", "selective:core_attn,mlp", "full:block:2", "full:uniform:4")
    ),
    "offload, distributed inputs": replace(
        LLAMA,
        recompute=(
            "selective:mlp+offload=core_attn",
            "full:uniform:2+distribute_saved_activations",
        ),
    ),
    "uneven stages": replace(
        LLAMA, **parallel(tp=8, pp=4, vpp=1), recompute=("none", "full:uniform:1"), overrides=UNEVEN
    ),
    "A100": Request(
        model="gpt3_175b", gpus="64xA100-80GB", recompute=("none", "selective:core_attn")
    ),
    "experts": replace(DEEPSEEK, recompute=("selective:mla_up_proj",)),
    "experts next to another microbatch": replace(DEEPSEEK, recompute=("none",), overrides=OVERLAP),
    "what replays of experts leave": Request(
        model="gpt_oss_120b", gpus="64xH100", recompute=("full:block:7",)
    ),
    "graphs": replace(LLAMA, recompute=("none",), overrides=("job.cuda_graph_impl=local",)),
    "one GPU": Request(model="llama3_8b", gpus="1xH100", recompute=("none", "full:uniform:8")),
    "sharded parameters": Request(model="llama3_8b", gpus="8xH100", framework="torchtitan"),
    "optimizer on the host": replace(SMALL, overrides=("job.optimizer_cpu_offload=true",)),
}


def evaluations(request: Request) -> Iterator[tuple[Evaluation, TrainingStep]]:
    answer = advise(replace(request, quick=True))
    first = answer.candidates[0].evaluation
    evaluator = Evaluator(first.job, first.calibration)
    for candidate in answer.candidates:
        yield candidate.evaluation, training_step(candidate.evaluation, evaluator)


@pytest.fixture(scope="module", params=REQUESTS)
def steps(request: pytest.FixtureRequest) -> list[tuple[Evaluation, TrainingStep]]:
    return list(evaluations(REQUESTS[request.param]))


def test_the_highest_level_is_the_peak_to_the_byte(steps) -> None:
    for evaluation, step in steps:
        for memory in evaluation.stages:
            live = live_memory(step, memory.stage)
            assert live.peak == memory.peak_allocated_bytes
            assert memory.peak_phase.endswith(live.point)
            assert all(max(one.before, one.after) <= one.highest for one in live.levels)
            if live.peak_pass is not None:
                assert live.levels[live.peak_pass].highest == live.peak


# The fold and the closed form differ by 0.43 % at most on 36 jobs (presets of every family, with
# and without pipeline, chunks, experts and uneven stages).
STRETCH = 0.005


def test_the_picture_ends_with_the_step(steps: list[tuple[Evaluation, TrainingStep]]) -> None:
    for evaluation, step in steps:
        found = timeline(step)
        last = max(passes[-1].end for passes in found.stages)
        wanted = evaluation.step_time_seconds
        assert last + step.tail.total == pytest.approx(wanted, rel=1e-12)  # sums of floats
        assert found.stretch == pytest.approx(1.0, abs=STRETCH)
        assert len(step.stages) > 1 or found.stretch == pytest.approx(1.0, rel=1e-12)


def test_passes_of_a_stage_follow_each_other(steps: list[tuple[Evaluation, TrainingStep]]) -> None:
    for _, step in steps:
        found = timeline(step)
        for stage, passes in zip(step.stages, found.stages, strict=True):
            free = 0.0
            for one in passes:
                assert one.start >= free
                lasts = found.stretch * seconds_of(stage, one).total
                # the end minus the start of a late pass has the rounding of the whole step
                assert one.end - one.start == pytest.approx(lasts, abs=1e-12 * step.seconds)
                free = one.end


def test_a_pass_starts_when_what_it_needs_is_there() -> None:
    """A forward after that of the chunk before, a backward after that of the chunk after."""
    (_, step), *_ = evaluations(REQUESTS["interleaved, whole and selective"])
    found = timeline(step)
    pp = len(found.stages)
    places: dict[tuple[bool, int, int], TimedPass] = {
        (one.backward, one.chunk * pp + stage, one.microbatch): one
        for stage, passes in enumerate(found.stages)
        for one in passes
    }
    assert len(places) == 2 * 16 * 20  # both ways, 16 microbatches through 20 chunks
    for (backward, place, number), one in places.items():
        before = places.get((backward, place + (1 if backward else -1), number))
        if before is None and backward:
            before = places[False, place, number]
        assert before is None or before.end <= one.start


def test_the_passes_of_a_stage_are_the_time_of_the_step() -> None:
    """Of one stage without a pipeline, everything; phases of both directions."""
    for evaluation, step in evaluations(REQUESTS["one GPU"]):
        (stage,) = step.stages
        (chunk,) = stage.chunks
        time, passes = evaluation.time_seconds, (chunk.forward, chunk.backward)
        runs = step.microbatches
        assert chunk.forward.replay == 0
        assert runs * chunk.backward.replay == pytest.approx(time.recompute, rel=1e-9)
        assert runs * chunk.forward.compute == pytest.approx(time.forward, rel=1e-9)
        assert runs * chunk.backward.compute == pytest.approx(time.backward, rel=1e-9)
        assert runs * sum(one.offload for one in passes) + step.tail.accumulated == pytest.approx(
            time.offload, rel=1e-9
        )
        assert runs * sum(one.waiting for one in passes) == pytest.approx(time.host, rel=1e-9)


def test_waiting_for_stragglers_is_spread_over_the_passes(steps) -> None:
    """The same share of each, so that the slowest stage waits as long as the step says; the rest
    is in the bubble, which is that much longer."""
    for evaluation, step in steps:
        chunks = (chunk for stage in step.stages for chunk in stage.chunks)
        passes = [one for chunk in chunks for one in (chunk.forward, chunk.backward)]
        shares = {round(one.stragglers / (one.total - one.stragglers), 9) for one in passes}
        time = evaluation.time_seconds
        work = time.total - step.tail.total - time.stragglers
        assert shares == {round(time.stragglers / work, 9)}


def test_static_bytes_are_named(steps: list[tuple[Evaluation, TrainingStep]]) -> None:
    evaluation, step = steps[0]
    for memory, stage in zip(evaluation.stages, step.stages, strict=True):
        parts = memory.memory_bytes
        weights, gradients, optimizer, *_ = stage.static
        assert weights.num_bytes == parts.weights
        assert gradients.num_bytes == parts.gradients
        assert optimizer.num_bytes == parts.optimizer
        moving = parts.activations + parts.transient
        assert memory.peak_allocated_bytes - stage.static_bytes == moving
