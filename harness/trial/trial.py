"""What one trial is: a workload, how it is run, the key under which its result is found, and the
environment variables that change times or memory, which alone are read; and what a run is: the
trials of its settings, in the advisor's order. Data only."""

import hashlib
import json
import math
import os
import re
from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from advisor.answer.evaluation import MemoryBreakdown
from advisor.base.dtypes import DType, Precision
from advisor.base.errors import UserError
from advisor.base.fields import split_key_values
from advisor.job.job import JobConfig
from advisor.job.layout import ParallelLayout
from advisor.models.spec import ModelSpec
from advisor.request.origin import stated_fields
from harness.trial.result import StagePeaks, TrialResult, TrialStatus

MOST_REPEATS: Final = 10_000
"""Each is a process of seconds at least: weeks."""


class Backend(StrEnum):
    """Who runs the training step; `rehearsal` runs single ranks of it (harness rehearse)."""

    NATIVE = "native"
    MEGATRON_CORE = "megatron_core"
    COMMAND = "command"
    REHEARSAL = "rehearsal"


class Device(StrEnum):
    """Where it runs. Times of `cpu` are CPU times and never compared with a GPU's; `fake` tensors
    have sizes and no values: a rehearsal on them counts bytes and takes no device."""

    CUDA = "cuda"
    CPU = "cpu"
    FAKE = "fake"


BATCH: Final = ("seq_length", "micro_batch_size", "global_batch_size", "precision")


