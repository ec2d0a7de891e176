"""Predicted and rehearsed: every stage and phase, and what a difference comes from."""

from collections.abc import Iterator, Mapping
from typing import Final

from advisor.base.units import gib, human_bytes, milliseconds, signed_percent
from advisor.report.blocks import Block, Column, group, spec_cell, table
from advisor.report.text import on_screen
from harness.rehearsal.prediction import difference, explained
from harness.trial.result import StagePeaks, TrialResult, reason
from harness.trial.trial import Device, PlannedSetting, Prediction, RunPlan

_PHASES: Final = ("static", "forward", "backward", "optimizer", "peak")
_SPARE: Final = {"static": 1, "optimizer": 2}
_VISIBLE: Final = 5e-4


def page(plan: RunPlan, results: Mapping[str, TrialResult]) -> str:
    """The table in GiB, the differences, what went wrong, and what the figures do not contain."""
    device = plan.settings[0].trial.workload.device
    where = "fake tensors, no device" if device is Device.FAKE else str(device)
    parts: list[Block] = [f"{plan.experiment} on {where}; GiB allocated, predicted / rehearsed", ""]
    found = table(
        [
            Column(title="setting", left=True, wrap=True, above=True),
            Column(title="stage"),
            *(Column(title=name, spare=_SPARE.get(name, 0)) for name in _PHASES),
            Column(title="error"),
        ]
    )
    for setting in plan.settings:
        for row in _rows(setting, results):
            found.add_row(*row)
    parts += [found, ""] if found.rows else []
    talk = (text for setting in plan.settings for text in _talk(setting, results))
    return on_screen(group(*parts, *talk, *_assumptions(plan)))


def _assumptions(plan: RunPlan) -> list[str]:
    return [f"Note: {text}." for text in plan.assumptions]


def dry_page(plan: RunPlan) -> str:
    """What would be rehearsed, and what is predicted of it."""
    head = f"{plan.experiment} (dry run); GiB allocated, as predicted"
    lines = (
        f"  {setting.spec}  stage {one.stage}  {gib(one.peak)}"
        for setting in plan.settings
        for one in (setting.trial.prediction or Prediction()).stages
    )
    return on_screen(group(head, "", *lines, "", *_assumptions(plan)))


def pairs(
    setting: PlannedSetting, results: Mapping[str, TrialResult]
) -> Iterator[tuple[StagePeaks, StagePeaks]]:
    """Predicted and rehearsed peaks of the stages of a setting that have been rehearsed."""
    result = results.get(setting.trial.name)
    predicted = {one.stage: one for one in (setting.trial.prediction or Prediction()).stages}
    for rehearsed in result.stages if result else ():
        if rehearsed.stage in predicted:
            yield predicted[rehearsed.stage], rehearsed


def _rows(setting: PlannedSetting, results: Mapping[str, TrialResult]) -> Iterator[list[Block]]:
    for predicted, rehearsed in pairs(setting, results):
        error = difference(predicted, rehearsed)
        both = zip(_phases(predicted), _phases(rehearsed), strict=True)
        cells = [f"{gib(one)} / {gib(other)}" for one, other in both]
        shown = signed_percent(error) if abs(error) >= _VISIBLE else "0 %"
        yield [spec_cell(setting.spec), str(rehearsed.stage), *cells, shown]


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
            yield f"{where}: {_compute(predicted.compute_seconds, rehearsed.compute_seconds)}"
        if name := explained(predicted, rehearsed):
            field = name.replace(" ", "_")
            note = f"; {rehearsed.note}" if rehearsed.note else ""
            low, high = (human_bytes(getattr(one, field)) for one in (predicted, rehearsed))
            said = f"{low} predicted, {high} rehearsed{note}"
            yield f"{where}: the difference is in the {name}: {said}"


def _compute(predicted: float | None, measured: float) -> str:
    said = f"{milliseconds(measured)} of compute per step"
    if predicted is None:
        return said
    error = signed_percent(predicted / measured - 1)
    return f"{said}, {milliseconds(predicted)} predicted ({error})"
