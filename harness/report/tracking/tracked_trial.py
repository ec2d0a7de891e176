"""What a tracker is given of a trial: plain names, texts and numbers, whoever keeps them."""

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any, Final, Protocol

from msgspec import Struct

from harness.report.export import trial_rows
from harness.report.facts import Facts
from harness.trial.result import TrialResult

_TEXTS: Final = (
    "trial",
    "label",
    "device",
    "clock",
    "status",
    "reason",
    "concerns",
    "skipped_by",
    "predicted_calibration",
    "command",
)
"""Columns of a trial's row that say what it was; numbers among the others are metrics."""
_PARAMETERS: Final = ("recompute", "repeat", "advisor_rank")


class TrackedTrial(Struct, frozen=True, kw_only=True):
    """One trial, of the run `group`.

    parameters: workload and measurement, dotted names. metrics: as in trials.csv, the predicted
    ones beside the measured; seconds, bytes, TFLOP/s. series: step time and loss of each measured
    step. tags: how it ended, and software and GPUs of its machine. began, seconds: when it started
    (since 1970), and how long it took.
    """

    name: str
    group: str
    parameters: Mapping[str, str | int | float | bool]
    metrics: Mapping[str, float]
    series: Mapping[str, tuple[float, ...]]
    tags: Mapping[str, str]
    began: float
    seconds: float

    @property
    def ok(self) -> bool:
        """Whether it was measured."""
        return self.tags["status"] in ("ok", "unstable")


class Tracker(Protocol):
    """Where trials go."""

    def add(self, trial: TrackedTrial) -> str:
        """Keep a trial; its id there."""


def tracked_trials(facts: Facts) -> Iterator[TrackedTrial]:
    """Every trial of a run that has its result, in the plan's order."""
    rows = {row["trial"]: row for row in trial_rows(facts)}
    for result in facts.results.values():
        if result.started_at:
            yield _tracked(facts, result, rows[result.name])


def _tracked(facts: Facts, result: TrialResult, row: Mapping[str, Any]) -> TrackedTrial:
    workload = result.trial["workload"]
    measurement = result.trial.get("measurement", {})
    given = {name: row[name] for name in _PARAMETERS if row[name] is not None}
    numbers = {
        name: float(value)
        for name, value in row.items()
        if isinstance(value, int | float) and name not in given
    }
    texts = {name: str(row[name]) for name in _TEXTS if row[name] is not None}
    steps = result.times.seconds if result.times else ()
    series = {"measured_step_seconds": steps, "loss": result.loss}
    return TrackedTrial(
        name=f"{row['label']} r{row['repeat']}",
        group=facts.path.resolve().name,
        parameters=given | dict(_flat({"workload": workload, "measure": measurement})),
        metrics=numbers,
        series={name: values for name, values in series.items() if values},
        tags=texts
        | {"experiment": facts.plan.experiment, "gpu": facts.plan.device_name}
        | {name: str(value) for name, value in _flat(result.environment)},
        began=datetime.fromisoformat(result.started_at).timestamp(),
        seconds=result.wall_seconds,
    )


def _flat(values: object, prefix: str = "") -> Iterator[tuple[str, str | int | float | bool]]:
    """Plain values by dotted names; what is not known is left out."""
    if isinstance(values, Mapping):
        for name, value in values.items():
            yield from _flat(value, f"{prefix}.{name}" if prefix else str(name))
    elif isinstance(values, list | tuple):
        for number, value in enumerate(values):
            yield from _flat(value, f"{prefix}.{number}")
    elif isinstance(values, str | int | float):
        yield prefix, values
