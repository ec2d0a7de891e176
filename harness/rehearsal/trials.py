"""From the command line of `harness rehearse` to trials: job, ranks, what is predicted."""

import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from advisor.base.configuration import ConfigGroup, config_names, load_config
from advisor.base.dtypes import DType, Precision
from advisor.base.errors import UserError, nearest_names, show
from advisor.base.fields import parse_all, split_key_values
from advisor.base.units import whole_number
from advisor.frameworks.registry import parts_of
from advisor.hardware.calibration import load_calibration
from advisor.hardware.catalogue import load_gpu
from advisor.job.job import Job
from advisor.request.layout_fields import reshaped
from advisor.request.request import Request
from advisor.request.resolve import resolve
from advisor.search.evaluate import Evaluator
from harness.backends.jobs import as_run, workload_of_job
from harness.backends.lone_ranks import as_installed, check, computes_in_8_bits
from harness.planner.device import Machine, find_machine
from harness.planner.forecast import differences
from harness.rehearsal.prediction import predicted_stages, rank_seconds, reserved_alone
from harness.trial.trial import (
    Backend,
    Device,
    MeasurementPlan,
    PlannedSetting,
    Prediction,
    RunPlan,
    Trial,
    Workload,
    variables_of_trials,
)

_DEGREES: Final = {
    "tp": "tensor_model_parallel_size",
    "pp": "pipeline_model_parallel_size",
    "vpp": "virtual_pipeline_model_parallel_size",
    "cp": "context_parallel_size",
    "ep": "expert_model_parallel_size",
    "etp": "expert_tensor_parallel_size",
}

_PART: Final = re.compile(r"([a-z]+)([0-9]{1,9})")
_SETTING: Final = re.compile(r"[\"']?(none|selective|full|op:)")

_PLAIN: Final = ("device", "name", "runs", "steps")
_OWN_KEYS: Final = ("model", "gpus", "layout", "stage", "recompute", *_PLAIN)


class AskedRehearsal(Struct, frozen=True, kw_only=True):
    """One `harness rehearse`. stage: a number, or None for all. steps: timed on a real device."""

    request: Request
    recompute: tuple[str, ...]
    stage: int | None = None
    device: str = Device.FAKE
    name: str = ""
    runs: str = "runs"
    steps: int = 3

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise UserError("steps", self.steps, "must be at least 1")


def parse_asked(pairs: Sequence[str], config_dir: Path | None = None) -> AskedRehearsal:
    """KEY=VALUE arguments; UserError with the nearest key for one that is not known."""
    given: dict[str, str] = {}
    overrides = []
    for key, value in split_key_values(pairs, "override").items():
        if key.startswith(("model.", "layout.", "job.")):
            overrides.append(f"{key}={value}")
        elif key in _OWN_KEYS:
            given[key] = value
        else:
            raise UserError(key, value, "is not a known key", nearest_names(key, _OWN_KEYS))
    for key, example in (("model", "llama3_70b"), ("gpus", "32xH100")):
        if not given.get(key):
            raise UserError(key, "(none)", "is missing", f"write e.g. {key}={example}")
    return AskedRehearsal(
        request=Request(
            model=given["model"],
            gpus=given["gpus"],
            overrides=tuple(overrides),
            config_dir=config_dir,
            **parse_layout(given.get("layout", "")),
        ),
        recompute=_settings(given.get("recompute", "none"), config_dir),
        stage=_stage(given.get("stage", "all")),
        **parse_all(AskedRehearsal, {key: given[key] for key in _PLAIN if key in given}, ""),
    )


def parse_layout(text: str) -> dict[str, Any]:
    """``tp4_pp4_vpp5_cp2_ep8_sp`` as fields of a request; ``nosp`` turns sequence parallelism off.
    What is not named is the preset's, or 1; data parallelism is what the GPUs leave."""
    found: dict[str, Any] = {}
    for part in text.split("_") if text else ():
        match = _PART.fullmatch(part)
        if part in ("sp", "nosp"):
            found["sequence_parallel"] = part == "sp"
        elif match and match[1] in _DEGREES and int(match[2]) > 0:
            found[_DEGREES[match[1]]] = int(match[2])
        else:
            relation = f"{part or '(nothing)'} is not a degree"
            raise UserError("layout", text, relation, "write e.g. tp4_pp4_vpp5_cp2_ep8_sp")
    return found


def _stage(text: str) -> int | None:
    if text == "all":
        return None
    number = whole_number(text)
    if number is None:
        raise UserError("stage", show(text), "must be all or a number", "write stage=0")
    return number


def _settings(text: str, config_dir: Path | None) -> tuple[str, ...]:
    """``[none,selective:core_attn,mlp]``, one setting, or the name of a file of settings."""
    if text in config_names(ConfigGroup.RECOMPUTE, config_dir) and text != "none":
        document = load_config(ConfigGroup.RECOMPUTE, text, config_dir, "recompute")
        listed = document.values.get("settings")
        if not isinstance(listed, list) or not listed:
            raise UserError("recompute", text, "names no setting", "write e.g. [none,full:block:4]")
        return tuple(str(setting) for setting in listed)
    found: list[str] = []
    for word in text.removeprefix("[").removesuffix("]").split(","):
        word = word.strip()
        if found and not _SETTING.match(word):  # a module of the setting before it
            found[-1] += f",{word}"
        elif word:
            found.append(word)
    settings = tuple(dict.fromkeys(setting.strip("\"'") for setting in found))
    if not settings:
        raise UserError("recompute", text, "is empty", "write e.g. [none,full:block:4]")
    return settings


