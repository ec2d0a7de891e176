"""Goldens out of results: only `harness golden update` makes or changes one, and says why."""

import json
import re
from collections.abc import Iterable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from advisor.base.errors import UserError
from advisor.base.grouping import grouped
from harness.base.collections import Scalar, flatten
from harness.judge.golden import (
    Golden,
    Identity,
    Meta,
    Provenance,
    Session,
    golden_text,
    golden_values,
    host_and_versions,
    load_goldens,
)
from harness.judge.identity import differences, place_of, workload_key
from harness.judge.identity import workload_label as label_of
from harness.judge.metrics import series_of
from harness.trial.files import write_atomic
from harness.trial.result import TrialResult, TrialStatus

ADVISED_REPEATS: Final = 5
_UNREVIEWED: Final = ("sessions", "schema_version")


class GoldenChange(Struct, frozen=True, kw_only=True):
    """One golden as it is to be written. path: its file; old: what the file holds now."""

    path: Path
    new: Golden
    old: Golden | None = None

    def diff(self) -> dict[str, tuple[Scalar, Scalar]]:
        """Old and new of every value that changes but samples; None where a side has none."""
        before, after = _reviewed(self.old) if self.old else {}, _reviewed(self.new)
        pairs = {key: (before.get(key), after.get(key)) for key in sorted(before | after)}
        return {key: pair for key, pair in pairs.items() if pair[0] != pair[1]}


def by_workload(results: Iterable[TrialResult]) -> dict[str, list[TrialResult]]:
    """Results of each workload, by its key, in their first order."""
    return grouped((workload_key(result.trial["workload"]), result) for result in results)


_HALF_A_DAY: Final = 12 * 3600


def sessions_of(results: Sequence[TrialResult]) -> tuple[tuple[TrialResult, ...], ...]:
    """One workload's repeats by session, the oldest first: a new one where a trial was measured
    again, on another machine, or half a day later."""
    sessions: list[list[TrialResult]] = []
    for one in sorted(results, key=lambda one: one.started_at):
        last = sessions[-1] if sessions else []
        again = one.name in (other.name for other in last)
        if not last or again or _is_elsewhere(one, last[-1]):
            sessions.append([])
        sessions[-1].append(one)
    return tuple(map(tuple, sessions))


def _is_elsewhere(one: TrialResult, other: TrialResult) -> bool:
    """On another machine, or started half a day later, where both starts are known."""
    hosts = [host_and_versions(place_of(each).environment)["host"] for each in (one, other)]
    if hosts[0] != hosts[1] or not (one.started_at and other.started_at):
        return bool(hosts[0] != hosts[1])
    seconds = [datetime.fromisoformat(each.started_at).timestamp() for each in (one, other)]
    return seconds[0] - seconds[1] > _HALF_A_DAY


def by_time(sessions: Iterable[Session]) -> tuple[Session, ...]:
    """The oldest first."""
    return tuple(sorted(sessions, key=lambda one: one.started_at))


def session_of(results: Sequence[TrialResult], reason: str) -> Session:
    """The session of processes that were measured together."""
    return Session(
        samples={one.name: series_of(one) for one in results},
        started_at=min(one.started_at for one in results),
        reason=reason,
        **host_and_versions(place_of(results[0]).environment),
    )


def golden_of(results: Sequence[TrialResult], reason: str) -> Golden:
    """The golden of one workload's repeats; UserError where they are no baseline. A setting that
    runs out of memory in every repeat is one: that it does not fit."""
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
    """What an update from `results` would change below `folder`; writes nothing. A golden of the
    same workload on the same GPUs is replaced where it lies, and its own limits are kept. append:
    its sessions are kept too, and those of `results` are added."""
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
    """`new` after the sessions of `old` that it lacks; UserError where they are not of one kind."""
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


def _reviewed(golden: Golden) -> dict[str, Scalar]:
    kept = {key: one for key, one in golden_values(golden).items() if key not in _UNREVIEWED}
    return flatten(kept | {"sessions": len(golden.sessions)})


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)
