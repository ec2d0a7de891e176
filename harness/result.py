"""What one trial gave: a status with evidence, and measurements where there are any."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

SCHEMA_VERSION = 1


class TrialStatus(StrEnum):
    """How a trial ended. Only `ok` and `unstable` carry times; every status is a final answer."""

    OK = "ok"
    UNSTABLE = "unstable"
    OOM = "oom"
    TIMEOUT = "timeout"
    FAILED = "failed"
    NCCL_ERROR = "nccl_error"
    NAN = "nan"
    NO_DATA = "no_data"
    SKIPPED = "skipped"


class Phase(StrEnum):
    """Where in its life a trial is; also where it failed."""

    START = "start"
    BUILD = "build"
    WARMUP = "warmup"
    FORWARD = "forward"
    BACKWARD = "backward"
    OPTIMIZER = "optimizer"
    REPORT = "report"


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Why a trial is not ok: phase, rank, last words, and how far memory was over.

    over_bytes: bytes asked for beyond what was free, where the message tells.
    """

    phase: Phase
    message: str
    rank: int | None = None
    exit_code: int | None = None
    signal: int | None = None
    over_bytes: int | None = None
    log_tail: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimes:
    """Seconds of the measured steps of one process, after warm-up.

    clock: ``cuda_event`` or ``host``; on a CPU device these are CPU times. warmup_seconds are the
    dropped steps.
    """

    seconds: tuple[float, ...]
    warmup_seconds: tuple[float, ...]
    clock: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPeak:
    """Peaks of one rank, bytes. On CPU, `allocated` is exact tensor accounting, the rest None.

    saved_bytes_per_layer: bytes that autograd keeps for one layer and one microbatch.
    """

    rank: int
    stage: int
    allocated: int
    active: int | None = None
    reserved: int | None = None
    nvml_used: int | None = None
    saved_bytes_per_layer: int | None = None
    allocator_retries: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelinePoint:
    """Allocated bytes at a moment of one step, with its phase."""

    seconds: float
    allocated: int
    phase: Phase


@dataclass(frozen=True, slots=True, kw_only=True)
class Flops:
    """Model FLOPs (Megatron's convention) and hardware FLOPs (replays included) of one step, all
    ranks; replayed_per_layer is counted by torch where the backend can."""

    model: float
    hardware: float
    replayed_per_layer: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Concern:
    """One reason to distrust a number: what was seen, the limit, what to do."""

    name: str
    seen: str
    limit: str
    advice: str
    fatal: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialResult:
    """`result.json` of one trial, written once and atomically.

    trial and environment are plain JSON objects (Trial as written before the run; fingerprint of
    software, hardware and clocks). `loss` is the training loss per measured step.
    """

    name: str
    status: TrialStatus
    trial: dict[str, Any]
    environment: dict[str, Any]
    started_at: str
    wall_seconds: float
    times: StepTimes | None = None
    memory: tuple[MemoryPeak, ...] = ()
    timeline: tuple[TimelinePoint, ...] = ()
    flops: Flops | None = None
    loss: tuple[float, ...] = ()
    concerns: tuple[Concern, ...] = ()
    evidence: Evidence | None = None
    schema_version: int = field(default=SCHEMA_VERSION)
