"""Results of measured runs, read as they lie in their folders: ``…/result.json`` with its trial."""

import os
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from advisor.base.documents import read_json
from advisor.base.errors import UserError, show_path
from advisor.base.fields import convert, read_record
from advisor.base.limits import LARGEST
from advisor.frameworks.registry import parts_of
from advisor.hardware.catalogue import load_gpu
from advisor.hardware.gpu import Gpu
from advisor.job.job import Job, JobConfig
from advisor.job.layout import ParallelLayout
from advisor.models.spec import ModelSpec
from advisor.plan.recompute_plan import Setting

RESULT: Final = "result.json"
MOST_RESULTS: Final = 5_000
_OK, _UNSTABLE, _OUT_OF_MEMORY = "ok", "unstable", "oom"
_SPOIL_TIMES_ALONE: Final = frozenset({"spread", "drift", "throttling"})
"""Concerns that leave bytes as good as ever, as for harness.trial.result."""
_OF_A_WORKLOAD: Final = (
    *("seq_length", "micro_batch_size", "global_batch_size", "precision", "main_grads_dtype"),
)
"""Fields of a job's configuration that a workload has."""


class MeasuredRun(Struct, frozen=True, kw_only=True):
    """One process (group) that trained one setting of one job.

    job: as it was run. other_seconds: what a step of that trainer takes beyond the job's own, as it
    says itself. seconds: median step; None where only bytes may be trusted, or it ran out of
    memory. allocated, reserved: peaks of the fullest rank; taken: of its card, context and all,
    bytes. ran_out: of memory.
    """

    job: Job
    setting: Setting
    source: str
    seconds: float | None = None
    other_seconds: float = 0.0
    allocated: int | None = None
    reserved: int | None = None
    taken: int | None = None
    ran_out: bool = False


class Runs(Struct, frozen=True, kw_only=True):
    """What a folder holds: runs to learn from, and why the others are none, with their number."""

    usable: tuple[MeasuredRun, ...]
    left_out: tuple[tuple[str, int], ...]

    @property
    def why_none(self) -> str:
        """Reasons of those left out, the most frequent first."""
        return "; ".join(f"{count} {why}" for why, count in self.left_out)


def read_runs(folder: Path, gpu: Gpu, config_dir: Path | None = None) -> Runs:
    """Every result below `folder` that ran on `gpu`; UserError where there is none at all, or more
    than MOST_RESULTS."""
    usable, counts = [], Counter[str]()
    for path in _results(folder):
        try:
            usable.append(_run(read_json(path), str(path.parent), gpu, config_dir))
        except (_LeftOutError, UserError) as error:
            counts[str(error) if isinstance(error, _LeftOutError) else "cannot be read"] += 1
    if not usable and not counts:
        fix = "name the folder of a run, of a sweep or of ingested logs"
        raise UserError("--calibration", show_path(folder), f"holds no {RESULT}", fix)
    return Runs(usable=tuple(usable), left_out=tuple(counts.most_common()))


def _results(folder: Path) -> list[Path]:
    found = []
    for where, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if name != "superseded")
        if RESULT in files:
            found.append(Path(where) / RESULT)
        if len(found) > MOST_RESULTS:
            reason = f"holds more than {MOST_RESULTS:,} results"
            raise UserError("--calibration", show_path(folder), reason)
    return found


class _LeftOutError(Exception):
    """Why nothing is learned from a result, in words that follow any count."""


def _run(result: Mapping[str, Any], source: str, gpu: Gpu, config_dir: Path | None) -> MeasuredRun:
    trial = _mapping(result, "trial")
    workload = _mapping(trial, "workload")
    _check_device(result, workload, gpu, config_dir)
    status = convert(result.get("status"), str, "", "status")
    fatal = {str(one.get("name")) for one in _mappings(result, "concerns") if one.get("fatal")}
    if status == _UNSTABLE and not (fatal and fatal <= _SPOIL_TIMES_ALONE):
        raise _LeftOutError("unstable")
    if status not in (_OK, _UNSTABLE, _OUT_OF_MEMORY):
        raise _LeftOutError(f"ended as {status}")
    job, other_seconds = _job(trial, workload, gpu, source)
    bare = MeasuredRun(job=job, setting=_setting(job, workload), source=source)
    if status == _OUT_OF_MEMORY:
        return replace(bare, ran_out=True)
    seconds = _numbers(_mapping(result, "times").get("seconds", ()), "times.seconds")
    ranks = _mappings(result, "memory")
    return replace(
        bare,
        seconds=median(seconds) if seconds and status == _OK else None,
        other_seconds=other_seconds,
        allocated=_most(ranks, "allocated"),
        reserved=_most(ranks, "reserved"),
        taken=_most(ranks, "nvml_used"),
    )