DEVICES = (Device.FAKE, Device.CUDA, Device.CPU, "auto")
CANNOT_CONTAIN = (
    "a rehearsal covers one rank's compute and tensors; add communication, pipeline bubbles and "
    "NCCL's memory yourself"
)


def rehearsal_plan(asked: AskedRehearsal) -> RunPlan:
    """One trial a setting; UserError where the job is illegal or no stage is meant."""
    resolution = resolve(asked.request)
    if resolution.borrowed and resolution.layout_fields:
        # what a rehearsal's layout does not name is the preset's for these GPUs, or 1
        named = reshaped(resolution.layout_fields, None, resolution.num_gpus)
        resolution = replace(resolution, layout=named)
    if resolution.layout is None:
        relation = "must be given: no preset has this model on these GPUs"
        raise UserError("layout", "(none)", relation, "write e.g. layout=tp4_pp4_vpp5")
    job, under = as_installed(resolution.job(resolution.layout))
    if asked.device not in DEVICES:
        raise UserError("device", asked.device, f"must be one of {', '.join(DEVICES)}")
    fake = asked.device == Device.FAKE
    machine = Machine(device=Device.FAKE) if fake else find_machine(asked.device)
    device, gpu_names = machine.device, machine.gpu_names
    workload = workload_of(job, asked.recompute[0], device)
    run, config_dir = as_run(job, workload), asked.request.config_dir
    evaluator = Evaluator(run, load_calibration(job.gpu, config_dir))
    here = evaluator_here(run, gpu_names[0], config_dir) if gpu_names else None
    check_legal(job, asked.recompute)
    return RunPlan(
        experiment=f"rehearse-{job.model.name}-{job.num_gpus}x{job.gpu.name}",
        device_name=str(device),
        settings=tuple(
            _planned(asked, job, evaluator, here, replace(workload, recompute=spec))
            for spec in asked.recompute
        ),
        assumptions=(
            *resolution.assumptions,
            *((under,) if under else ()),
            *differences(job, run, Backend.REHEARSAL),
            CANNOT_CONTAIN,
        ),
    )


def check_legal(job: Job, specs: Iterable[str]) -> None:
    """UserError for the first of `specs` that a rule of the job's release refuses."""
    settings = parts_of(job.config.framework).settings
    for spec in specs:
        for refused in settings.check(settings.parse(spec), job):
            raise UserError("recompute", spec, refused.reason.rstrip("."), refused.fix.rstrip("."))


def workload_of(job: Job, recompute: str, device: Device) -> Workload:
    """What is rehearsed of `job`: in bf16, or in FP8 where Transformer Engine runs on a GPU."""
    workload = workload_of_job(job, recompute, Backend.REHEARSAL, device)
    grads = DType.BF16 if workload.main_grads_dtype is DType.FP16 else workload.main_grads_dtype
    plain = replace(workload, precision=Precision.BF16, main_grads_dtype=grads)
    return workload if workload.precision.is_fp8 and computes_in_8_bits(plain) else plain


def evaluator_here(job: Job, name: str, config_dir: Path | None) -> Evaluator | None:
    """Of `job` on the GPU called `name`; None where that is unknown, or cannot run it."""
    try:
        gpu = load_gpu(name, config_dir)
        return Evaluator(replace(job, gpu=gpu), load_calibration(gpu, config_dir))
    except UserError:
        return None


def _planned(
    asked: AskedRehearsal,
    job: Job,
    evaluator: Evaluator,
    here: Evaluator | None,
    workload: Workload,
) -> PlannedSetting:
    """evaluator: of the job's GPUs, for memory. here: of the one that is at hand, for times."""
    stages, on_gpu = _stages(asked, job), workload.device is Device.CUDA
    trial = Trial(
        workload=workload,
        measurement=MeasurementPlan(steps=asked.steps),
        stages=stages,
        memory_bytes=job.gpu.memory_bytes,
        # of a GPU's allocator; fake tensors know none
        variables=variables_of_trials(job.config, workload.device, os.environ) if on_gpu else (),
    )
    check(workload)
    spec = workload.recompute
    peaks = predicted_stages(evaluator, spec, stages, workload.device)
    if here is not None:
        peaks = tuple(
            replace(one, compute_seconds=rank_seconds(here, spec, one.stage)) for one in peaks
        )
    reserved = reserved_alone(evaluator, spec, stages) if on_gpu else ()
    fits = [one.fit_probability(job.gpu.memory_bytes) for one in reserved]
    prediction = Prediction(
        peak_allocated_bytes=max(one.peak for one in peaks),
        peak_reserved_bytes=max((one.total for one in reserved), default=None),
        calibration="none" if here is None else here.calibration.name,
        fit_probability=min(fits, default=None),
        stages=peaks,
    )
    return PlannedSetting(trial=replace(trial, prediction=prediction))


def _stages(asked: AskedRehearsal, job: Job) -> tuple[int, ...]:
    pp = job.layout.pipeline_model_parallel_size
    if asked.stage is None:
        return tuple(range(pp))
    if asked.stage >= pp:
        there = "there is 1 stage" if pp == 1 else f"there are {pp} stages"
        legal = "write 0" if pp == 1 else f"write 0 to {pp - 1}"
        raise UserError("stage", asked.stage, there, legal)
    return (asked.stage,)
