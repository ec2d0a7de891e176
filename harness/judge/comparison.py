"""`harness compare`: results against goldens; identity before numbers, worst first. Every trial and
every golden is accounted for: what ran, what failed, what vanished and what appeared."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

from msgspec import Struct, field

from harness.base.collections import flatten
from harness.judge import identity
from harness.judge.golden import Golden, Provenance
from harness.judge.golden_update import by_workload
from harness.judge.trial_rows import (
    CompareOptions,
    ComparisonRow,
    EnvironmentChange,
    describe,
    measured_rows,
)
from harness.judge.verdict import Verdict
from harness.trial.result import TrialResult, TrialStatus

PASSED: Final = 0
REGRESSED: Final = 1
NO_VERDICT: Final = 3
RUN_FAILED: Final = 4

_MEASURED: Final = (TrialStatus.OK, TrialStatus.UNSTABLE)
_UNMATCHED: Final = (Verdict.VANISHED, Verdict.APPEARED)
_JUDGED: Final = (Verdict.PASS, Verdict.STALE)
_OPEN: Final = (Verdict.UNSTABLE, Verdict.OPEN, Verdict.ENVIRONMENT)


class Comparison(Struct, frozen=True, kw_only=True):
    """Results compared with goldens, worst first. environments: what differs, or is not known, in
    that of each trial. commands: the command that runs a workload again, by its key."""

    rows: tuple[ComparisonRow, ...]
    environments: tuple[EnvironmentChange, ...] = ()
    options: CompareOptions = field(default_factory=CompareOptions)
    commands: Mapping[str, str] = field(default_factory=dict)

    def count(self, verdict: Verdict) -> int:
        """Rows of a verdict."""
        return sum(row.verdict is verdict for row in self.rows)

    @property
    def exit_code(self) -> int:
        """0 pass, 1 regression, 3 no verdict, 4 a run failed; of several, 1 before 4 before 3."""
        found = {row.verdict for row in self.rows}
        if Verdict.REGRESSION in found or (self.options.strict and Verdict.STALE in found):
            return REGRESSED
        if Verdict.FAILED in found:
            return RUN_FAILED
        unmatched = found.intersection(_UNMATCHED) and not self.options.allow_unmatched
        if unmatched or found.intersection(_OPEN) or not found.intersection(_JUDGED):
            return NO_VERDICT
        return PASSED


def compare(
    results: Sequence[TrialResult],
    goldens: Sequence[Golden],
    options: CompareOptions | None = None,
    commands: Mapping[str, str] | None = None,
) -> Comparison:
    """Judge `results` against goldens of the same workloads. commands: as in Comparison."""
    options = options or CompareOptions()
    rows: list[ComparisonRow] = []
    environments: list[EnvironmentChange] = []
    matched: list[Golden] = []
    for subject in _subjects(results):
        golden = find_golden(subject, goldens)
        if golden is not None:
            matched.append(golden)
            change = _environment(subject, golden)
            environments += [change] if change.differences or change.unrecorded else []
        rows += _rows(subject, golden, options, goldens)
    rows += _vanished(results, goldens, matched)
    order = list(Verdict)
    return Comparison(
        rows=tuple(sorted(rows, key=lambda row: (order.index(row.verdict), -_distance(row)))),
        environments=tuple(environments),
        options=options,
        commands=dict(commands or {}),
    )


class Subject(Struct, frozen=True, kw_only=True):
    """One workload's repeats. label: followed by the key where two would read the same."""

    key: str
    label: str
    results: tuple[TrialResult, ...]

    @property
    def places(self) -> tuple[identity.MeasuredPlace, ...]:
        """Where its processes ran; without a fingerprint only GPUs' number and variables."""
        known = [one for one in self.results if one.environment] or list(self.results[:1])
        return tuple(identity.place_of(one) for one in known)


def find_golden(subject: Subject, goldens: Sequence[Golden]) -> Golden | None:
    """The golden of a workload: of the same GPUs rather than of others, of exactly this workload
    rather than of a part of it, measured rather than published. That a setting does not fit is
    known of its own GPUs only; a process that ran out of memory may not have said which."""
    gpus = subject.places[0].gpus

    def holds(golden: Golden) -> bool:
        theirs = golden.identity.full_gpus
        return golden.identity.holds_for(subject.results[0].trial["workload"]) and (
            gpus == theirs or "?" in gpus + theirs or golden.status is TrialStatus.OK
        )

    def preference(golden: Golden) -> tuple[bool, bool, bool, str]:
        return (
            golden.identity.full_gpus == gpus,
            golden.identity.workload_key is not None,
            golden.meta.provenance is Provenance.MEASURED,
            golden.meta.date,
        )

    return max(filter(holds, goldens), key=preference, default=None)


