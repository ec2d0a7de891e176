"""Goldens: numbers to be held, with whose they are, of what, and why they were taken; and their
JSON files for review: sorted keys, one value a line.

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
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from msgspec import Struct, field

from advisor.base.documents import read_json
from advisor.base.errors import UserError
from advisor.base.fields import show
from advisor.base.limits import LARGEST
from advisor.base.numbers import whole
from advisor.base.record import as_dict
from advisor.base.units import significant
from harness.base.collections import Scalar, flatten
from harness.judge.identity import Place, gpu_type, same_workload, workload_key
from harness.judge.metrics import STEP_TIME, Process, Series, metric_names, samples
from harness.judge.stats import Summary, summarise
from harness.trial.codec import read_number
from harness.trial.result import TrialStatus


class Provenance(StrEnum):
    """Whose numbers: measured by this harness, or published by somebody else."""

    MEASURED = "measured"
    PUBLISHED = "published"


class Meta(Struct, frozen=True, kw_only=True):
    """Why a golden is what it is. environment: flat fingerprint of the processes measured."""

    provenance: Provenance
    reason: str
    date: str
    source: str = ""
    environment: dict[str, Scalar] = field(default_factory=dict)


class Identity(Struct, frozen=True, kw_only=True):
    """Of what a golden speaks. fields: the workload, flat; all of it where there is a key, else the
    part that the source states. gpus: COUNTxTYPE or ``cpu``."""

    label: str
    gpus: str
    fields: dict[str, Scalar]
    workload_key: str | None = None

    def holds_for(self, workload: dict[str, Any]) -> bool:
        """Whether `workload`, as JSON, is the one meant."""
        return same_workload(self.workload_key, self.fields, workload)

    @property
    def full_gpus(self) -> str:
        """The GPUs with the type's full name: a bare H100 is the 80 GB SXM part."""
        count, separator, name = self.gpus.partition("x")
        return f"{count}x{gpu_type(name)}" if separator and count.isdigit() else self.gpus


class Golden(Struct, frozen=True, kw_only=True):
    """One workload's baseline. status: ok, or oom where the setting is known not to fit, and has no
    numbers. limits: relative limits of its own, by metric."""

    meta: Meta
    identity: Identity
    status: TrialStatus = TrialStatus.OK
    processes: tuple[Process, ...] = ()
    limits: dict[str, float] = field(default_factory=dict)

    @property
    def place(self) -> Place:
        """Where its numbers come from."""
        return Place(gpus=self.identity.full_gpus, environment=self.meta.environment)

    def summary(self) -> dict[str, Summary]:
        """Summary of every metric that has a number."""
        found = {name: samples(self.processes, name) for name in metric_names(self.processes)}
        return {name: summarise(values) for name, values in found.items() if values}

    def exact(self, metric: str) -> bool:
        """Whether the golden is a single published number: to be held, with no noise of its own."""
        values = samples(self.processes, metric)
        return self.meta.provenance is Provenance.PUBLISHED and [len(v) for v in values] == [1]

    def same_subject(self, other: "Golden") -> bool:
        """Whether `other` is a golden of the same workload on the same GPUs."""
        here, there = self.identity, other.identity
        if here.full_gpus != there.full_gpus or here.workload_key != there.workload_key:
            return False
        return here.workload_key is not None or here.fields == there.fields


def identity_of(workload: dict[str, Any], label: str, place: Place) -> Identity:
    """Full identity of a measured workload."""
    return Identity(
        label=label, gpus=place.gpus, fields=flatten(workload), workload_key=workload_key(workload)
    )


SCHEMA_VERSION: Final = 1
_SUMMARY_DIGITS: Final = 12


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
        relation = f"must be {SCHEMA_VERSION}"
        raise UserError(f"{file}: schema_version", show(version), relation)
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
