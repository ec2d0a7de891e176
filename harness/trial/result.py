"""What one trial gave: a status with evidence, and measurements where there are any."""

from collections.abc import Iterable, Mapping
from enum import StrEnum
from statistics import median
from typing import Annotated, Any, Final

from msgspec import Meta, Struct, field
from msgspec.structs import replace

from advisor.base.limits import LARGEST, LARGEST_FLOAT
from advisor.base.units import human_bytes
from harness.base.collections import known

SCHEMA_VERSION = 1
Positive = Annotated[float, Meta(ge=1 / LARGEST, le=LARGEST)]
Count = Annotated[int, Meta(ge=0, le=LARGEST)]
"""Numbers that somebody may have measured; a result's file is checked for it."""


class TrialStatus(StrEnum):
    """How a trial ended. Every status is final; only `ok`, `unstable` and `pruned` have times.
    `pruned`: a sweep ended the trial early because it was clearly slower than another; its times
    are of fewer steps. `incomplete`: a log that breaks off before its run's end."""

    OK = "ok"
    UNSTABLE = "unstable"
    PRUNED = "pruned"
    OOM = "oom"
    TIMEOUT = "timeout"
    FAILED = "failed"
    NCCL_ERROR = "nccl_error"
    NAN = "nan"
    NO_DATA = "no_data"
    INCOMPLETE = "incomplete"
    SKIPPED = "skipped"


class Phase(StrEnum):
    """Where in its life a trial is; also where it failed. `training` is some part of a step, where
    only the log tells; `replay`, in timelines and phase times alone, computes again."""

    START = "start"
    BUILD = "build"
    WARMUP = "warmup"
    FORWARD = "forward"
    BACKWARD = "backward"
    REPLAY = "replay"
    OPTIMIZER = "optimizer"
    TRAINING = "training"
    REPORT = "report"


class Evidence(Struct, frozen=True, kw_only=True):
    """Why a trial is not ok: phase, rank, last words, and how far memory was over. over_bytes:
    bytes asked for beyond what was free, where the message tells."""

    phase: Phase
    message: str
    rank: int | None = None
    exit_code: int | None = None
    signal: int | None = None
    over_bytes: int | None = None
    log_tail: tuple[str, ...] = ()


class StepTimes(Struct, frozen=True, kw_only=True):
    """Seconds of the measured steps of one process, after warm-up. clock: ``cuda_event`` or
    ``host``; on a CPU device these are CPU times. ``log``: as the training framework printed them,
    ``log_stamps``: distances of its lines' time stamps. warmup_seconds are the dropped steps.
    steps: training step of each of `seconds`, from 1, where they do not follow one another (a log
    may show every tenth); empty: they do, after the warm-up."""

    seconds: tuple[Positive, ...]
    warmup_seconds: tuple[Positive, ...]
    clock: str
    steps: tuple[int, ...] = ()


class MemoryPeak(Struct, frozen=True, kw_only=True):
    """Peaks of one rank, bytes. On CPU, `allocated` is exact tensor accounting, the rest None; None
    where a log tells reserved bytes alone (torchtitan's). saved_bytes_per_layer: what autograd
    keeps for one layer and one microbatch."""

    rank: Count
    stage: Count
    allocated: Count | None
    active: Count | None = None
    reserved: Count | None = None
    nvml_used: Count | None = None
    saved_bytes_per_layer: int | None = None
    allocator_retries: int = 0


def most(ranks: Iterable[MemoryPeak], which: str) -> int | None:
    """The largest `which` (``allocated``, ``reserved``, ...) of any rank; None where none knows."""
    return max(known(getattr(rank, which) for rank in ranks), default=None)


class TimelinePoint(Struct, frozen=True, kw_only=True):
    """Allocated bytes at a moment of one step, with its phase."""

    seconds: float
    allocated: int
    phase: Phase


