"""What one recompute setting comes to on one job: memory of every stage, time of a step."""

from collections.abc import Callable
from functools import cached_property

from msgspec import Struct
from msgspec.structs import replace

from advisor.answer.phases import Phase, deciding
from advisor.hardware.calibration import Calibration
from advisor.job.job import Job
from advisor.job.microbatches import microbatches
from advisor.models.layer_kind import LayerKind
from advisor.plan.recompute_plan import Setting

CLEAR = 0.95
"""Probability from which, and below one less which, no simulation is asked whether a setting fits
where 90 % is asked for (see `clear`)."""


def clear(certainty: float) -> float:
    """Probability from which no simulation is asked whether a setting fits: at least halfway from
    the `certainty` that is asked for to 1."""
    return max(CLEAR, (1 + certainty) / 2)


class MemoryBreakdown(Struct, frozen=True, kw_only=True):
    """Bytes of one rank at its peak, by component; they sum to the reserved peak.

    transient: gradients of activations, replayed tensors, logits, receive buffers.
    overhead: what torch does not count as allocated, and workspaces: see memory/allocator.py.
    """

    weights: int
    gradients: int
    optimizer: int
    activations: int
    transient: int
    overhead: int

    @property
    def fixed(self) -> int:
        """What a rank holds whatever is recomputed."""
        return self.weights + self.gradients + self.optimizer

    @property
    def total(self) -> int:
        """Sum of all components."""
        return self.fixed + self.activations + self.transient + self.overhead


class StageMemory(Struct, frozen=True, kw_only=True):
    """Peak of the ranks of one pipeline stage.

    peak_allocated_bytes compares with torch.cuda.max_memory_allocated; peak_reserved_bytes is what
    the card must give: fragmentation, context and communicators included. Where routing is free,
    both are ones that 9 of 10 runs stay within.
    in_flight_microbatches counts forward passes of one chunk whose backward has not begun, in units
    of whole stages (a chunk of VPP v counts 1/v).
    """

    stage: int
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    memory_bytes: MemoryBreakdown
    in_flight_microbatches: float
    peak_phase: str


class TimeBreakdown(Struct, frozen=True, kw_only=True):
    """Seconds of one step on the slowest stage, by what they are spent on; they sum to the step.

    host: the GPU waits for the processor that launches its kernels; stragglers: for the slowest
    GPU of the job, spread over the passes."""

    forward: float
    backward: float
    recompute: float
    exposed_communication: float
    pipeline_bubble: float
    optimizer: float
    offload: float = 0.0
    host: float = 0.0
    stragglers: float = 0.0

    def times(self, factor: float) -> "TimeBreakdown":
        """Every part so many times."""
        return TimeBreakdown(**{n: getattr(self, n) * factor for n in self.__struct_fields__})

    @property
    def total(self) -> float:
        """Step time in seconds."""
        passes = self.forward + self.backward + self.recompute + self.exposed_communication
        waits = self.pipeline_bubble + self.host + self.stragglers
        return passes + waits + self.optimizer + self.offload


class UnevenRouting(Struct, frozen=True, kw_only=True):
    """What tokens that are not dealt evenly cost the stage that they fill first. stated: bytes of
    its peak, that 9 of 10 runs stay within; doubled: bytes of twice the mean on the busiest rank;
    safe: busiest/mean up to which it is likely to fit, below 1 where that is none."""

    stated: int
    doubled: int
    safe: float


class EvaluationDetail(Struct, frozen=True, kw_only=True):
    """What a report shows of an evaluation beyond what ranks it. needs: bytes that a rank of each
    stage must be given, mean and standard deviation. uneven: None where routing is balanced.
    phases: of the job's cycle, where a step is more than its update. host_bytes: of host memory, of
    the rank that needs most. saved_bytes_per_layer: of one microbatch, by the layer's kind.
    hardware_flops_per_step: of all ranks, replays included."""

    stages: tuple[StageMemory, ...]
    needs: tuple[tuple[float, float], ...]
    uneven: UnevenRouting | None = None
    phases: tuple[Phase, ...] = ()
    host_bytes: int = 0
    saved_bytes_per_layer: dict[LayerKind, int]
    hardware_flops_per_step: float


