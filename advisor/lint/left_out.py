"""What of a configuration is in no prediction: one state, which the findings and the verdict of
`advise lint` say as `--from` does."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from advisor.base.rule import Finding, Level, Verdict
from advisor.reading.read_configuration import Checked, ReadConfiguration, Untaken

NOT_MODELLED: Final = "not_modelled"
_MEASURE: Final = "measure what it does, or predict without it"


def with_left_out(checked: Checked) -> Checked:
    """With a finding on each option that is not modelled, and one on all that nobody knows; none on
    what the framework's own rules name there."""
    said = [(f.place, f.reason) for f in checked.findings if f.level is not Level.NOTE]
    untaken = [
        one
        for one in checked.configuration.untaken
        if isinstance(one, Untaken)
        and not any(one.place == place and _last(one) in reason for place, reason in said)
    ]
    return replace(checked, findings=(*checked.findings, *_findings(untaken)))


def _last(one: Untaken) -> str:
    return one.written.rpartition(".")[2]


def _findings(untaken: Sequence[Untaken]) -> Iterator[Finding]:
    for one in untaken:
        if not one.note and one.level is Level.NOTE:
            continue
        said = f"{one.written} = {one.value}" if str(one.value) else one.written
        reason = f"{said} is not modelled ({one.note}): no memory and time of it are predicted"
        if one.level is Level.NOTE:
            reason = f"{said}: {one.note}"
        elif not one.note:
            reason = f"{said} is not known here: no memory and time of it are predicted"
        warns = one.level is Level.WARNING
        yield Finding(
            rule=NOT_MODELLED,
            reason=reason,
            fix=_MEASURE,
            verdict=Verdict.NOT_MODELLED if warns else Verdict.NOTE,
            place=one.place,
        )
    if foreign := [one for one in untaken if not one.note and one.level is Level.NOTE]:
        names = ", ".join(dict.fromkeys(one.written for one in foreign))
        reason, fix = (
            f"not known here, and not read: {names}",
            "nothing, if they are of the program's own",
        )
        yield Finding(
            rule="not_known", reason=reason, fix=fix, verdict=Verdict.NOTE, place=foreign[0].place
        )


def left_out(read: ReadConfiguration, files: frozenset[str] = frozenset()) -> Iterator[str]:
    """In a word or two: what no prediction takes, and what was not read. files: names of those that
    were read besides."""
    for one in read.untaken:
        text = str(one.value)
        yield f"{one.written} {text}" if 0 < len(text) <= _LONGEST else one.written
    for unknown in read.unknown:
        if unknown.text not in ("", "auto") and Path(unknown.text).name not in files:
            yield f"{unknown.written} {unknown.text}"
    yield from (note.text for note in read.unread)


_LONGEST: Final = 40
