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
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Final

from msgspec import Meta as Bounds
from msgspec import Struct, ValidationError, convert, field
from msgspec.structs import replace

from advisor.base.documents import read_json
from advisor.base.errors import UserError
from advisor.base.limits import LARGEST
from advisor.base.record import as_dict
from advisor.base.units import significant, whole_number
from harness.base.collections import flatten
from harness.judge.identity import MeasuredPlace, gpu_type, workload_key
from harness.judge.metrics import STEP_TIME, Series, metric_names, samples
from harness.judge.stats import Summary, summarise
from harness.trial.result import TrialStatus
from harness.trial.store import check_schema


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
    environment: dict[str, Any] = field(default_factory=dict)


class Identity(Struct, frozen=True, kw_only=True):
    """Of what a golden speaks. workload: flat; all of it where there is a key, else the part that
    the source states. gpus: COUNTxTYPE or ``cpu``."""

    label: str
    gpus: str
    workload: dict[str, Any]
    workload_key: str | None = None

    def holds_for(self, workload: dict[str, Any]) -> bool:
        """Whether `workload`, as JSON, is the one meant: by its key or, where there is none
        (published goldens know only a part), by all the fields that are recorded."""
        if self.workload_key is not None:
            return self.workload_key == workload_key(workload)
        flat = {name: str(value) for name, value in flatten(workload).items()}
        recorded = self.workload.items()
        return bool(recorded) and all(flat.get(name) == str(value) for name, value in recorded)

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
    status: TrialStatus
    samples: dict[str, dict[str, Series]]
    limits: dict[str, Annotated[float, Bounds(gt=0, lt=1)]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for process in self.processes:
            for second in process[STEP_TIME].finite if STEP_TIME in process else ():
                if not 1 / LARGEST <= second <= LARGEST:
                    raise UserError(STEP_TIME, second, "must be positive and of a plausible size")

    @property
    def processes(self) -> tuple[dict[str, Series], ...]:
        """What each process gave, by metric."""
        return tuple(self.samples.values())

    @property
    def place(self) -> MeasuredPlace:
        """Where its numbers come from."""
        return MeasuredPlace(gpus=self.identity.full_gpus, environment=self.meta.environment)

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
        return here.workload_key is not None or here.workload == there.workload


def identity_of(workload: dict[str, Any], label: str, place: MeasuredPlace) -> Identity:
    """Full identity of a measured workload."""
    key = workload_key(workload)
    return Identity(label=label, gpus=place.gpus, workload=flatten(workload), workload_key=key)


SCHEMA_VERSION: Final = 1
_SUMMARY_DIGITS: Final = 12


def golden_values(golden: Golden) -> dict[str, Any]:
    """A golden as plain JSON values; those that are no numbers are strings."""
    return as_dict(golden) | {
        "schema_version": SCHEMA_VERSION,
        "samples": {
            process: {name: _series_values(one.values) for name, one in metrics.items()}
            for process, metrics in golden.samples.items()
        },
        "summary": {  # enough digits for bytes, not for the noise of binary fractions
            name: {
                key: significant(value, _SUMMARY_DIGITS) if isinstance(value, float) else value
                for key, value in as_dict(one).items()
            }
            for name, one in golden.summary().items()
        },
    }


def _series_values(values: Mapping[int, float]) -> dict[str, Any]:
    """A series in Megatron-LM's shape."""
    steps = sorted(values) or [1]
    return {
        "start_step": steps[0],
        "end_step": steps[-1],
        "step_interval": math.gcd(*[after - before for before, after in pairwise(steps)]) or 1,
        "values": {str(k): v if math.isfinite(v) else str(v) for k, v in values.items()},
    }


def read_golden(source: Path | str, file: object = "text") -> Golden:
    """A golden from its file, or from the text of one, in which "nan" is a number; UserError where
    it is none."""
    values = read_json(source, file)
    file = source if isinstance(source, Path) else file
    check_schema(values, SCHEMA_VERSION, file)
    try:
        found = convert(values, Golden, strict=False)
    except ValidationError as error:
        raise UserError("golden", str(file), f"cannot be read: {error}") from None
    identity = replace(found.identity, workload=flatten(found.identity.workload))
    meta = replace(found.meta, environment=flatten(found.meta.environment))
    return replace(found, identity=identity, meta=meta)


def golden_text(golden: Golden) -> str:
    """The file of a golden: strict JSON with sorted keys and one value a line; steps are sorted as
    numbers."""
    values = _sorted(golden_values(golden))
    return json.dumps(values, indent=1, allow_nan=False, ensure_ascii=False) + "\n"


def _sorted(value: Any) -> Any:
    def order(key: str) -> tuple[int, str]:
        step = whole_number(key)
        return (-1 if step is None else step, key)

    if not isinstance(value, Mapping):
        return value
    return {key: _sorted(value[key]) for key in sorted(value, key=order)}
