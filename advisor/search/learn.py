"""From measured runs to a calibration that has learned from them: what the shipped one predicts for
each run, and how far that is off."""

from collections import Counter
from collections.abc import Iterable, Sequence
from math import log
from pathlib import Path
from statistics import median
from typing import Final

from advisor.base.documents import read_yaml
from advisor.base.errors import UserError, show_path
from advisor.base.grouping import grouped
from advisor.hardware.calibration import Calibration, read_calibration
from advisor.hardware.gpu import Gpu
from advisor.job.job import Job
from advisor.learning import learned
from advisor.learning.learned import KindResiduals, Learned, MeasuredSetting, plain_job
from advisor.learning.memory_residual import MemoryResidual, MemoryRow, Width
from advisor.learning.runs import MeasuredRun, Runs, read_runs
from advisor.learning.time_residual import TimeResidual, TimeRow, shares_of
from advisor.plan.recompute_plan import words_of
from advisor.search.evaluate import Evaluator

_FLAG: Final = "--calibration"
_MOST_SIMULATED: Final = 12
"""Settings whose allocator is simulated: tens of milliseconds each."""
_LEAST_BAND: Final = 0.12
"""Before runs tell more: releases alone move the step of one job by up to 16 % (Llama 3 70B on 64
GB300, results/published)."""


def calibration_from(
    paths: Sequence[Path], shipped: Calibration, gpu: Gpu, config_dir: Path | None = None
) -> Calibration:
    """`shipped`, or the one of a YAML file among `paths`, with what the folders among them say.

    UserError where a path is neither, or no run in the folders is one on `gpu` to learn from.
    """
    files = [path for path in paths if path.suffix in (".yaml", ".yml")]
    folders = [path for path in paths if path not in files]
    if len(files) > 1:
        reason = "cannot be combined with another calibration file"
        raise UserError(_FLAG, show_path(files[1]), reason, "give one")
    base = read_calibration(read_yaml(files[0]), files[0]) if files else shipped
    if not folders:
        return base
    for folder in folders:
        if not folder.is_dir():
            reason = "must be a folder of runs or a calibration in YAML"
            raise UserError(_FLAG, show_path(folder), reason)
    found = [read_runs(folder, gpu, config_dir) for folder in folders]
    if not any(runs.usable for runs in found):
        why = "; ".join(runs.why_none for runs in found)
        names = ", ".join(show_path(folder) for folder in folders)
        raise UserError(_FLAG, names, f"holds no usable runs on {gpu.name}", f"left out: {why}")
    return learned.LearnedCalibration(
        **{name: getattr(base, name) for name in Calibration.__struct_fields__},
        learned=_learned(found, tuple(map(show_path, folders)), base),
    )


def _learned(found: Iterable[Runs], sources: tuple[str, ...], base: Calibration) -> Learned:
    left_out, every = Counter[str](), list[MeasuredRun]()
    for folder in found:
        left_out.update(dict(folder.left_out))
        every += folder.usable
    runs = grouped(((plain_job(run.job), run.setting), run) for run in every)
    ran = (one for one in runs.values() if not all(run.ran_out for run in one))
    by_kind = grouped((learned.kinds_of(one[0].job), one) for one in ran)
    return Learned(
        sources=sources,
        settings=tuple(_measured(together) for together in runs.values()),
        kinds=tuple(_of_kind(of_kind, base) for of_kind in by_kind.values()),
        left_out=tuple(left_out.most_common()),
    )


def _measured(together: Sequence[MeasuredRun]) -> MeasuredSetting:
    seconds = [run.seconds for run in together if run.seconds is not None]
    first = together[0]
    return MeasuredSetting(
        job=first.job,
        setting=first.setting,
        processes=len(together),
        seconds=median(seconds) if seconds else None,
        peak_allocated_bytes=_most(run.allocated for run in together),
        peak_reserved_bytes=_most(run.taken or run.reserved for run in together),
        ran_out=any(run.ran_out for run in together),
    )


def _of_kind(settings: Sequence[Sequence[MeasuredRun]], base: Calibration) -> KindResiduals:
    """Residuals of jobs of the same kinds; `settings` are runs of one setting of one job each."""
    evaluators: dict[Job, Evaluator] = {}
    times, memory = [], []
    for number, together in enumerate(settings):
        job = together[0].job
        evaluator = evaluators.setdefault(job, Evaluator(job, base))
        if (row := _time_row(together, evaluator)) is not None:
            times.append(row)
        memory.append(_memory_row(together, evaluator, simulated=number < _MOST_SIMULATED))
    # of each part the narrowest: what is taken from a spread must be in it
    width = Width(*map(min, zip(*(width for _, width in memory), strict=True)))
    usual = next(iter(evaluators.values())).step_time_error
    return KindResiduals(
        range=learned.range_of(evaluators),
        times=TimeResidual(rows=tuple(times), band=max(_LEAST_BAND, usual)),
        memory=MemoryResidual(rows=tuple(row for row, _ in memory), width=width),
    )


def _time_row(together: Sequence[MeasuredRun], evaluator: Evaluator) -> TimeRow | None:
    seconds = [run.seconds for run in together if run.seconds is not None]
    if not seconds:
        return None
    setting, other = together[0].setting, together[0].other_seconds
    time = evaluator.timed(setting).time
    return TimeRow(
        job=plain_job(evaluator.job),
        setting=setting,
        words=words_of(setting),
        shares=shares_of(time, other),
        error=log(median(seconds) / (time.total + other)),
        processes=len(seconds),
    )


def _memory_row(
    together: Sequence[MeasuredRun], evaluator: Evaluator, *, simulated: bool
) -> tuple[MemoryRow, tuple[float, ...]]:
    """With what the shipped prediction states of each part of Width, relative to it."""
    details = evaluator.stage_details(together[0].setting, simulated=simulated)
    fullest = max(details, key=lambda detail: detail.reserved.total)
    reserved = fullest.reserved
    allocated, held = _most(r.allocated for r in together), _most(r.reserved for r in together)
    taken = _most(run.taken for run in together)
    outside = sum(term.num_bytes for term in reserved.fixed)
    known = simulated and reserved.unused is not None
    row = MemoryRow(
        fixed=fullest.fixed.total,
        allocated=reserved.allocated,
        unused=reserved.fragmentation,
        outside=outside,
        measured_allocated=allocated,
        measured_unused=held - allocated if held and allocated and known else None,
        measured_outside=taken - held if taken and held else None,
    )
    wholes = (reserved.allocated, reserved.allocated, outside)
    return row, tuple(spread / of for spread, of in zip(reserved.spreads, wholes, strict=True))


def _most(sizes: Iterable[int | None]) -> int | None:
    return max((size for size in sizes if size is not None), default=None)