def _subjects(results: Sequence[TrialResult]) -> tuple[Subject, ...]:
    groups = by_workload(results)
    label = {key: identity.workload_label(own[0].trial["workload"]) for key, own in groups.items()}
    counts = Counter(label.values())
    label |= {key: f"{one}#{key}" for key, one in label.items() if counts[one] > 1}
    return tuple(
        Subject(key=key, label=label[key], results=tuple(own)) for key, own in groups.items()
    )


def _environment(subject: Subject, golden: Golden) -> EnvironmentChange:
    """Differences of any process, each once; without a fingerprint those of variables alone."""
    found = [one for place in subject.places for one in identity.differences(golden.place, place)]
    if not any(one.environment or one.status in _MEASURED for one in subject.results):
        found = [one for one in found if one.name.startswith(identity.VARIABLES)]
    return EnvironmentChange(
        label=subject.label,
        differences=tuple(dict.fromkeys(found)),
        unrecorded=identity.unrecorded(golden.place, subject.places[0]),
    )


def _rows(
    subject: Subject, golden: Golden | None, options: CompareOptions, goldens: Sequence[Golden]
) -> list[ComparisonRow]:
    """Everything that is to be said about one workload."""
    measured = tuple(one for one in subject.results if one.status in _MEASURED)
    others = [one for one in subject.results if one.status not in _MEASURED]
    rows = [_unmeasured(subject, one, golden) for one in others]
    if not measured:
        return list(dict.fromkeys(rows))
    if golden is None:
        return [*rows, _row(subject, Verdict.APPEARED, _no_golden(measured[0], goldens))]
    if golden.status is not TrialStatus.OK:
        what = "fits, but the golden says oom: record a new golden"
        return [*rows, _row(subject, Verdict.STALE, what)]
    change = _environment(subject, golden)
    if change.differences and not options.allow_env_change:
        names = ", ".join(one.name for one in change.differences)
        what = f"the environment differs in {names}; --allow-env-change compares anyway"
        return [*rows, _row(subject, Verdict.ENVIRONMENT, what)]
    return rows + measured_rows(subject.label, subject.key, measured, golden, options, goldens)


def _no_golden(result: TrialResult, goldens: Sequence[Golden]) -> str:
    """Why there is none: what differs from the workload of a golden of the same name, if any."""
    workload, what = flatten(result.trial["workload"]), "no golden"
    for one in (one.identity for one in goldens if one.identity.workload_key):
        pairs = ((key, value, workload.get(key)) for key, value in one.workload.items())
        found = [f"{key} is {new}, not {old}" for key, old, new in pairs if new != old]
        if one.label == identity.workload_label(workload) and found:
            what = f"no golden: in that of this name {', '.join(found[:3])}"
    return f"{what}; harness golden update adds one"


def _unmeasured(subject: Subject, result: TrialResult, golden: Golden | None) -> ComparisonRow:
    """A trial without numbers; out of memory is an answer, which a golden may expect."""
    what, held = f"{result.status}{describe(result)}", golden.status if golden else None
    if result.status is TrialStatus.SKIPPED:
        fitted = held is TrialStatus.OK
        return _row(subject, Verdict.VANISHED if fitted else Verdict.SKIPPED, what)
    if result.status is TrialStatus.OOM and held is None:
        return _row(subject, Verdict.APPEARED, f"{what}; no golden")
    if result.status is held is TrialStatus.OOM:
        return _row(subject, Verdict.PASS, "oom, as in the golden")
    if result.status in (TrialStatus.INCOMPLETE, TrialStatus.PRUNED):
        return _row(subject, Verdict.UNSTABLE, what)
    more = " (the golden fits)" if result.status is TrialStatus.OOM else ""
    return _row(subject, Verdict.FAILED, f"{what}{more}  {result.name}")


def _vanished(
    results: Sequence[TrialResult], goldens: Sequence[Golden], matched: Sequence[Golden]
) -> list[ComparisonRow]:
    """Measured goldens of the models and GPUs at hand that no result belongs to."""
    places = ((identity.place_of(one).gpus, one.trial["workload"]) for one in results)
    here = {_family(gpus, flatten(workload)) for gpus, workload in places if workload}
    seen = {id(golden) for golden in matched}
    return [
        ComparisonRow(
            golden.identity.label,
            golden.identity.workload_key or "",
            Verdict.VANISHED,
            reason=f"in the golden of {golden.meta.date}, but not in the results",
        )
        for golden in goldens
        if golden.meta.provenance is Provenance.MEASURED
        and _family(golden.identity.full_gpus, golden.identity.workload) in here
        and id(golden) not in seen
    ]


def _family(gpus: str, fields: Mapping[str, object]) -> tuple[str, str]:
    return gpus, str(fields.get("model.name"))


def _row(subject: Subject, verdict: Verdict, reason: str) -> ComparisonRow:
    return ComparisonRow(subject.label, subject.key, verdict, reason=reason)


def _distance(row: ComparisonRow) -> float:
    """How far a row is beyond its limit: the worst of a verdict comes first."""
    if row.change is None or not row.limit:
        return 0.0
    return abs(row.change) / abs(row.limit) if row.two_sided else row.change / row.limit
