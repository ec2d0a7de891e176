"""Goldens: numbers to be held, with whose they are, of what, and why they were taken; and their
JSON files for review: sorted keys, one value a line.

::

    schema_version  2
    meta            provenance (measured, published), reason, date, source, environment (flat)
    identity        label, gpus, workload_key (null where only a part is known), workload (flat)
    status          ok, or oom: known not to fit
    limits          metric -> relative limit, where it is not the default
    sessions        what was measured at one time on one machine, the oldest first: started_at, host
                    (hashed), reason, versions (software, driver, commit), and
        samples     process -> metric -> series in Megatron-LM's shape
                    {start_step, end_step, step_interval, values {step: number}}
    summary         metric -> median, iqr, spread, process_spread, processes, steps, sessions,
                    session_spread; for the reader, computed anew from the samples

A file of version 1 has ``samples`` of one session.

Units are those of the metrics' names: seconds and bytes. Not-a-number is the string "nan". Goldens
are made from results by an explicit act: nothing makes or changes one but `harness golden`.
"""

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
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
from harness.base.collections import Scalar, flatten
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


class Identity(Struct, frozen=True):
    """Of what a golden speaks. workload: flat; in part without key. gpus: COUNTxTYPE or cpu."""

    label: str
    gpus: str
    workload: dict[str, Any]
    workload_key: str | None = None

    def holds_for(self, workload: dict[str, Any]) -> bool:
        """Whether `workload`, as JSON, is the one meant: by its key, else by all that is known."""
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


class Session(Struct, frozen=True, kw_only=True):
    """What was measured at one time on one machine. samples: process -> metric -> series."""

    samples: dict[str, dict[str, Series]]
    started_at: str = ""
    host: str = ""
    reason: str = ""
    versions: dict[str, Scalar] = field(default_factory=dict)

    def steps(self, metric: str) -> tuple[tuple[float, ...], ...]:
        """process -> finite steps of one metric."""
        return samples(tuple(self.samples.values()), metric)


def by_day(sessions: Iterable[Session], metric: str) -> tuple[tuple[tuple[float, ...], ...], ...]:
    """session -> process -> finite steps of one metric; sessions without any are left out, and
    those of one machine and day, which share its weather, are one."""
    days: dict[object, tuple[tuple[float, ...], ...]] = {}
    for number, one in enumerate(sessions):
        day = (one.host, one.started_at[:10]) if one.started_at else number
        days[day] = (*days.get(day, ()), *one.steps(metric))
    return tuple(filter(None, days.values()))


