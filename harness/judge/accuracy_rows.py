"""Results as rows: one setting of one cell, predicted and measured. A cell is a workload without
its setting. Only trials of status ok give times; bytes are taken where nothing but the times was
unstable. What is left out is listed with its reason and never averaged."""

import hashlib
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from enum import StrEnum
from pathlib import Path
from statistics import mean, median
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import astuple, replace

from advisor.base.configuration import load_yaml
from advisor.base.fields import read_record
from advisor.base.grouping import grouped
from advisor.job.job import LIKELY
from harness.base.collections import known
from harness.judge.predicted import Pair, correlation
from harness.trial.result import TrialResult, TrialStatus, most, reason
from harness.trial.trial import Device, Prediction, Trial

NONE = "none"


class Half(StrEnum):
    """Which cells a model may be improved on, and which it is judged on."""

    FIT = "fit"
    HELD_OUT = "held_out"


class Cell(Struct, frozen=True, kw_only=True, order=True):
    """What the settings that are compared have in common. group: cells that are judged together.
    looked_at: while the model was improved; then nothing was held out."""

    group: str
    label: str
    key: str
    device: Device
    looked_at: bool = False

    @property
    def half(self) -> Half:
        """By a bit of the key, which nobody chooses."""
        odd = int(self.key, 16) % 2
        return Half.HELD_OUT if odd and not self.looked_at else Half.FIT


class SettingRow(Struct, frozen=True, kw_only=True):
    """One setting of one cell. processes: trials of status ok; step is the median of their medians,
    seconds; kept (by a layer, for its backward) and peaks are the largest where
    `TrialResult.bytes_hold`, bytes. overhead: step time over that of `none`, minus 1. fits: whether
    the advisor says so, and whether it ran. why: what speaks against it, or ended it."""

    cell: Cell
    setting: str
    status: TrialStatus
    processes: int
    kept: Pair
    allocated: Pair
    reserved: Pair
    step: Pair
    predicted_fits: bool | None
    measured_fits: bool | None
    calibration: str
    overhead: Pair
    why: str = ""


LOOKED_AT: Final = "looked_at.yaml"
"""In a folder of results: keys of cells that were looked at, each with what was changed then."""


def looked_at(folder: Path) -> frozenset[str]:
    """Keys in the folder's LOOKED_AT; none where there is no such file."""
    path = folder / LOOKED_AT
    return frozenset(load_yaml(path).values) if path.exists() else frozenset()


def setting_rows(
    results: Iterable[TrialResult], seen: Collection[str] = ()
) -> tuple[SettingRow, ...]:
    """A row a setting and cell, by group and cell; within a cell in order of predicted time. A
    process that was killed before it could tell where it ran, ran where the others did. seen: keys
    of cells that were looked at."""
    results = tuple(results)
    elsewhere = next((one.environment for one in results if one.environment), {})
    trials = [read_record(Trial, one.trial, f"{one.name}: trial") for one in results]
    together = grouped(
        ((cell_of(trial, one.environment or elsewhere), trial.workload.recompute), (trial, one))
        for trial, one in zip(trials, results, strict=True)
    )
    found = [
        _row(replace(cell, looked_at=cell.key in seen), setting, tried)
        for (cell, setting), tried in together.items()
    ]
    base = {row.cell: row.step for row in found if row.setting == NONE}
    found.sort(key=lambda row: (row.cell, row.step.predicted or 0.0, row.setting))
    of_base = (_overhead(row.step, base.get(row.cell, Pair())) for row in found)
    return tuple(replace(row, overhead=one) for row, one in zip(found, of_base, strict=True))


def cell_of(trial: Trial, environment: dict[str, Any]) -> Cell:
    """The cell of a trial; the allocator's settings and the GPU's name belong to it."""
    workload = replace(trial.workload, recompute=NONE)
    model, layout = workload.model, workload.layout
    gpus = [str(gpu.get("torch_name")) for gpu in environment.get("gpus") or ()]
    text = "|".join((workload.key(), *trial.variables, *gpus))
    impl, software = model.transformer_impl.value, environment.get("software") or {}
    if impl == "transformer_engine" and not software.get("transformer_engine"):
        impl = "local"
    per_pass = workload.micro_batch_size * layout.data_parallel_size
    degrees = f"TP{layout.tensor_model_parallel_size} PP{layout.pipeline_model_parallel_size}"
    parts = [
        model.name,
        f"{model.num_layers} layers",
        f"{workload.seq_length} tokens",
        f"{workload.global_batch_size // per_pass} x {workload.micro_batch_size}",
        str(workload.precision),
        impl,
        *([degrees] if layout.world_size > 1 else []),
        *(["expandable segments"] if any("expandable" in v for v in trial.variables) else []),
    ]
    return Cell(
        group=f"{workload.device} {workload.backend} {model.name}",
        label=", ".join(parts),
        key=hashlib.sha256(text.encode()).hexdigest()[:12],
        device=workload.device,
    )


