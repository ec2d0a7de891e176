"""The golden layouts of Megatron-LM and Megatron Bridge, read and written.

Megatron-LM (tests/functional_tests, golden_values_*.json): metric -> series, seconds and bytes,
steps from 1, NaN as the string "nan". Megatron Bridge: step -> metrics, steps from 0, milliseconds,
beside the steps three scalars in decimal GB rounded to 5 digits; its "GPU utilization" is model
TFLOP/s per GPU, not per cent. What the layouts have and we do not compare (num-zeros) is dropped.
"""

from collections.abc import Callable, Mapping
from enum import StrEnum
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
from harness.judge.metrics import ALLOCATED, LOSS, RESERVED, STEP_TIME, TFLOPS
from harness.trial.plausible import read_number

_MILLI: Final = 1e-3
_GB: Final = 10**9
_GB_DIGITS: Final = 5
FIRST_STEP: Final = 5
"""First step of Megatron-LM's own window for times; compilation and NCCL's setup come before."""


class Layout(StrEnum):
    """Whose file it is."""

    MEGATRON_LM = "megatron_lm"
    MEGATRON_BRIDGE = "megatron_bridge"


_MEGATRON: Final = {
    "iteration-time": STEP_TIME,
    "mem-max-allocated-bytes": ALLOCATED,
    "lm loss": LOSS,
    "throughput": TFLOPS,
}
_BRIDGE_STEPS: Final = {
    "lm loss": (LOSS, 1.0),
    "elapsed time per iteration (ms)": (STEP_TIME, _MILLI),
    "GPU utilization": (TFLOPS, 1.0),
}
_BRIDGE_SCALARS: Final = {"max_alloc": ALLOCATED, "max_reserved": RESERVED}
_TIMINGS: Final = (STEP_TIME, TFLOPS)


def read_layout(
    values: Mapping[str, Any], layout: Layout, file: object, first_step: int = FIRST_STEP
) -> Process:
    """What a foreign golden holds, as one process.

    first_step: times and throughput of earlier steps are dropped as warm-up, losses are kept. Peaks
    are held once, at the last step. UserError where nothing in it can be compared.
    """
    try:
        series = _READERS[layout](values)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise UserError("golden", str(file), f"is not in the layout of {layout}: {error}") from None
    for name in _TIMINGS:
        if name in series:
            series[name] = series[name].from_step(first_step)
    found = {name: one for name, one in series.items() if one.finite}
    if not found:
        raise UserError("golden", str(file), f"holds no metric of {layout} from step {first_step}")
    process = Process(name="imported", series=found)
    check_seconds(process)
    return process


def write_layout(process: Process, layout: Layout) -> dict[str, Any]:
    """One process in a foreign layout; metrics that it does not know are left out."""
    return _WRITERS[layout](process.series)


def guess_layout(values: Mapping[str, Any]) -> Layout:
    """Bridge's keys are steps, Megatron-LM's are metrics."""
    steps = any(key.isdigit() for key in values)
    return Layout.MEGATRON_BRIDGE if steps else Layout.MEGATRON_LM


def _read_megatron(values: Mapping[str, Any]) -> dict[str, Series]:
    found = {ours: series_from(values[name]) for name, ours in _MEGATRON.items() if name in values}
    if ALLOCATED in found:
        found[ALLOCATED] = _peak(found[ALLOCATED])
    return found


def _peak(series: Series) -> Series:
    """The largest value, at the last step; empty where there is none."""
    kept = series.finite
    return Series(steps=series.steps[-1:], values=(max(kept),)) if kept else series


def _write_megatron(series: Mapping[str, Series]) -> dict[str, Any]:
    """A peak is written as Megatron logs it: the same number at every step of the run."""
    known = {name: series[ours] for name, ours in _MEGATRON.items() if ours in series}
    steps = max((one.steps for one in known.values()), key=len, default=())
    peaks = {
        name: Series(steps=steps, values=one.values * len(steps))
        for name, one in known.items()
        if _MEGATRON[name] == ALLOCATED and len(one.values) == 1
    }
    return {name: series_values(one) for name, one in (known | peaks).items()}


def _read_bridge(values: Mapping[str, Any]) -> dict[str, Series]:
    rows = sorted(
        ((step_of(key) + 1, row) for key, row in values.items() if key.isdigit()),
        key=lambda row: row[0],
    )
    found = {}
    for name, (ours, scale) in _BRIDGE_STEPS.items():
        pairs = [(step, read_number(row[name], name) * scale) for step, row in rows if name in row]
        found[ours] = Series(
            steps=tuple(step for step, _ in pairs), values=tuple(value for _, value in pairs)
        )
    last = (rows[-1][0] if rows else 1,)
    for name, ours in _BRIDGE_SCALARS.items():
        if name in values:
            size = round(read_number(values[name], name) * _GB)
            found[ours] = Series(steps=last, values=(size,))
    return found


def _write_bridge(series: Mapping[str, Series]) -> dict[str, Any]:
    rows: dict[str, Any] = {}
    for name, (ours, scale) in _BRIDGE_STEPS.items():
        one = series.get(ours, Series(steps=(), values=()))
        for step, value in zip(one.steps, one.values, strict=True):
            shown = significant(value / scale, 12)  # undoes the binary error of the scale
            rows.setdefault(str(step - 1), {})[name] = shown if shown == shown else "nan"
    for name, ours in _BRIDGE_SCALARS.items():
        if ours in series:
            rows[name] = round(max(series[ours].finite) / _GB, _GB_DIGITS)
    return rows


_READERS: Final[dict[Layout, Callable[[Mapping[str, Any]], dict[str, Series]]]] = {
    Layout.MEGATRON_LM: _read_megatron,
    Layout.MEGATRON_BRIDGE: _read_bridge,
}
_WRITERS: Final[dict[Layout, Callable[[Mapping[str, Series]], dict[str, Any]]]] = {
    Layout.MEGATRON_LM: _write_megatron,
    Layout.MEGATRON_BRIDGE: _write_bridge,
}