class Golden(Struct, frozen=True, kw_only=True):
    """One workload's baseline. status: ok, or oom: known not to fit. limits: its own, by metric."""

    meta: Meta
    identity: Identity
    status: TrialStatus
    sessions: tuple[Session, ...]
    limits: dict[str, Annotated[float, Bounds(gt=0, lt=1)]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for process in self.processes:
            for second in process[STEP_TIME].finite if STEP_TIME in process else ():
                if not 1 / LARGEST <= second <= LARGEST:
                    raise UserError(STEP_TIME, second, "must be positive and of a plausible size")

    @property
    def processes(self) -> tuple[dict[str, Series], ...]:
        """What each process gave, by metric."""
        return tuple(one for session in self.sessions for one in session.samples.values())

    def samples(self, metric: str) -> tuple[tuple[tuple[float, ...], ...], ...]:
        """session -> process -> finite steps of one metric, as of `by_day`."""
        return by_day(self.sessions, metric)

    @property
    def place(self) -> MeasuredPlace:
        """Where its numbers come from."""
        return MeasuredPlace(gpus=self.identity.full_gpus, environment=self.meta.environment)

    def summary(self) -> dict[str, Summary]:
        """Summary of every metric that has a number."""
        found = {name: self.samples(name) for name in metric_names(self.processes)}
        return {name: summarise(values) for name, values in found.items() if values}

    def exact(self, metric: str) -> bool:
        """Whether the golden is a single published number: to be held, with no noise of its own."""
        counts = [len(steps) for session in self.samples(metric) for steps in session]
        return self.meta.provenance is Provenance.PUBLISHED and counts == [1]

    def same_subject(self, other: "Golden") -> bool:
        """Whether `other` is a golden of the same workload on the same GPUs."""
        here, there = self.identity, other.identity
        if here.full_gpus != there.full_gpus or here.workload_key != there.workload_key:
            return False
        return here.workload_key is not None or here.workload == there.workload


FOLDER: Final = Path("results/golden")
SCHEMA_VERSION: Final = 2
_SUMMARY_DIGITS: Final = 12


def golden_values(golden: Golden) -> dict[str, Any]:
    """A golden as plain JSON values; those that are no numbers are strings."""
    return as_dict(golden) | {
        "schema_version": SCHEMA_VERSION,
        "sessions": [as_dict(one) | {"samples": _samples(one)} for one in golden.sessions],
        "summary": {name: _rounded(as_dict(one)) for name, one in golden.summary().items()},
    }


def _rounded(values: Mapping[str, Any]) -> dict[str, Any]:
    """Enough digits for bytes, not for the noise of binary fractions."""
    floats = {key: one for key, one in values.items() if isinstance(one, float)}
    return {**values, **{key: significant(one, _SUMMARY_DIGITS) for key, one in floats.items()}}


def _samples(session: Session) -> dict[str, Any]:
    of = session.samples.items()
    return {one: {k: _series_values(v.values) for k, v in metrics.items()} for one, metrics in of}


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
    """A golden from its file, or from the text of one; UserError where it is none."""
    values = read_json(source, file)
    file = source if isinstance(source, Path) else file
    if values.get("schema_version") == 1 and "samples" in values:
        session = [{"samples": values["samples"]}] if values["samples"] != {} else []
        values |= {"schema_version": SCHEMA_VERSION, "sessions": session}
    check_schema(values, SCHEMA_VERSION, file)
    try:
        found = convert(values, Golden, strict=False)
    except ValidationError as error:
        raise UserError("golden", str(file), f"cannot be read: {error}") from None
    identity = replace(found.identity, workload=flatten(found.identity.workload))
    meta = replace(found.meta, environment=flatten(found.meta.environment))
    about = {"started_at": meta.date, "reason": meta.reason} | host_and_versions(meta.environment)
    sessions = [one if one.started_at else replace(one, **about) for one in found.sessions]
    return replace(found, identity=identity, meta=meta, sessions=tuple(sessions))


_VERSIONS: Final = re.compile(r"software\.\w+|gpus\[0\]\.driver|git_commit")


def host_and_versions(environment: Mapping[str, Scalar]) -> dict[str, Any]:
    """Host and versions of a session."""
    versions = {key: one for key, one in environment.items() if _VERSIONS.fullmatch(key)}
    return {"host": str(environment.get("host.name_hash", "")), "versions": versions}


def golden_text(golden: Golden) -> str:
    """A golden's file: strict JSON, keys sorted (steps as numbers), one value a line."""
    values = _sorted(golden_values(golden))
    return json.dumps(values, indent=1, allow_nan=False, ensure_ascii=False) + "\n"


def _sorted(value: Any) -> Any:
    def order(key: str) -> tuple[int, str]:
        step = whole_number(key)
        return (-1 if step is None else step, key)

    if isinstance(value, list | tuple):
        return [_sorted(one) for one in value]
    if not isinstance(value, Mapping):
        return value
    return {key: _sorted(value[key]) for key in sorted(value, key=order)}


def load_goldens(paths: Sequence[Path]) -> dict[Path, Golden]:
    """Goldens by file; folders give all JSON files in them. UserError where one cannot be read."""
    return {
        file: read_golden(file)
        for path in paths
        for file in (sorted(path.glob("*.json")) if path.is_dir() else [path])
    }
