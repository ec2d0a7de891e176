"""Comments that ignore findings: `# advise: ignore RULE, RULE`; `ignore-file` for all lines."""

import re
from collections.abc import Mapping, Sequence
from typing import Final

from msgspec.structs import replace

from advisor.base.place import Place
from advisor.base.rule import Finding, Verdict
from advisor.reading.read_configuration import Checked

_COMMENT: Final = re.compile(r"(?:^|\s)#\s*advise:\s*ignore(-file)?\s+([\w.]+(?:\s*,\s*[\w.]+)*)")


def without_ignored(
    checked: Sequence[Checked], texts: Mapping[str, str]
) -> tuple[tuple[Checked, ...], tuple[Finding, ...]]:
    """Configurations less what comments of their files ignore, which comes second. One that ignores
    nothing is itself a finding, of the first of them."""
    lines = {f: [x.rstrip("\r") for x in text.split("\n")] for f, text in texts.items()}
    every = {
        f: _lines_of(lines[f.place.file], f)
        for one in checked
        for f in one.findings
        if f.place.file in lines
    }
    ignored: dict[Finding, None] = {}
    unused: list[Finding] = []
    places = ((file, at, line) for file, own in lines.items() for at, line in enumerate(own, 1))
    for file, at, comment in ((f, n, one) for f, n, x in places for one in _COMMENT.finditer(x)):
        for rule in re.split(r"\s*,\s*", comment[2]):
            mine = ((f, its) for f, its in every.items() if f.rule == rule and f.place.file == file)
            found = [f for f, its in mine if comment[1] or at in its]
            ignored |= dict.fromkeys(found)
            unused += [] if found else [_unused(rule, Place(file, at, comment.start(2) + 1))]
    kept = [replace(c, findings=tuple(f for f in c.findings if f not in ignored)) for c in checked]
    kept[:1] = [replace(one, findings=(*one.findings, *unused)) for one in kept[:1]]
    return tuple(kept), tuple(sorted(ignored, key=lambda one: one.place))


def _unused(rule: str, place: Place) -> Finding:
    reason, fix = f"{rule} is not found here: nothing is ignored", "drop the comment"
    return Finding(rule="unused_ignore", verdict=Verdict.NOTE, reason=reason, fix=fix, place=place)


def _lines_of(lines: Sequence[str], finding: Finding) -> range:
    """Those whose comments count for it: of the whole command, and the comments above it."""
    first = last = finding.place.line
    while first > 1 and lines[first - 2].endswith("\\"):
        first -= 1
    while last < len(lines) and lines[last - 1].endswith("\\"):
        last += 1
    while first > 1 and lines[first - 2].lstrip().startswith("#"):
        first -= 1
    return range(first, last + 1)
