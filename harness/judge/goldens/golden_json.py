"""Goldens as JSON files for review: sorted keys, one value a line, and back.

::

    schema_version  1
    meta            provenance (measured, published), reason, date, source, environment (flat)
    identity        label, gpus, workload_key (null where only a part is known), workload (flat)
    status          ok, or oom: known not to fit
    limits          metric -> relative limit, where it is not the default
    samples         process -> metric -> series in Megatron-LM's shape
                    {start_step, end_step, step_interval, values {step: number}}
    summary         metric -> median, iqr, spread, process_spread, processes, steps; for the reader,
                    computed anew from the samples

Units are those of the metrics' names: seconds and bytes. Not-a-number is the string "nan".
"""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from advisor.base.documents import read_json
from advisor.base.errors import UserError
from advisor.base.fields import show
from advisor.base.limits import LARGEST
from advisor.base.numbers import whole
from advisor.base.record import as_dict
from advisor.base.units import significant
from harness.base.collections import Scalar, flatten
from harness.judge.goldens.golden import Golden, Identity, Meta, Provenance
from harness.judge.goldens.series import Process, Series
from harness.judge.metrics import STEP_TIME
from harness.logs.golden_layouts import LAYOUTS
from harness.trial.plausible import read_number
from harness.trial.result import TrialStatus

SCHEMA_VERSION: Final = 1
_SUMMARY_DIGITS: Final = 12
_SUITES: Final = " and ".join(layout.label for layout in LAYOUTS.values())


def golden_text(golden: Golden) -> str:
    """The file of a golden."""
    return json_text(golden_values(golden))


def golden_values(golden: Golden) -> dict[str, Any]:
    """A golden as plain JSON values."""
    identity = golden.identity
    return {
        "schema_version": SCHEMA_VERSION,
        "meta": as_dict(golden.meta),
        "identity": {
            "label": identity.label,
            "gpus": identity.gpus,
            "workload_key": identity.workload_key,
            "workload": identity.fields,
        },
        "status": golden.status,
        "limits": golden.limits,
        "samples": {
            process.name: {name: series_values(one) for name, one in process.series.items()}
            for process in golden.processes
        },
        "summary": {name: _rounded(as_dict(one)) for name, one in golden.summary().items()},
    }


def read_golden(source: Path | str, file: object = "text") -> Golden:
    """A golden from its file, or from the text of one; UserError where it is none."""
    values = read_json(source, file)
    file = source if isinstance(source, Path) else file
    version = values.get("schema_version")
    if version != SCHEMA_VERSION:
        raise UserError(
            f"{file}: schema_version",
            show(version),
            f"must be {SCHEMA_VERSION}",
            f"harness golden import reads the formats of {_SUITES}",
        )
    try:
        return _golden(values)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        missing = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise UserError("golden", str(file), f"cannot be read: {missing}") from None


def _golden(values: Mapping[str, Any]) -> Golden:
    meta, identity = values["meta"], values["identity"]
    processes = tuple(
        Process(name=name, series={key: series_from(one) for key, one in metrics.items()})
        for name, metrics in values["samples"].items()
    )
    for process in processes:
        check_seconds(process)
    key = identity.get("workload_key")
    return Golden(
        meta=Meta(
            provenance=Provenance(meta["provenance"]),
            reason=str(meta["reason"]),
            date=str(meta["date"]),
            source=str(meta.get("source", "")),
            environment=flatten(meta.get("environment", {})),
        ),
        identity=Identity(
            label=str(identity["label"]),
            gpus=str(identity["gpus"]),
            fields=flatten(identity["workload"]),
            workload_key=None if key is None else str(key),
        ),
        status=TrialStatus(values["status"]),
        processes=processes,
        limits={name: _limit(name, limit) for name, limit in values.get("limits", {}).items()},
    )


def _limit(name: str, value: object) -> float:
    limit = read_number(value, f"limits.{name}")
    if not 0 < limit < 1:
        raise UserError(f"limits.{name}", value, "must lie between 0 and 1")
    return limit


def series_values(series: Series) -> dict[str, Any]:
    """A series in Megatron-LM's shape; values that are no numbers are strings."""
    gaps = [after - before for before, after in zip(series.steps, series.steps[1:], strict=False)]
    return {
        "start_step": series.steps[0] if series.steps else 1,
        "end_step": series.steps[-1] if series.steps else 1,
        "step_interval": math.gcd(*gaps) if gaps else 1,
        "values": {
            str(step): value if math.isfinite(value) else str(value)
            for step, value in zip(series.steps, series.values, strict=True)
        },
    }


def series_from(values: Mapping[str, Any]) -> Series:
    """A series from Megatron-LM's shape, in the order of its steps; "nan" is a number here."""
    given = values["values"].items()
    pairs = sorted((step_of(step), read_number(value, f"step {step}")) for step, value in given)
    return Series(steps=tuple(step for step, _ in pairs), values=tuple(v for _, v in pairs))


def step_of(text: str) -> int:
    """The number of a training step; UserError where it is none."""
    step = whole(text)
    if step is None:
        raise UserError("step", show(text), "is not the number of a step")
    return step


def check_seconds(process: Process) -> None:
    """UserError where a step of a process takes no time; one without a number (nan) is no step."""
    for second in process.series.get(STEP_TIME, Series(steps=(), values=())).finite:
        if not 1 / LARGEST <= second <= LARGEST:
            raise UserError(STEP_TIME, second, "must be positive and of a plausible size")


def json_text(values: object) -> str:
    """Strict JSON with sorted keys and one value a line; steps are sorted as numbers."""
    return json.dumps(_sorted(values), indent=1, allow_nan=False, ensure_ascii=False) + "\n"


def _sorted(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _sorted(value[key]) for key in sorted(value, key=_order)}
    return value


def _order(key: object) -> tuple[int, str]:
    text = str(key)
    step = whole(text)
    return (-1 if step is None else step, text)


def _rounded(summary: dict[str, Scalar]) -> dict[str, Scalar]:
    """Enough digits for bytes, not for the noise of binary fractions."""
    return {
        key: significant(value, _SUMMARY_DIGITS) if isinstance(value, float) else value
        for key, value in summary.items()
    }