def _check_device(
    result: Mapping[str, Any], workload: Mapping[str, Any], gpu: Gpu, config_dir: Path | None
) -> None:
    if workload.get("backend") == "rehearsal":
        raise _LeftOutError("rehearsals of single ranks")
    if workload.get("device") != "cuda":
        raise _LeftOutError("did not run on a GPU")
    gpus = _mappings(_mapping(result, "environment"), "gpus")
    ran_on = next(filter(None, (one.get("torch_name") or one.get("name") for one in gpus)), None)
    if ran_on is None:
        raise _LeftOutError("without a GPU name")
    with suppress(UserError):
        ran_on = load_gpu(str(ran_on), config_dir).name
    if ran_on != gpu.name:
        raise _LeftOutError(f"ran on {ran_on}")


def _job(
    trial: Mapping[str, Any], workload: Mapping[str, Any], gpu: Gpu, source: str
) -> tuple[Job, float]:
    """The job as it was run, and what its trainer says that its step takes besides; of a trial that
    says nothing of it the framework's defaults."""
    as_run = _mapping(trial, "as_run")
    variables = convert(trial.get("variables", ()), tuple[str, ...], "", "variables")
    expands = any("expandable_segments:True" in text for text in variables)
    stated = {name: workload[name] for name in _OF_A_WORKLOAD if name in workload}
    config = {"expandable_segments": expands, **_mapping(as_run, "job"), **stated}
    model = {**_mapping(workload, "model"), **_mapping(as_run, "model")}
    degrees = {**_mapping(workload, "layout"), **_mapping(as_run, "layout")}
    try:
        layout = read_record(ParallelLayout, degrees, source)
        job = Job(
            model=read_record(ModelSpec, model, source),
            layout=layout,
            config=read_record(JobConfig, config, source),
            gpu=gpu,
            num_gpus=layout.world_size,
        )
    except UserError:
        fix = "for logs: harness ingest LOG experiment=NAME states it"
        raise _LeftOutError(f"without the whole job ({fix})") from None
    other = _mapping(trial, "prediction").get("other_seconds", 0.0)
    return job, float(convert(other, float, "", "other_seconds"))


def _setting(job: Job, workload: Mapping[str, Any]) -> Setting:
    stack = parts_of(job.config.framework)
    try:
        setting = stack.settings.parse(str(workload.get("recompute"))).promoted
    except UserError:
        raise _LeftOutError("with a recompute setting that advise cannot read") from None
    if stack.settings.check(setting, job):
        raise _LeftOutError("with a recompute setting that the framework refuses")
    return setting


def _most(ranks: tuple[dict[str, Any], ...], which: str) -> int | None:
    known = _numbers([rank[which] for rank in ranks if rank.get(which) is not None], which)
    return int(max(known)) if known else None


def _mapping(values: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The mapping under `name`, empty where there is none; UserError where it is something else."""
    found: dict[str, Any] = convert(values.get(name) or {}, dict[str, Any], "", name)
    return found


def _mappings(values: Mapping[str, Any], name: str) -> tuple[dict[str, Any], ...]:
    found: tuple[dict[str, Any], ...] = convert(
        values.get(name) or (), tuple[dict[str, Any], ...], "", name
    )
    return found


def _numbers(values: object, name: str) -> tuple[float, ...]:
    """Positive numbers; UserError where one is something else."""
    found: tuple[float, ...] = convert(values, tuple[float, ...], "", name)
    for number in found:
        if not 0 < number < LARGEST:
            raise UserError(name, number, "must be a positive measured number")
    return found
