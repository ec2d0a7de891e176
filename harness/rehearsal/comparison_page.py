"""Predicted beside rehearsed: every stage and phase, and what a difference comes from."""

from collections.abc import Iterator, Mapping
from typing import Final

from advisor.base.units import gib, human_bytes, signed_percent
from advisor.report.blocks import Column
from advisor.report.text import MAX_WIDTH, table_lines, wrap
from harness.rehearsal.prediction import difference, explained
from harness.trial.result import StagePeaks, TrialResult, reason
from harness.trial.run_plan import PlannedSetting, RunPlan
from harness.trial.trial import Device

_TITLES: Final = (
    "setting",
    "stage",
    "static",
    "reh.",
    "forward",
    "reh.",
    "backward",
    "reh.",
    "optimizer",
    "reh.",
    "peak",
    "reh.",
    "error",
)


def page(plan: RunPlan, results: Mapping[str, TrialResult]) -> str:
    """The table in GiB, the differences, what went wrong, and what the figures do not contain."""
    device = plan.settings[0].trial.workload.device
    where = "fake tensors, no device" if device is Device.FAKE else str(device)
    lines = [f"{plan.experiment} on {where}; GiB allocated, predicted beside rehearsed (reh.)", ""]
    columns = [Column(title=title, left=title == "setting") for title in _TITLES]
    rows = [row for setting in plan.settings for row in _rows(setting, results)]
    if rows:
        lines += [*table_lines(columns, rows, indent=0, gap=1), ""]
    for setting in plan.settings:
        for text in _talk(setting, results):
            lines += wrap(text, MAX_WIDTH)
    for text in plan.assumptions:
        lines += wrap(f"Note: {text}.", MAX_WIDTH)
    return "\n".join(lines) + "\n"


def dry_page(plan: RunPlan) -> str:
    """What would be rehearsed, and what is predicted of it."""
    lines = [f"{plan.experiment} (dry run); GiB allocated, as predicted", ""]
    for setting in plan.settings:
        for one in setting.trial.prediction.stages if setting.trial.prediction else ():
            lines.append(f"  {setting.spec}  stage {one.stage}  {gib(one.peak)}")
    lines += [
        "",
        *(line for text in plan.assumptions for line in wrap(f"Note: {text}.", MAX_WIDTH)),
    ]
    return "\n".join(lines) + "\n"


def pairs(
    setting: PlannedSetting, results: Mapping[str, TrialResult]
) -> Iterator[tuple[StagePeaks, StagePeaks]]:
    """Predicted and rehearsed peaks of the stages of a setting that have been rehearsed."""
    result = results.get(setting.trial.name)
    prediction = setting.trial.prediction
    if result is None or prediction is None:
        return
    predicted = {one.stage: one for one in prediction.stages}
    for rehearsed in result.stages:
        if rehearsed.stage in predicted:
            yield predicted[rehearsed.stage], rehearsed


def _rows(setting: PlannedSetting, results: Mapping[str, TrialResult]) -> Iterator[list[str]]:
    for predicted, rehearsed in pairs(setting, results):
        error = difference(predicted, rehearsed)
        cells = [
            gib(value)
            for both in zip(_phases(predicted), _phases(rehearsed), strict=True)
            for value in both
        ]
        shown = signed_percent(error) if abs(error) >= _VISIBLE else "0 %"
        yield [setting.spec, str(rehearsed.stage), *cells, shown]


_VISIBLE: Final = 5e-4


def _phases(one: StagePeaks) -> tuple[int, ...]:
    static = one.weights + one.gradients + one.optimizer
    return static, one.forward, one.backward, one.optimizer_step, one.peak


def _talk(setting: PlannedSetting, results: Mapping[str, TrialResult]) -> Iterator[str]:
    """Failures, compute times, and what differs."""
    result = results.get(setting.trial.name)
    if result is not None and result.evidence is not None:
        yield f"{setting.spec}: {result.status} {reason(result.evidence)}"
    for predicted, rehearsed in pairs(setting, results):
        where = f"{setting.spec}, stage {rehearsed.stage}"
        if rehearsed.reserved is not None:
            yield f"{where}: {gib(rehearsed.reserved)} GiB reserved"
        if rehearsed.compute_seconds is not None:
            yield f"{where}: {rehearsed.compute_seconds * 1e3:.1f} ms of compute a step"
        name = explained(predicted, rehearsed)
        if name:
            field = name.replace(" ", "_")
            low, high = getattr(predicted, field), getattr(rehearsed, field)
            yield (
                f"{where}: the difference is in the {name}: {human_bytes(low)} predicted, "
                f"{human_bytes(high)} rehearsed{_told(rehearsed)}"
            )


def _told(rehearsed: StagePeaks) -> str:
    return f"; {rehearsed.note}" if rehearsed.note else ""
