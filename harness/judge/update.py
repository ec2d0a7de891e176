"""Goldens: made from results by an explicit act, kept as files that a reviewer can read.

Nothing in the harness makes or changes a golden but `harness golden`.
"""

import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from advisor.base.errors import UserError
from advisor.base.grouping import grouped
from harness.base.collections import Scalar, flatten
from harness.judge.golden import (
    Golden,
    Meta,
    Provenance,
    golden_text,
    golden_values,
    identity_of,
    read_golden,
)
from harness.judge.identity import MeasuredPlace, differences, place_of, workload_key
from harness.judge.identity import workload_label as label_of
from harness.judge.metrics import series_of
from harness.trial.files import write_atomic
from harness.trial.result import TrialResult, TrialStatus

FOLDER: Final = Path("results/golden")
ADVISED_REPEATS: Final = 5
_UNREVIEWED: Final = ("samples", "schema_version")


class GoldenChange(Struct, frozen=True, kw_only=True):
    """One golden as it is to be written. path: its file; old: what the file holds now."""

    path: Path
    new: Golden
    old: Golden | None = None

    def diff(self) -> dict[str, tuple[Scalar, Scalar]]:
        """Old and new of every value that changes; None where a side has none. Samples are left to
        the diff of the file itself: their summary is what a reviewer judges."""
        before = _reviewed(self.old) if self.old else {}
        after = _reviewed(self.new)
        pairs = {key: (before.get(key), after.get(key)) for key in sorted(before | after)}
        return {key: pair for key, pair in pairs.items() if pair[0] != pair[1]}


def by_workload(results: Iterable[TrialResult]) -> dict[str, list[TrialResult]]:
    """Results of each workload, by its key, in their first order."""
    return grouped((workload_key(result.trial["workload"]), result) for result in results)


def golden_of(results: Sequence[TrialResult], reason: str) -> Golden:
    """The golden of one workload's repeats; UserError where they are no baseline.

    A setting that runs out of memory in every repeat is one: that it does not fit.
    """
    first = results[0]
    workload = first.trial["workload"]
    label = label_of(workload)
    statuses = {result.status for result in results}
    if statuses not in ({TrialStatus.OK}, {TrialStatus.OOM}):
        words = ", ".join(sorted(f"{one.name} {one.status}" for one in results))
        raise UserError(label, words, "cannot be a baseline: its repeats must be all ok or all oom")
    _same_environment(results, label)
    place = place_of(first)
    measured = statuses == {TrialStatus.OK}
    return Golden(
        meta=Meta(
            provenance=Provenance.MEASURED,
            reason=_reason(reason),
            date=max(result.started_at for result in results)[:10],
            environment=place.environment,
        ),
        identity=identity_of(workload, label, place),
        status=next(iter(statuses)),
        samples={one.name: series_of(one) for one in results} if measured else {},
    )


def plan_update(
    results: Sequence[TrialResult], reason: str, folder: Path
) -> tuple[GoldenChange, ...]:
    """What an update from `results` would change below `folder`; writes nothing.

    A golden of the same workload on the same GPUs is replaced where it lies, and its own limits
    are kept.
    """
    if not results:
        raise UserError("RESULTS", "(none)", "hold no trial")
    present = load_goldens([folder]) if folder.exists() else {}
    groups = by_workload(one for one in results if one.status is not TrialStatus.SKIPPED)
    if not groups:
        raise UserError("RESULTS", "(skipped)", "hold no trial that was run")
    return tuple(_change(golden_of(one, reason), present, folder) for one in groups.values())


def _change(new: Golden, present: dict[Path, Golden], folder: Path) -> GoldenChange:
    """Where `new` goes: in place of the golden of the same subject, else into a file of its own."""
    for path, old in present.items():
        if old.same_subject(new) and old.meta.provenance is new.meta.provenance:
            kept = replace(new, limits=old.limits | new.limits)
            return GoldenChange(path=path, new=kept, old=old)
    # llama3_8b-tp1pp1-selective_mlp-1xH200-SXM-141GB-0123456789ab.json
    about = new.identity
    words = [*about.label.split("/"), about.full_gpus, str(about.workload_key)]
    name = "-".join(re.sub(r"[^A-Za-z0-9.-]+", "_", word) for word in words)
    return GoldenChange(path=folder / f"{name}.json", new=new)


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


def _reason(reason: str) -> str:
    text = " ".join(reason.split())
    if not text:
        raise UserError("--reason", repr(reason), "must state why the baseline changes")
    return text


def _same_environment(results: Sequence[TrialResult], label: str) -> None:
    """Repeats of one golden come from one environment."""
    places: list[MeasuredPlace] = [place_of(one) for one in results]
    for place in places[1:]:
        for one in differences(places[0], place):
            hint = "run them again on one machine"
            raise UserError(label, str(one), "differs between its repeats", hint)


def _reviewed(golden: Golden) -> dict[str, Scalar]:
    values: dict[str, Any] = golden_values(golden)
    return flatten({key: value for key, value in values.items() if key not in _UNREVIEWED})


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)
