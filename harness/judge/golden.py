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
from advisor.base.grouping import grouped
from advisor.base.limits import LARGEST
from advisor.base.record import as_dict
from advisor.base.units import significant, whole_number
from harness.base.collections import Scalar, flatten
from harness.judge.identity import MeasuredPlace, differences, gpu_type, place_of, workload_key
from harness.judge.identity import workload_label as label_of
from harness.judge.metrics import STEP_TIME, Series, metric_names, samples, series_of
from harness.judge.stats import Summary, summarise
from harness.trial.files import write_atomic
from harness.trial.result import TrialResult, TrialStatus
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


class Session(Struct, frozen=True, kw_only=True):
    """What was measured at one time on one machine. versions: what may differ between sessions;
    samples: process -> metric -> series."""

    samples: dict[str, dict[str, Series]]
    started_at: str = ""
    host: str = ""
    reason: str = ""
    versions: dict[str, Scalar] = field(default_factory=dict)

    def steps(self, metric: str) -> tuple[tuple[float, ...], ...]:
        """process -> finite steps of one metric."""
        return samples(tuple(self.samples.values()), metric)


class Golden(Struct, frozen=True, kw_only=True):
    """One workload's baseline. status: ok, or oom where the setting is known not to fit, and has no
    numbers. limits: relative limits of its own, by metric."""

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
        """session -> process -> finite steps of one metric; sessions without any are left out, and
        those of one machine and day, which share its weather, are one."""
        days: dict[object, tuple[tuple[float, ...], ...]] = {}
        for number, one in enumerate(self.sessions):
            day = (one.host, one.started_at[:10]) if one.started_at else number
            days[day] = (*days.get(day, ()), *one.steps(metric))
        return tuple(filter(None, days.values()))

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
        values = [steps for session in self.samples(metric) for steps in session]
        return self.meta.provenance is Provenance.PUBLISHED and [len(v) for v in values] == [1]

    def same_subject(self, other: "Golden") -> bool:
        """Whether `other` is a golden of the same workload on the same GPUs."""
        here, there = self.identity, other.identity
        if here.full_gpus != there.full_gpus or here.workload_key != there.workload_key:
            return False
        return here.workload_key is not None or here.workload == there.workload


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
    return {
        process: {name: _series_values(one.values) for name, one in metrics.items()}
        for process, metrics in session.samples.items()
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
    about = {"started_at": meta.date, "reason": meta.reason} | _where(meta.environment)
    sessions = [one if one.started_at else replace(one, **about) for one in found.sessions]
    return replace(found, identity=identity, meta=meta, sessions=tuple(sessions))


def _where(environment: Mapping[str, Scalar]) -> dict[str, Any]:
    """Host and versions of a session."""
    versions = {key: one for key, one in environment.items() if _VERSIONS.fullmatch(key)}
    return {"host": str(environment.get("host.name_hash", "")), "versions": versions}


def golden_text(golden: Golden) -> str:
    """The file of a golden: strict JSON with sorted keys and one value a line; steps are sorted as
    numbers."""
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


FOLDER: Final = Path("results/golden")
ADVISED_REPEATS: Final = 5
_UNREVIEWED: Final = ("sessions", "schema_version")
_VERSIONS: Final = re.compile(r"software\.\w+|gpus\[0\]\.driver|git_commit")


class GoldenChange(Struct, frozen=True, kw_only=True):
    """One golden as it is to be written. path: its file; old: what the file holds now."""

    path: Path
    new: Golden
    old: Golden | None = None

    def diff(self) -> dict[str, tuple[Scalar, Scalar]]:
        """Old and new of every value that changes; None where a side has none. Samples are left to
        the diff of the file itself: their summary is what a reviewer judges."""
        before, after = _reviewed(self.old) if self.old else {}, _reviewed(self.new)
        pairs = {key: (before.get(key), after.get(key)) for key in sorted(before | after)}
        return {key: pair for key, pair in pairs.items() if pair[0] != pair[1]}


def by_workload(results: Iterable[TrialResult]) -> dict[str, list[TrialResult]]:
    """Results of each workload, by its key, in their first order."""
    return grouped((workload_key(result.trial["workload"]), result) for result in results)


def sessions_of(results: Sequence[TrialResult]) -> tuple[tuple[TrialResult, ...], ...]:
    """One workload's repeats by session: of trials that were measured in several runs, the first
    of each are one session, the second another."""
    names = [one.name for one in results]
    numbered = ((names[:k].count(one.name), one) for k, one in enumerate(results))
    return tuple(map(tuple, grouped(numbered).values()))


def by_time(sessions: Iterable[Session]) -> tuple[Session, ...]:
    """The oldest first."""
    return tuple(sorted(sessions, key=lambda one: one.started_at))


def session_of(results: Sequence[TrialResult], reason: str) -> Session:
    """The session of processes that were measured together."""
    return Session(
        samples={one.name: series_of(one) for one in results},
        started_at=min(one.started_at for one in results),
        reason=reason,
        **_where(place_of(results[0]).environment),
    )


def golden_of(results: Sequence[TrialResult], reason: str) -> Golden:
    """The golden of one workload's repeats; UserError where they are no baseline.

    A setting that runs out of memory in every repeat is one: that it does not fit.
    """
    workload, place = results[0].trial["workload"], place_of(results[0])
    label, key = label_of(workload), workload_key(workload)
    statuses = {result.status for result in results}
    if statuses not in ({TrialStatus.OK}, {TrialStatus.OOM}):
        words = ", ".join(sorted(f"{one.name} {one.status}" for one in results))
        raise UserError(label, words, "cannot be a baseline: its repeats must be all ok or all oom")
    for one in (one for other in results for one in differences(place, place_of(other))):
        hint = "run them again on one machine"
        raise UserError(label, str(one), "differs between its repeats", hint)
    measured, text = statuses == {TrialStatus.OK}, " ".join(reason.split())
    if not text:
        raise UserError("--reason", repr(reason), "must state why the baseline changes")
    return Golden(
        meta=Meta(
            provenance=Provenance.MEASURED,
            reason=text,
            date=max(result.started_at for result in results)[:10],
            environment=place.environment,
        ),
        identity=Identity(label, place.gpus, flatten(workload), key),
        status=results[0].status,
        sessions=by_time(session_of(one, text) for one in sessions_of(results) if measured),
    )


def plan_update(
    results: Sequence[TrialResult], reason: str, folder: Path, *, append: bool = False
) -> tuple[GoldenChange, ...]:
    """What an update from `results` would change below `folder`; writes nothing.

    A golden of the same workload on the same GPUs is replaced where it lies, and its own limits
    are kept. append: its sessions are kept too, and those of `results` are added.
    """
    if not results:
        raise UserError("RESULTS", "(none)", "hold no trial")
    present = load_goldens([folder]) if folder.exists() else {}
    groups = by_workload(one for one in results if one.status is not TrialStatus.SKIPPED)
    if not groups:
        raise UserError("RESULTS", "(skipped)", "hold no trial that was run")
    goldens = (golden_of(one, reason) for one in groups.values())
    return tuple(_change(one, present, folder, append) for one in goldens)


def _change(new: Golden, present: dict[Path, Golden], folder: Path, append: bool) -> GoldenChange:
    """Where `new` goes: in place of the golden of the same subject, else into a file of its own."""
    for path, old in present.items():
        if old.same_subject(new) and old.meta.provenance is new.meta.provenance:
            kept = replace(_appended(old, new) if append else new, limits=old.limits | new.limits)
            return GoldenChange(path=path, new=kept, old=old)
    # llama3_8b-tp1pp1-selective_mlp-1xH200-SXM-141GB-0123456789ab.json
    about = new.identity
    words = [*about.label.split("/"), about.full_gpus, str(about.workload_key)]
    name = "-".join(re.sub(r"[^A-Za-z0-9.-]+", "_", word) for word in words)
    return GoldenChange(path=folder / f"{name}.json", new=new)


def _appended(old: Golden, new: Golden) -> Golden:
    """`new` after the sessions of `old`, less what that has already (an interrupted update wrote
    them); UserError where they are not of one kind."""
    label, hint = new.identity.label, "without --append the golden is replaced"
    changes = [] if old.status is new.status else [f"status  {old.status} -> {new.status}"]
    for change in (*changes, *differences(old.place, new.place)):
        raise UserError(label, str(change), "differs from the golden's", hint)
    held = [one.samples for one in old.sessions]
    added = [one for one in new.sessions if one.samples not in held]
    return replace(new, sessions=by_time((*old.sessions, *added))) if added else old


def write(changes: Iterable[GoldenChange]) -> None:
    """Write the files, each whole or not at all."""
    for change in changes:
        change.path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(change.path, golden_text(change.new))


def diff_text(changes: Iterable[GoldenChange]) -> str:
    """JSON for review: file -> value -> old and new, sorted, one value a line."""
    blocks = []
    for change in sorted(changes, key=lambda one: str(one.path)):
        lines = [
            f"\n  {_json(key)}: {_json({'old': old, 'new': new})}"
            for key, (old, new) in change.diff().items()
        ]
        end = "\n }" if lines else "}"
        blocks.append(f" {_json(str(change.path))}: {{{','.join(lines)}{end}")
    return "{\n" + ",\n".join(blocks) + "\n}\n"


def load_goldens(paths: Sequence[Path]) -> dict[Path, Golden]:
    """Goldens by file; folders give all JSON files in them. UserError where one cannot be read."""
    return {
        file: read_golden(file)
        for path in paths
        for file in (sorted(path.glob("*.json")) if path.is_dir() else [path])
    }


def _reviewed(golden: Golden) -> dict[str, Scalar]:
    kept = {key: one for key, one in golden_values(golden).items() if key not in _UNREVIEWED}
    return flatten(kept | {"sessions": len(golden.sessions)})


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)
