"""A training step as it is predicted: every pass of every stage with its seconds and bytes, for
timelines, snapshots and pages."""

from collections.abc import Iterator
from typing import Final

from msgspec import Struct
from msgspec.structs import astuple

from advisor.answer.evaluation import Evaluation, TimeBreakdown
from advisor.memory.events import Peak
from advisor.memory.static import NamedBytes
from advisor.search.evaluate import Evaluator
from advisor.search.job_memory import StageDetail
from advisor.time.job_time import StepTail
from advisor.time.passes import PassTimes


class PassSeconds(Struct, frozen=True, kw_only=True):
    """Seconds of one microbatch through one chunk in one direction, in the order in which they are
    drawn; compute is that of the pass itself. replay: of the backward alone, its communication
    included. communication, offload: what no kernel hides; waiting: for the host processor;
    stragglers: for the slowest GPU."""

    replay: float = 0.0
    compute: float
    communication: float = 0.0
    offload: float = 0.0
    waiting: float = 0.0
    stragglers: float = 0.0

    @property
    def total(self) -> float:
        """Sum of all."""
        return float(sum(astuple(self)))

    @property
    def parts(self) -> tuple[tuple[str, float], ...]:
        """Name and seconds of each part that takes time, in order."""
        named = ((name, getattr(self, name)) for name in self.__struct_fields__)
        return tuple((name, seconds) for name, seconds in named if seconds)


class ChunkPass(Struct, frozen=True, kw_only=True):
    """One microbatch through one virtual chunk of one stage.

    Bytes of one rank above what was alive before its forward: kept until its backward ends; the
    most in either pass, with the operator that runs then; left until the chunk runs forward again.
    """

    layers: int
    embedding: bool
    head: bool
    forward: PassSeconds
    backward: PassSeconds
    kept: int
    most_forward: Peak
    most_backward: Peak
    left: int


class StageStep(Struct, frozen=True, kw_only=True):
    """What one rank of a pipeline stage does and holds in a step.

    static: what is there throughout: weights, gradients, optimizer states, resident buffers, and
    terms that no pass explains (pools of CUDA graphs, what measured runs have more). sent: bytes of
    one hidden state that the schedule holds. optimizer: beyond `static` while the optimizer runs.
    """

    stage: int
    static: tuple[NamedBytes, ...]
    chunks: tuple[ChunkPass, ...]
    sent: int
    optimizer: Peak

    @property
    def static_bytes(self) -> int:
        """Bytes that are there throughout."""
        return sum(term.num_bytes for term in self.static)


class TrainingStep(Struct, frozen=True, kw_only=True):
    """One step of a setting: its stages, of each a rank, and what comes after the pipeline.

    pipeline_seconds: from the first forward to the last backward, as the step time has it; with
    `tail` they are `seconds`, that of Evaluation.step_time_seconds.
    """

    microbatches: int
    stages: tuple[StageStep, ...]
    pipeline_seconds: float
    tail: StepTail

    @property
    def seconds(self) -> float:
        """Of the step."""
        return self.pipeline_seconds + self.tail.total

    @property
    def schedule(self) -> tuple[int, int, int]:
        """Stages, chunks a stage, microbatches: what the order of passes follows from."""
        return len(self.stages), len(self.stages[0].chunks), self.microbatches


_EVEN: Final = TimeBreakdown(**dict.fromkeys(TimeBreakdown.__struct_fields__, 1.0))


def training_step(evaluation: Evaluation, evaluator: Evaluator | None = None) -> TrainingStep:
    """The step that `evaluation` predicts; `evaluator` is one of its job and calibration, where
    there is one already.

    Seconds and bytes of one rank of each stage. The pipeline and what comes after it end at
    Evaluation.step_time_seconds; the highest level of a stage is its peak_allocated_bytes.
    """
    found = evaluator or Evaluator(evaluation.job, evaluation.calibration)
    setting, factors = evaluation.setting, _EVEN
    plans = found.plans(setting)
    if found.learned is not None:
        factors = _factors(found.time.step(plans), evaluation.time_seconds)
    tail = found.time.tail(plans)
    tail = StepTail(
        reduced=tail.reduced * factors.exposed_communication,
        accumulated=tail.accumulated * factors.offload,
        optimizer=tail.optimizer * factors.optimizer,
    )
    stages = zip(
        found.stages,
        found.time.directions(plans),
        found.memory.footprints(plans),
        found.stage_details(setting, simulated=False),
        strict=True,
    )
    return TrainingStep(
        microbatches=found.samples.mean.num_microbatches,
        stages=tuple(
            StageStep(
                stage=number,
                static=tuple(_static(detail)),
                chunks=tuple(
                    ChunkPass(
                        layers=chunk.num_layers,
                        embedding=chunk.embedding,
                        head=chunk.head,
                        forward=_seconds(there, factors, found.time.straggling),
                        backward=_seconds(back, factors, found.time.straggling),
                        kept=footprint.kept,
                        most_forward=footprint.forward,
                        most_backward=footprint.backward,
                        left=footprint.left,
                    )
                    for chunk, (there, back), footprint in zip(
                        chunks, times, footprints, strict=True
                    )
                ),
                sent=found.memory.sent_bytes,
                optimizer=found.memory.optimizer_step(detail.fixed),
            )
            for number, (chunks, times, footprints, detail) in enumerate(stages)
        ),
        pipeline_seconds=evaluation.step_time_seconds - tail.total,
        tail=tail,
    )


def _seconds(times: PassTimes, factors: TimeBreakdown, straggling: float) -> PassSeconds:
    return PassSeconds(
        replay=_rounded(times.recompute * factors.recompute),
        compute=times.forward * factors.forward + times.backward * factors.backward,
        communication=_rounded((times.exposed + times.exchange) * factors.exposed_communication),
        offload=_rounded(times.offload * factors.offload),
        waiting=_rounded(times.host * factors.host),
        stragglers=_rounded(times.total * straggling * factors.stragglers),
    )


def _rounded(seconds: float) -> float:
    """A difference of sums of floats is nothing below a picosecond."""
    return seconds if seconds > 1e-12 else 0.0


def _static(detail: StageDetail) -> Iterator[NamedBytes]:
    """What a stage holds throughout a step, by name."""
    static, words = detail.fixed.static, detail.fixed.words
    for part in ("weights", "gradients", "optimizer"):
        name, source = getattr(words, part)
        yield NamedBytes(name, getattr(static, part), source)
    yield from detail.fixed.buffers
    if detail.reserved.measured_more:
        source = "runs given with --calibration"
        yield NamedBytes("correction from runs", detail.reserved.measured_more, source)


def _factors(shipped: TimeBreakdown, moved: TimeBreakdown) -> TimeBreakdown:
    """By how much measured runs move each phase."""
    pairs = ((n, getattr(moved, n), getattr(shipped, n)) for n in TimeBreakdown.__struct_fields__)
    return TimeBreakdown(**{name: to / of if of else 1.0 for name, to, of in pairs})
