"""Goldens in the layouts of other suites (harness.logs.golden_layouts), read and written."""

from collections.abc import Mapping
from typing import Any, Final

from advisor.base.errors import UserError
from advisor.base.units import significant
from harness.judge.goldens.golden_json import (
    check_seconds,
    series_from,
    series_values,
    step_of,
)
from harness.judge.goldens.series import Process, Series
from harness.judge.metrics import ALLOCATED, STEP_TIME, TFLOPS
from harness.logs.golden_layouts import LAYOUTS, GoldenLayout, Layout
from harness.trial.plausible import read_number

FIRST_STEP: Final = 5
"""First step of Megatron-LM's own window for times; compilation and NCCL's setup come before."""
_TIMINGS: Final = (STEP_TIME, TFLOPS)


def read_layout(
    values: Mapping[str, Any], layout: Layout, file: object, first_step: int = FIRST_STEP
) -> Process:
    """What a foreign golden holds, as one process.

    first_step: times and throughput of earlier steps are dropped as warm-up, losses are kept. Peaks
    are held once, at the last step. UserError where nothing in it can be compared.
    """
    known = LAYOUTS[layout]
    try:
        series = (_read_steps if known.by_step else _read_metrics)(values, known)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise UserError("golden", str(file), f"is not in the format of {layout}: {error}") from None
    for name in _TIMINGS:
        if name in series:
            series[name] = series[name].from_step(first_step)
    found = {name: one for name, one in series.items() if one.finite}
    if not found:
        raise UserError(
            "golden", str(file), f"holds no metric of {layout} at or after step {first_step}"
        )
    process = Process(name="imported", series=found)
    check_seconds(process)
    return process


def write_layout(process: Process, layout: Layout) -> dict[str, Any]:
    """One process in a foreign layout; metrics that it does not know are left out."""
    known = LAYOUTS[layout]
    return (_write_steps if known.by_step else _write_metrics)(process.series, known)


def guess_layout(values: Mapping[str, Any]) -> Layout:
    """The first whose keys are steps where the file's are."""
    steps = any(key.isdigit() for key in values)
    return next(layout for layout, known in LAYOUTS.items() if known.by_step == steps)


def _read_metrics(values: Mapping[str, Any], layout: GoldenLayout) -> dict[str, Series]:
    found = {
        ours: series_from(values[name])
        for name, (ours, _) in layout.metrics.items()
        if name in values
    }
    if ALLOCATED in found:
        found[ALLOCATED] = _peak(found[ALLOCATED])
    return found


def _peak(series: Series) -> Series:
    """The largest value, at the last step; empty where there is none."""
    kept = series.finite
    return Series(steps=series.steps[-1:], values=(max(kept),)) if kept else series


def _write_metrics(series: Mapping[str, Series], layout: GoldenLayout) -> dict[str, Any]:
    """A peak is written as it is logged: the same number at every step of the run."""
    known = {name: series[ours] for name, (ours, _) in layout.metrics.items() if ours in series}
    steps = max((one.steps for one in known.values()), key=len, default=())
    peaks = {
        name: Series(steps=steps, values=one.values * len(steps))
        for name, one in known.items()
        if layout.metrics[name][0] == ALLOCATED and len(one.values) == 1
    }
    return {name: series_values(one) for name, one in (known | peaks).items()}


def _read_steps(values: Mapping[str, Any], layout: GoldenLayout) -> dict[str, Series]:
    rows = sorted(
        ((step_of(key) + 1, row) for key, row in values.items() if key.isdigit()),
        key=lambda row: row[0],
    )
    found = {}
    for name, (ours, scale) in layout.metrics.items():
        pairs = [(step, read_number(row[name], name) * scale) for step, row in rows if name in row]
        found[ours] = Series(
            steps=tuple(step for step, _ in pairs), values=tuple(value for _, value in pairs)
        )
    last = (rows[-1][0] if rows else 1,)
    for name, (ours, unit) in layout.scalars.items():
        if name in values:
            size = round(read_number(values[name], name) * unit)
            found[ours] = Series(steps=last, values=(size,))
    return found


def _write_steps(series: Mapping[str, Series], layout: GoldenLayout) -> dict[str, Any]:
    rows: dict[str, Any] = {}
    for name, (ours, scale) in layout.metrics.items():
        one = series.get(ours, Series(steps=(), values=()))
        for step, value in zip(one.steps, one.values, strict=True):
            shown = significant(value / scale, 12)  # undoes the binary error of the scale
            rows.setdefault(str(step - 1), {})[name] = shown if shown == shown else "nan"
    for name, (ours, unit) in layout.scalars.items():
        if ours in series:
            rows[name] = round(max(series[ours].finite) / unit, layout.digits)
    return rows
