"""The step of an evaluated setting, put together from its times and footprints."""

from collections.abc import Iterator
from typing import Final

from msgspec.structs import replace

from advisor.answer.evaluation import Evaluation, TimeBreakdown
from advisor.job.pipeline_split import ModelChunk
from advisor.memory.chunk import ChunkFootprint
from advisor.memory.resident import NamedBytes
from advisor.search.evaluate import Evaluator
from advisor.search.job_memory import StageDetail, StagePasses
from advisor.step.step_parts import ChunkPass, PassSeconds, StageStep, TrainingStep
from advisor.time.job_time import Directions, StepTail
from advisor.time.passes import PassTimes

_EVEN: Final = TimeBreakdown(
    forward=1.0,
    backward=1.0,
    recompute=1.0,
    exposed_communication=1.0,
    pipeline_bubble=1.0,
    optimizer=1.0,
    offload=1.0,
    host=1.0,
)


def training_step(evaluation: Evaluation, evaluator: Evaluator | None = None) -> TrainingStep:
    """The step that `evaluation` predicts; `evaluator` is one of its job and calibration, where
    there is one already.

    Seconds and bytes of one rank of each stage. The pipeline and what comes behind it end at
    Evaluation.step_time_seconds; the highest level of a stage is its peak_allocated_bytes.
    """
    found = evaluator or Evaluator(evaluation.job, evaluation.calibration)
    setting, factors = evaluation.setting, _EVEN
    if found.learned is not None:
        factors = _factors(found.shipped_time(setting), evaluation.time_seconds)
    tail = _moved_tail(found.tail(setting), factors)
    stages = zip(
        found.stages,
        found.directions(setting),
        found.pass_memory(setting),
        found.stage_details(setting, replayed=False),
        strict=True,
    )
    return TrainingStep(
        microbatches=evaluation.job.num_microbatches,
        stages=tuple(
            StageStep(
                stage=number,
                static=tuple(_static(detail)),
                chunks=tuple(_chunks(chunks, times, memory, factors)),
                sent=memory.sent,
                optimizer=memory.optimizer,
            )
            for number, (chunks, times, memory, detail) in enumerate(stages)
        ),
        pipeline_seconds=evaluation.step_time_seconds - tail.total,
        tail=tail,
    )


def _chunks(
    chunks: tuple[ModelChunk, ...],
    times: list[Directions],
    memory: StagePasses,
    factors: TimeBreakdown,
) -> Iterator[ChunkPass]:
    for chunk, (there, back), footprint in zip(chunks, times, memory.chunks, strict=True):
        yield _chunk(chunk, footprint, _seconds(there, factors), _seconds(back, factors))


def _chunk(
    chunk: ModelChunk, footprint: ChunkFootprint, forward: PassSeconds, backward: PassSeconds
) -> ChunkPass:
    return ChunkPass(
        layers=chunk.num_layers,
        embedding=chunk.embedding,
        head=chunk.head,
        forward=forward,
        backward=backward,
        kept=footprint.kept,
        most_forward=footprint.forward,
        most_backward=footprint.backward,
        left=footprint.left,
    )


def _seconds(times: PassTimes, factors: TimeBreakdown) -> PassSeconds:
    """Of one direction."""
    compute = times.forward * factors.forward + times.backward * factors.backward
    sent = (times.exposed + times.exchange) * factors.exposed_communication
    return PassSeconds(
        replay=_rounded(times.recompute * factors.recompute),
        compute=compute,
        communication=_rounded(sent),
        offload=_rounded(times.offload * factors.offload),
        waiting=_rounded(times.host * factors.host),
    )


def _rounded(seconds: float) -> float:
    """A difference of sums of floats is nothing below a picosecond."""
    return seconds if seconds > 1e-12 else 0.0


def _static(detail: StageDetail) -> Iterator[NamedBytes]:
    """What a stage holds throughout a step, by name."""
    static, words = detail.fixed.static, detail.fixed.words
    yield NamedBytes(words.weights[0], static.weights, words.weights[1])
    yield NamedBytes(words.gradients[0], static.gradients, words.gradients[1])
    yield NamedBytes(words.optimizer[0], static.optimizer, words.optimizer[1])
    yield from detail.fixed.buffers
    if detail.reserved.measured_more:
        source = "runs given with --calibration"
        yield NamedBytes("correction from runs", detail.reserved.measured_more, source)


def _factors(shipped: TimeBreakdown, moved: TimeBreakdown) -> TimeBreakdown:
    """By how much measured runs move each phase."""
    return TimeBreakdown(
        **{
            name: getattr(moved, name) / getattr(shipped, name) if getattr(shipped, name) else 1.0
            for name in TimeBreakdown.__struct_fields__
        }
    )


def _moved_tail(tail: StepTail, factors: TimeBreakdown) -> StepTail:
    if factors is _EVEN:
        return tail
    return replace(
        tail,
        waiting=tail.waiting * factors.exposed_communication,
        reduced=tail.reduced * factors.exposed_communication,
        accumulated=tail.accumulated * factors.offload,
        optimizer=tail.optimizer * factors.optimizer,
    )