class PhaseTime(Struct, frozen=True, kw_only=True):
    """All stretches of one phase in one step of one rank. seconds: by the GPU's clock.
    host_seconds: until the processor had queued them. ahead_seconds: by how much the processor was
    ahead of the GPU at the end of a stretch, the least of all; near zero, the GPU waited for its
    processor. None of the last stretch of a step, at whose end the processor waits for the loss."""

    phase: Phase
    stretches: int
    seconds: float
    host_seconds: float
    ahead_seconds: float | None


class Flops(Struct, frozen=True, kw_only=True):
    """FLOPs of a step, all ranks: model (Megatron's), hardware (with replays), torch's count."""

    model: Annotated[float, Meta(ge=0, le=LARGEST_FLOAT)]
    hardware: float
    replayed_per_layer: int | None = None


class GpuLoad(Struct, frozen=True, kw_only=True):
    """State of a GPU over a stretch of work: median SM clock next to its highest (MHz), median
    power (watts), highest temperature, and all reasons for holding clocks back. None: not known."""

    sm_clock_mhz: float | None = None
    max_sm_clock_mhz: float | None = None
    power_watts: Annotated[float, Meta(ge=0, le=LARGEST)] | None = None
    temperature_celsius: int | None = None
    throttle_reasons: tuple[str, ...] | None = None


class Reported(Struct, frozen=True, kw_only=True):
    """Rates as the framework's own log prints them, one for each measured step; empty where it does
    not. tflops_per_gpu are model FLOPs by the framework's formula."""

    tflops_per_gpu: tuple[Positive, ...] = ()
    tokens_per_second_per_gpu: tuple[Positive, ...] = ()


class StagePeaks(Struct, frozen=True, kw_only=True):
    """Allocated bytes of one rank of a pipeline stage, as predicted or as rehearsed. weights,
    gradients and optimizer live from step to step; forward, backward and optimizer_step are the
    peaks in these phases, what lives from step to step included. reserved: of the caching
    allocator, on a GPU; device_used: what the driver then says is used, CUDA context and all.
    compute_seconds: of one step of this rank alone, where there is a clock; predicted for the GPU
    that is at hand. note: which tensors a difference from the prediction may come from."""

    stage: int
    weights: int
    gradients: int
    optimizer: int
    forward: int
    backward: int
    optimizer_step: int
    reserved: int | None = None
    device_used: int | None = None
    compute_seconds: float | None = None
    note: str = ""

    @property
    def peak(self) -> int:
        """The highest of the phases."""
        return max(self.forward, self.backward, self.optimizer_step)

    @property
    def activations(self) -> int:
        """What forward and backward have beyond weights, gradients and optimizer states."""
        return max(self.forward, self.backward) - self.weights - self.gradients - self.optimizer


class Rehearsed(Struct, frozen=True, kw_only=True):
    """What a rehearsal of one stage gave; seconds of its measured steps, phases of one more."""

    peaks: StagePeaks
    seconds: tuple[float, ...] = ()
    phases: tuple[PhaseTime, ...] = ()


class Concern(Struct, frozen=True, kw_only=True):
    """Why to distrust a number: what was seen, the limit or what was expected, what to do."""

    name: str
    seen: str
    limit: str
    advice: str
    fatal: bool = False

    def __str__(self) -> str:
        bound = "limit" if self.limit[:1].isdigit() else "expected:"
        return f"{self.name}: {self.seen}, {bound} {self.limit}; {self.advice}"


SPOIL_TIMES_ALONE: Final = frozenset({"spread", "drift", "throttling"})
"""Fatal concerns that leave bytes as good as ever: memory does not depend on how fast steps are."""