class Workload(Struct, frozen=True, kw_only=True):
    """What is trained: the part of a trial that decides whether two results may be compared.
    recompute is the advisor's spelling of the setting (``none``, ``selective:mlp``,
    ``full:block:2``, ``op:<policy>``, with ``+offload=...``). main_grads_dtype is the type in which
    gradients are accumulated."""

    model: ModelSpec
    layout: ParallelLayout
    seq_length: int
    micro_batch_size: int
    global_batch_size: int
    precision: Precision
    recompute: str
    backend: Backend
    device: Device
    main_grads_dtype: DType = DType.BF16

    @property
    def batch(self) -> dict[str, Any]:
        """Its batch and precision, as fields of a job."""
        return {name: getattr(self, name) for name in BATCH}

    @property
    def num_microbatches(self) -> int:
        """Microbatches of a step on one data-parallel rank; UserError where they do not divide."""
        per_pass = self.micro_batch_size * self.layout.data_parallel_size
        if self.global_batch_size % per_pass:
            relation = f"must be divisible by micro_batch_size x DP = {per_pass}"
            raise UserError("job.global_batch_size", self.global_batch_size, relation)
        return self.global_batch_size // per_pass

    def key(self) -> str:
        """Twelve hex digits of a SHA-256 over fields not at their default: new ones change none."""
        text = json.dumps(_given(self), sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    @property
    def label(self) -> str:
        """Short name for tables: model/layout/setting."""
        layout = self.layout
        degrees = f"tp{layout.tensor_model_parallel_size}pp{layout.pipeline_model_parallel_size}"
        return f"{self.model.name}/{degrees}/{self.recompute}"


def _given(instance: Struct) -> dict[str, object]:
    """Fields that differ from their default, those of records in it likewise."""
    given = stated_fields(instance).items()
    return {name: _given(one) if isinstance(one, Struct) else one for name, one in given}


class MeasurementPlan(Struct, frozen=True, kw_only=True):
    """How a trial measures: warm-up by rule, then steps, in `repeats` processes. min_warmup_steps
    are always dropped; warm-up ends once the last three steps agree within `warmup_tolerance`, or
    at max_warmup_steps. timeout_seconds bounds one process."""

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
        if self.repeats > MOST_REPEATS:
            raise UserError("measure.repeats", self.repeats, f"must be at most {MOST_REPEATS:,}")
        if self.timeout_seconds <= 0:
            raise UserError("measure.timeout_seconds", self.timeout_seconds, "must be positive")


class Prediction(Struct, frozen=True, kw_only=True):
    """What the advisor said before the run; None where its model does not speak of the backend.
    saved_bytes_per_layer and replayed_flops_per_layer are of one layer and one microbatch.
    peak_memory_bytes: components of the fullest rank, of pipeline stage peak_stage; they sum to
    peak_reserved_bytes. other_seconds: of a step, what the backend takes beyond the job itself.
    stages: those that a rehearsal runs."""

    step_time_seconds: float | None = None
    peak_allocated_bytes: int | None = None
    peak_reserved_bytes: int | None = None
    saved_bytes_per_layer: int | None = None
    replayed_flops_per_layer: int | None = None
    calibration: str = "none"
    fit_probability: float | None = None
    peak_stage: int | None = None
    peak_memory_bytes: MemoryBreakdown | None = None
    other_seconds: float = 0.0
    stages: tuple[StagePeaks, ...] = ()


class AsRun(Struct, frozen=True, kw_only=True):
    """The job as its backend runs it, as far as the workload does not say it: fields of model and
    layout that differ from the workload's, and those of the job that differ from their defaults.
    `advise --calibration` predicts the same job again."""

    model: dict[str, Any]
    layout: dict[str, Any]
    job: dict[str, Any]


class TrainingCommand(Struct, frozen=True, kw_only=True):
    """What backend `command` runs: a line for a shell, and whose log it writes. template: the
    user's, with placeholders. words: NAME=text for them, quoted for a shell, that of `recompute`
    first of all. variables: NAME=value that the setting needs. gpu: type of the GPUs it runs on."""

    template: str
    framework: str
    words: tuple[str, ...]
    gpu: str = ""
    variables: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        split_key_values(self.words, "command.words")
        split_key_values(self.variables, "command.variables")

    def shell_line(self, plan: MeasurementPlan) -> str:
        """The line of a trial: the setting in its place, else at the end."""
        words = split_key_values(self.words)
        words |= {"steps": str(plan.max_warmup_steps + plan.steps), "seed": str(plan.seed)}
        filled = _PLACEHOLDER.sub(
            lambda match: words.get(match[1], "") if match[1] else match[0][1:-1], self.template
        )
        return filled if takes_setting(self.template) else f"{filled} {words['recompute']}".rstrip()


_SETTING: Final = ("recompute", "granularity", "modules", "method", "num_layers")
PLACEHOLDERS: Final = (*_SETTING, "layout", "steps", "seed")
_PLACEHOLDER: Final = re.compile(r"(?<!\$)(?:\{\{[a-z]\w*\}\}|\{([a-z]\w*)\})")
"""``{name}``, and ``{{name}}`` for one that stays; all other braces stay as they are."""


def placeholders(template: str) -> tuple[str, ...]:
    """Names in braces of a command, known or not."""
    return tuple(match[1] for match in _PLACEHOLDER.finditer(template) if match[1])


def takes_setting(template: str) -> bool:
    """Whether a command says where the setting goes."""
    return any(name in _SETTING for name in placeholders(template))


class Trial(Struct, frozen=True, kw_only=True):
    """One setting, one fresh process (group): repeat number `repeat` of a workload. variables:
    environment of its processes as KEY=VALUE, as far as it changes times or memory (the allocator's
    settings first of all). They are part of what is measured, as the workload is. stages: pipeline
    stages of which a rehearsal runs one rank each; empty: the whole job runs. memory_bytes: of the
    GPU that is rehearsed, where the device at hand may have more. as_run: None in trials of earlier
    releases, and where only a log tells the workload. limit_seconds: it ends early, with status
    pruned, once its running median step is clearly above."""

    workload: Workload
    measurement: MeasurementPlan
    prediction: Prediction | None = None
    repeat: int = 0
    command: TrainingCommand | None = None
    variables: tuple[str, ...] = ()
    stages: tuple[int, ...] = ()
    memory_bytes: int | None = None
    as_run: AsRun | None = None
    limit_seconds: float | None = None

    def __post_init__(self) -> None:
        split_key_values(self.variables, "variables")

    @property
    def name(self) -> str:
        """Folder name: workload key and repeat."""
        return f"{self.workload.key()}-r{self.repeat}"

    @property
    def environment(self) -> dict[str, str]:
        """`variables` by name."""
        return split_key_values(self.variables)


def layout_name(layout: ParallelLayout) -> str:
    """``tp2-pp4-vpp5-dp2``: degrees above one, and DP."""
    degrees = {
        "tp": layout.tensor_model_parallel_size,
        "cp": layout.context_parallel_size,
        "pp": layout.pipeline_model_parallel_size,
        "vpp": layout.virtual_pipeline_model_parallel_size,
        "ep": layout.expert_model_parallel_size,
    }
    words = [f"{name}{degree}" for name, degree in degrees.items() if degree > 1]
    return "-".join([*words, f"dp{layout.data_parallel_size}"])


def world_size(workload: Mapping[str, Any]) -> int:
    """GPUs of a workload as JSON: TP x CP x PP x DP."""
    layout = workload.get("layout", {})
    degrees = ("tensor_model", "context", "pipeline_model", "data")
    return math.prod(int(layout.get(f"{name}_parallel_size") or 1) for name in degrees)


RECORDED: Final = (
    *("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_NO_CUDA_MEMORY_CACHING"),
    *("CUDA_DEVICE_MAX_CONNECTIONS", "CUDA_LAUNCH_BLOCKING"),
    *("CUBLAS_WORKSPACE_CONFIG", "CUBLASLT_WORKSPACE_SIZE"),
    *("NVIDIA_TF32_OVERRIDE", "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE"),
    *("NVTE_FUSED_ATTN", "NVTE_FLASH_ATTN", "NVTE_ALLOW_NONDETERMINISTIC_ALGO"),
    *("NCCL_ALGO", "NCCL_PROTO", "NCCL_NVLS_ENABLE", "NCCL_P2P_DISABLE", "NCCL_IB_DISABLE"),
    *("NCCL_MIN_CTAS", "NCCL_MAX_CTAS"),
    *("OMP_NUM_THREADS", "MKL_NUM_THREADS", "KMP_AFFINITY"),
)


def recorded(environment: Mapping[str, str]) -> dict[str, str]:
    """The part of `environment` that a result records."""
    return {name: environment[name] for name in RECORDED if name in environment}


def variables_of_trials(
    config: JobConfig, device: Device, environment: Mapping[str, str]
) -> tuple[str, ...]:
    """KEY=VALUE of everything recorded that a trial's processes will find set, by name. What the
    user has set stands. Beyond that, on a GPU the allocator's option that the preset asks for; on a
    CPU one thread, as threads that wait for a busy core cost a small step many times its length."""
    given = recorded(environment)
    wanted = {}
    if device is Device.CPU:
        wanted = {"OMP_NUM_THREADS": "1"}
    elif config.expandable_segments and "PYTORCH_ALLOC_CONF" not in given:  # from torch 2.9 on
        wanted = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
    return tuple(sorted(f"{name}={value}" for name, value in (wanted | given).items()))


class PlannedSetting(Struct, frozen=True, kw_only=True):
    """One setting of a run: its trial of repeat 0, and why it is not run, if it is not. rank: place
    in the advisor's order among the settings of this run, 1 first; None where the setting is
    skipped, or unknown to the advisor. label: what it is called in progress beyond its setting."""

    trial: Trial
    rank: int | None = None
    skip: str = ""
    label: str = ""

    @property
    def spec(self) -> str:
        """The setting as the advisor spells it."""
        return self.trial.workload.recompute

    def trials(self) -> tuple[Trial, ...]:
        """One trial a repeat; a skipped setting has one. Only the first may be pruned."""
        count = 1 if self.skip else self.trial.measurement.repeats
        again = replace(self.trial, limit_seconds=None)
        return (self.trial, *(replace(again, repeat=repeat) for repeat in range(1, count)))

    def repeated(self, count: int) -> "PlannedSetting":
        """The same, with `count` processes."""
        measurement = replace(self.trial.measurement, repeats=count)
        return replace(self, trial=replace(self.trial, measurement=measurement))


class RunPlan(Struct, frozen=True, kw_only=True):
    """Everything that `harness run` will do. device_name: the GPU's type, or ``cpu``. assumptions:
    what the plan says about itself. ended: why a sweep, whose plan grows, is over; else empty.
    tied: the leading trials of a sweep that the noise does not tell apart."""

    experiment: str
    device_name: str
    settings: tuple[PlannedSetting, ...]
    assumptions: tuple[str, ...] = ()
    ended: str = ""
    tied: tuple[str, ...] = ()

    @property
    def default_name(self) -> str:
        """Folder name that the same command in the same environment always gives: experiment,
        device, settings, variables that change times or memory, and what backend `command` runs."""
        trials = [setting.trial for setting in self.settings]
        words = sorted(trial.workload.key() for trial in trials)
        words += sorted({trial.command.template for trial in trials if trial.command})
        words += sorted({text for trial in trials for text in trial.variables})
        digest = hashlib.sha256(" ".join(words).encode()).hexdigest()[:6]
        device = self.settings[0].trial.workload.device if self.settings else "none"
        path = os.path.basename(os.path.abspath(self.experiment))  # of a model, less its suffix
        return f"{re.sub(r'[.](json|ya?ml)$', '', path)}-{device}-{digest}"

    def name_of(self, workload: Workload) -> str:
        """A setting in a table, with its micro batch and layout where they differ in the plan."""
        workloads = [setting.trial.workload for setting in self.settings]
        words = [workload.recompute]
        if len({one.micro_batch_size for one in workloads}) > 1:
            words.append(f"mbs {workload.micro_batch_size}")
        if len({one.layout for one in workloads}) > 1:
            words.append(layout_name(workload.layout))
        return ", ".join(words)

    def trials(self) -> Iterator[tuple[PlannedSetting, Trial]]:
        """All trials as they run: repeats are interleaved, so that drift favours no setting."""
        for repeat in range(max((len(setting.trials()) for setting in self.settings), default=0)):
            for setting in self.settings:
                if repeat < len(setting.trials()):
                    yield setting, setting.trials()[repeat]


def joined_plan(first: RunPlan, second: RunPlan) -> RunPlan:
    """Settings of both, those of `first` in front; one that is in both has the more repeats."""
    settings = {setting.trial.workload.key(): setting for setting in first.settings}
    for setting in second.settings:
        known = settings.get(setting.trial.workload.key(), setting)
        more = max((known, setting), key=lambda one: one.trial.measurement.repeats)
        settings[setting.trial.workload.key()] = more
    return replace(second, settings=tuple(settings.values()))


def same_question(asked: Trial, answered: Trial, result: TrialResult) -> bool:
    """Whether `result` of `answered` is also the answer to `asked`. The prediction and the number
    of repeats do not change a measurement; the time limit matters where it was hit."""
    same_time = asked.measurement.timeout_seconds == answered.measurement.timeout_seconds
    return same_trial(asked, answered) and (same_time or result.status is not TrialStatus.TIMEOUT)


def same_trial(asked: Trial, other: Trial) -> bool:
    """Whether `other` measures what is asked, if it does so in time."""
    own = asked.measurement
    alike = replace(other.measurement, repeats=own.repeats, timeout_seconds=own.timeout_seconds)
    return (
        asked.workload == other.workload
        and asked.command == other.command
        and asked.variables == other.variables
        and asked.repeat == other.repeat
        and asked.stages == other.stages
        and own == alike
    )