class Simulation(Struct, frozen=True, kw_only=True):
    """What a simulation of the allocator changes of an evaluation. requests: how long it was."""

    peak_reserved_bytes: int
    fit_probability: float
    requests: int
    look: Callable[[], EvaluationDetail]


class Evaluation(Struct, frozen=True, kw_only=True, eq=False, dict=True):
    """One setting on one job: memory of every stage and time of one step.

    peak_reserved_bytes: of the stage that reserves most, with the share that allocators usually
    leave unused, or as their simulation has it (`requests` of it, None where there was none);
    usual_reserved_bytes with that share in any case: by these settings are held against each other.
    look, simulate: the rest, which is worked out for those that somebody looks at: a search makes
    thousands and shows a few. likely_with: how likely it fits, if a simulation says that such a
    share of what is allocated is left unused.
    """

    job: Job
    setting: Setting
    calibration: Calibration
    peak_reserved_bytes: int
    usual_reserved_bytes: int
    time_seconds: TimeBreakdown
    step_time_low_seconds: float
    step_time_high_seconds: float
    fit_probability: float
    budget_bytes: int
    model_flops_per_step: float
    recompute_overhead: float
    look: Callable[[], EvaluationDetail]
    simulate: Callable[[], Simulation]
    likely_with: Callable[[float], float]
    requests: int | None = None

    @cached_property
    def simulated(self) -> "Evaluation":
        """This evaluation with the allocator simulated."""
        if self.requests is not None:
            return self
        found = self.simulate()
        return replace(
            self,
            peak_reserved_bytes=found.peak_reserved_bytes,
            fit_probability=found.fit_probability,
            requests=found.requests,
            look=found.look,
        )

    @cached_property
    def detail(self) -> EvaluationDetail:
        """What a report shows beyond what ranks it."""
        return self.look()

    @property
    def stages(self) -> tuple[StageMemory, ...]:
        """Memory of every pipeline stage."""
        return self.detail.stages

    @property
    def phases(self) -> tuple[Phase, ...]:
        """Of the cycle, in order; `stages` are of the update. None where that is all."""
        return self.detail.phases

    @property
    def phase(self) -> Phase | None:
        """The phase of a cycle that decides; None where a step is all."""
        return deciding(self.phases, self.job.config.certainty) if self.phases else None

    @property
    def host_bytes(self) -> int:
        """Host memory that the rank needs which needs most of it."""
        return self.detail.host_bytes

    @property
    def exceeds_host(self) -> bool:
        """Whether its ranks need more host memory than a server of the job is known to have."""
        has = self.job.config.host_memory_bytes
        return has is not None and self.job.gpus_of_a_server * self.host_bytes > has

    @property
    def peak(self) -> StageMemory:
        """The stage whose ranks reserve most."""
        return max(self.stages, key=lambda stage: stage.peak_reserved_bytes)

    @property
    def fits(self) -> bool:
        """Whether no rank runs out of memory, with the certainty that the job is asked for."""
        return self.fit_probability >= self.job.config.certainty

    @property
    def step_time_seconds(self) -> float:
        """Seconds of one optimizer step."""
        return self.time_seconds.total

    @property
    def tokens_per_second(self) -> float:
        """Tokens of the global batch over step time, of the whole job, without padding."""
        return microbatches(self.job).tokens / self.step_time_seconds

    @property
    def tokens_per_second_per_gpu(self) -> float:
        """Tokens of the global batch over step time and GPUs."""
        return self.tokens_per_second / self.job.num_gpus

    @property
    def gpu_hours_per_trillion_tokens(self) -> float:
        """Hours of all GPUs together for 10**12 tokens, steps alone."""
        return 1e12 / self.tokens_per_second_per_gpu / 3600

    @property
    def tflops_per_gpu(self) -> float:
        """Model TFLOP/s per GPU by Megatron's convention: recompute is not counted."""
        return self.model_flops_per_step / self.step_time_seconds / self.job.num_gpus / 1e12

    @property
    def mfu(self) -> float:
        """Model FLOPs over the dense peak of the precision."""
        peak = self.job.gpu.peak_flops(self.job.config.precision)
        return self.tflops_per_gpu * 1e12 / peak

    @property
    def hfu(self) -> float:
        """Hardware FLOPs, replays included, over the dense peak of the precision."""
        return self.mfu * (self.detail.hardware_flops_per_step / self.model_flops_per_step)
