"""What of a configuration is in no prediction: one state, which the findings and the verdict of
`advise lint` say as `--from` does."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from advisor.base.rule import Finding, Level, Verdict
from advisor.reading.python_source import text_of
from advisor.reading.read_configuration import Checked, ReadConfiguration, ReadValue, Untaken

NOT_MODELLED: Final = "not_modelled"
_LONGEST: Final = 40


def with_left_out(checked: Checked) -> Checked:
    """With a finding on each option that is not modelled, and one on all that nobody knows; none on
    what the framework's own rules name there."""
    said = [f for f in checked.findings if f.level is not Level.NOTE]
    untaken = [
        one
        for one in checked.configuration.untaken
        if isinstance(one, Untaken) and not any(_is_about(finding, one) for finding in said)
    ]
    foreign = [one for one in untaken if not one.note and one.level is Level.NOTE]
    found = [_finding(one) for one in untaken if one not in foreign]
    if foreign:
        names = ", ".join(dict.fromkeys(one.written for one in foreign))
        note = replace(_finding(foreign[0]), rule="not_known", fix="nothing, if a program has them")
        found.append(replace(note, reason=f"not known here, and not read: {names}"))
    return replace(checked, findings=(*checked.findings, *found))


def _is_about(finding: Finding, one: Untaken) -> bool:
    names = one.written.lstrip("-").split(".")
    return finding.place == one.place and any(name in finding.reason for name in names)


def _finding(one: Untaken) -> Finding:
    said, warns = _words(one), one.level is Level.WARNING
    lacks = f"is not modelled ({one.note})" if one.note else "is not known here"
    return Finding(
        rule=NOT_MODELLED,
        reason=f"{said} {lacks}: no prediction includes it" if warns else f"{said}: {one.note}",
        fix="measure what it does, or predict without it",
        verdict=Verdict.NOT_MODELLED if warns else Verdict.NOTE,
        place=one.place,
    )


def _words(one: ReadValue) -> str:
    items = one.value if isinstance(one.value, list | tuple) else (one.value,)
    text = " ".join(map(text_of, items))
    return f"{one.written} = {text}" if 0 < len(text) <= _LONGEST else one.written


def left_out(read: ReadConfiguration, files: frozenset[str] = frozenset()) -> Iterator[str]:
    """In a word or two: what no prediction takes, and what was not read. files: names of those that
    were read besides."""
    yield from map(_words, read.untaken)
    for unknown in read.unknown:
        if unknown.text not in ("", "auto") and Path(unknown.text).name not in files:
            yield f"{unknown.written} = {unknown.text}".removeprefix(" = ")
    yield from (one.text for one in read.unread if Path(one.text).name not in files)