class TrialResult(Struct, frozen=True, kw_only=True):
    """`result.json` of one trial, written once and atomically.

    Attributes:
        trial: the Trial as written before the run, a plain JSON object.
        environment: fingerprint of software, hardware and clocks, a plain JSON object.
        loss: training loss of each measured step.
        stages: peaks of each pipeline stage, of a rehearsal.
        phases: where the time of one more step went, on a GPU; of one rank, of a rehearsal that of
            the first stage.
    """

    name: str
    status: TrialStatus
    trial: dict[str, Any]
    environment: dict[str, Any]
    started_at: str
    wall_seconds: Annotated[float, Meta(ge=0)]
    times: StepTimes | None = None
    memory: tuple[MemoryPeak, ...] = ()
    timeline: tuple[TimelinePoint, ...] = ()
    phases: tuple[PhaseTime, ...] = ()
    flops: Flops | None = None
    loss: tuple[float, ...] = ()
    stages: tuple[StagePeaks, ...] = ()
    concerns: tuple[Concern, ...] = ()
    evidence: Evidence | None = None
    load: GpuLoad | None = None
    reported: Reported | None = None
    schema_version: int = field(default=SCHEMA_VERSION)

    @property
    def fatal(self) -> tuple[Concern, ...]:
        """What makes it unstable."""
        return tuple(concern for concern in self.concerns if concern.fatal)

    @property
    def gpu_names(self) -> tuple[str, ...]:
        """What torch calls the GPUs that it ran on."""
        return tuple(str(gpu.get("torch_name")) for gpu in self.environment.get("gpus") or ())

    @property
    def bytes_hold(self) -> bool:
        """Whether its memory may be judged: it ran, and what speaks against it is about times."""
        fatal = {concern.name for concern in self.fatal}
        unstable = self.status is TrialStatus.UNSTABLE and bool(fatal)
        return self.status is TrialStatus.OK or (unstable and fatal <= SPOIL_TIMES_ALONE)


def reason(evidence: Evidence) -> str:
    """Phase, message and how far over, on one line."""
    over = "" if evidence.over_bytes is None else f", {human_bytes(evidence.over_bytes)} over"
    return f"[{evidence.phase}{over}] {evidence.message}"


_WORST_FIRST: Final = (
    *(TrialStatus.OOM, TrialStatus.NAN, TrialStatus.FAILED, TrialStatus.NCCL_ERROR),
    *(TrialStatus.TIMEOUT, TrialStatus.NO_DATA, TrialStatus.INCOMPLETE, TrialStatus.SKIPPED),
    *(TrialStatus.PRUNED, TrialStatus.UNSTABLE, TrialStatus.OK),
)
"""Causes before consequences: the ranks that wait for a dead one report NCCL errors."""

DONE: Final = (TrialStatus.OK, TrialStatus.UNSTABLE, TrialStatus.PRUNED, TrialStatus.SKIPPED)


def failed_ranks(ranks: Mapping[int, TrialResult]) -> tuple[int, ...]:
    """Ranks that say that they failed."""
    return tuple(rank for rank, result in ranks.items() if result.status not in DONE)


def merge(ranks: Mapping[int, TrialResult]) -> TrialResult:
    """One result of all ranks: the worst status with its evidence, the times of the slowest rank
    in every step, the memory of each rank, the timeline of the rank with the highest peak, and the
    loss of the last rank, which holds the last pipeline stage."""
    ordered = [ranks[rank] for rank in sorted(ranks)]
    worst = min(ordered, key=lambda result: _WORST_FIRST.index(result.status))
    return replace(
        worst,
        wall_seconds=max(result.wall_seconds for result in ordered),
        times=_times([result.times for result in ordered if result.times is not None]),
        memory=tuple(peak for result in ordered for peak in result.memory),
        timeline=max(ordered, key=lambda result: most(result.memory, "allocated") or 0).timeline,
        flops=next((result.flops for result in ordered if result.flops is not None), None),
        loss=ordered[-1].loss,
        concerns=tuple(dict.fromkeys(c for result in ordered for c in result.concerns)),
    )


def _times(times: list[StepTimes]) -> StepTimes | None:
    """Element by element the slowest rank; the rank slowest in the median where lengths differ."""
    if not times:
        return None
    slowest = max(times, key=lambda one: median(one.seconds) if one.seconds else 0.0)
    if len({(len(one.seconds), len(one.warmup_seconds)) for one in times}) > 1:
        return slowest
    seconds = map(max, zip(*(one.seconds for one in times), strict=True))
    dropped = map(max, zip(*(one.warmup_seconds for one in times), strict=True))
    return replace(slowest, seconds=tuple(seconds), warmup_seconds=tuple(dropped))
