"""What one trial is: a workload, how it is run, and the key under which its result is found."""

import hashlib
import json
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from advisor.dtypes import Precision
from advisor.errors import UserError
from advisor.layout import ParallelLayout
from advisor.models.spec import ModelSpec


class Backend(StrEnum):
    """Who runs the training step."""

    NATIVE = "native"
    MEGATRON_CORE = "megatron_core"
    COMMAND = "command"


class Device(StrEnum):
    """Where it runs. Times of `cpu` are CPU times and never compared with a GPU's."""

    CUDA = "cuda"
    CPU = "cpu"


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What is trained: the part of a trial that decides whether two results may be compared.

    recompute is the advisor's spelling of the setting (``none``, ``selective:mlp``,
    ``full:block:2``, ``op:<policy>``, with ``+offload=...``).
    """

    model: ModelSpec
    layout: ParallelLayout
    seq_length: int
    micro_batch_size: int
    global_batch_size: int
    precision: Precision
    recompute: str
    backend: Backend
    device: Device

    def key(self) -> str:
        """Twelve hex digits of the SHA-256 over all fields: the identity of the workload."""
        text = json.dumps(asdict(self), sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    @property
    def label(self) -> str:
        """Short name for tables: model/layout/setting."""
        layout = self.layout
        degrees = f"tp{layout.tensor_model_parallel_size}pp{layout.pipeline_model_parallel_size}"
        return f"{self.model.name}/{degrees}/{self.recompute}"


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasurementPlan:
    """How a trial measures: warm-up by rule, then steps, in `repeats` processes.

    min_warmup_steps are always dropped; warm-up ends once the last three steps agree within
    `warmup_tolerance`, or at max_warmup_steps. timeout_seconds bounds one process.
    """

    steps: int = 10
    min_warmup_steps: int = 3
    max_warmup_steps: int = 20
    warmup_tolerance: float = 0.05
    repeats: int = 1
    timeout_seconds: float = 900.0
    seed: int = 1234
    memory_timeline: bool = True

    def __post_init__(self) -> None:
        for field in ("steps", "min_warmup_steps", "max_warmup_steps", "repeats"):
            if getattr(self, field) < 1:
                raise UserError(f"measure.{field}", getattr(self, field), "must be at least 1")
        if self.timeout_seconds <= 0:
            raise UserError("measure.timeout_seconds", self.timeout_seconds, "must be positive")


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """What the advisor said before the run; None where its model does not speak of the backend.

    saved_bytes_per_layer and replayed_flops_per_layer are of one layer and one microbatch.
    """

    step_time_seconds: float | None
    peak_allocated_bytes: int | None
    peak_reserved_bytes: int | None
    saved_bytes_per_layer: int | None
    replayed_flops_per_layer: int | None
    calibration: str
    fit_probability: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One setting, one fresh process (group): repeat number `repeat` of a workload."""

    workload: Workload
    measurement: MeasurementPlan
    prediction: Prediction | None = None
    repeat: int = 0

    @property
    def name(self) -> str:
        """Folder name: workload key and repeat."""
        return f"{self.workload.key()}-r{self.repeat}"


def as_json(value: Any) -> str:
    """Deterministic JSON of a dataclass: sorted keys, one value a line."""
    return json.dumps(asdict(value), sort_keys=True, indent=1, default=str)