def _row(cell: Cell, setting: str, tried: Sequence[tuple[Trial, TrialResult]]) -> SettingRow:
    results = [result for _, result in tried]
    statuses = [result.status for result in results]
    good = [result for result in results if result.status is TrialStatus.OK]
    sized = [result for result in results if result.bytes_hold]
    # the prediction made before the first process ran
    prediction = min(tried, key=lambda pair: pair[1].started_at)[0].prediction or Prediction()
    steps = [median(result.times.seconds) for result in good if result.times]
    likely = prediction.fit_probability
    # of the card, CUDA context and all, as is predicted; of older results what the allocator took
    taken = _largest(sized, "nvml_used") or _largest(sized, "reserved")
    ran = True if {TrialStatus.OK, TrialStatus.UNSTABLE}.intersection(statuses) else None
    return SettingRow(
        cell=cell,
        setting=setting,
        status=TrialStatus.OK if good else statuses[0],
        processes=len(good),
        kept=Pair(prediction.saved_bytes_per_layer, _largest(sized, "saved_bytes_per_layer")),
        allocated=Pair(prediction.peak_allocated_bytes, _largest(sized, "allocated")),
        reserved=Pair(prediction.peak_reserved_bytes, taken),
        step=Pair(prediction.step_time_seconds, median(steps) if steps else None),
        predicted_fits=None if likely is None else likely >= LIKELY,
        measured_fits=False if TrialStatus.OOM in statuses else ran,
        calibration=prediction.calibration,
        overhead=Pair(),
        why="; ".join(dict.fromkeys(filter(None, map(_why_untrusted, results)))),
    )


def _largest(sized: Sequence[TrialResult], which: str) -> int | None:
    return most((rank for result in sized for rank in result.memory), which)


def _why_untrusted(result: TrialResult) -> str:
    if result.status is TrialStatus.OK:
        return ""
    if result.evidence is not None:
        return f"{result.status}: {reason(result.evidence)}"
    fatal = [f"{one.name} {one.seen}" for one in result.fatal]
    return f"{result.status}: {', '.join(fatal)}" if fatal else str(result.status)


def _overhead(step: Pair, base: Pair) -> Pair:
    sides = zip(astuple(step), astuple(base), strict=True)
    return Pair(*(None if one is None or not none else one / none - 1 for one, none in sides))


class Errors(Struct, frozen=True, kw_only=True):
    """Of `count` rows: mean of sizes, and the worst; relative, of overheads differences."""

    count: int
    mean: float
    worst: float


class Accuracy(Struct, frozen=True, kw_only=True):
    """Rows judged together. None where they cannot tell. tau: Kendall's of step times, the mean
    over cells. regret: step time of the advisor's first choice over the best measured one that
    fitted, minus 1, the mean over cells; worst_regret is infinite where a first choice ran out of
    memory. verdicts: rows by whether the advisor said that they fit, and whether they ran."""

    name: str
    cells: int
    rows: int
    kept: Errors | None
    allocated: Errors | None
    reserved: Errors | None
    step: Errors | None
    overhead: Errors | None
    tau: float | None
    regret: float | None
    worst_regret: float | None
    verdicts: Counter[tuple[bool | None, bool | None]]


def accuracy_of(name: str, setting_rows: Sequence[SettingRow]) -> Accuracy:
    """The judgement of `rows`; means of nothing are None."""
    cells = grouped((row.cell, row) for row in setting_rows)
    taus = known(correlation("kendalltau", [row.step for row in own]) for own in cells.values())
    regrets = known(map(regret, cells.values()))
    finite = [lost for lost in regrets if lost != float("inf")]
    return Accuracy(
        name=name,
        cells=len(cells),
        rows=len(setting_rows),
        kept=_errors(row.kept.error for row in setting_rows),
        allocated=_errors(row.allocated.error for row in setting_rows),
        reserved=_errors(row.reserved.error for row in setting_rows),
        step=_errors(row.step.error for row in setting_rows),
        overhead=_errors(row.overhead.difference for row in setting_rows if row.setting != NONE),
        tau=mean(taus) if taus else None,
        regret=mean(finite) if finite else None,
        worst_regret=max(regrets, default=None),
        verdicts=Counter((row.predicted_fits, row.measured_fits) for row in setting_rows),
    )


def first_choice(setting_rows: Sequence[SettingRow]) -> SettingRow | None:
    """The setting of a cell that the advisor would take: the fastest that it says fits."""
    fitting = [row for row in setting_rows if row.predicted_fits and row.step.predicted is not None]
    return min(fitting, key=lambda row: row.step.predicted or 0.0, default=None)


def regret(setting_rows: Sequence[SettingRow]) -> float | None:
    """What the first choice costs over the best measured setting of the cell; infinite where it ran
    out of memory, None where it was not measured or nothing else was."""
    choice, times = first_choice(setting_rows), known(row.step.measured for row in setting_rows)
    if choice and choice.measured_fits is False:
        return float("inf")
    if choice is None or choice.step.measured is None or len(times) < 2:
        return None
    return choice.step.measured / min(times) - 1


def _errors(errors: Iterable[float | None]) -> Errors | None:
    found = known(errors)
    if not found:
        return None
    return Errors(count=len(found), mean=mean(map(abs, found)), worst=max(found, key=abs))
