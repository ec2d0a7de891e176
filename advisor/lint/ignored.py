"""`# advise: ignore RULE, RULE` on a finding's line or the one before it, `ignore-file` anywhere."""

import re
from collections.abc import Sequence
from typing import Final

from msgspec.structs import replace

from advisor.base.place import Place
from advisor.base.rule import Finding, Verdict
from advisor.reading.read_configuration import Checked

_COMMENT: Final = re.compile(
    r"(?:^|\s)#\s*advise:\s*ignore(?P<file>-file)?\s+(?P<rules>[\w.]+(?:\s*,\s*[\w.]+)*)"
)


def without_ignored(
    checked: Sequence[Checked], file: str, text: str
) -> tuple[tuple[Checked, ...], tuple[Finding, ...]]:
    """Configurations less what comments of a file ignore, which comes second. A comment that
    ignores nothing is itself found, in the first of them."""
    lines = text.splitlines()
    said = {at: found for at, line in enumerate(lines, 1) if (found := _COMMENT.search(line))}
    ignored: dict[Finding, None] = {}
    used: set[tuple[int, str]] = set()
    for finding in (f for one in checked for f in one.findings if f.place.file == file):
        for at, comment in said.items():
            covers = comment["file"] or at in _lines_of(lines, finding.place.line)
            if covers and finding.rule in re.split(r"\s*,\s*", comment["rules"]):
                ignored[finding] = None
                used.add((at, finding.rule))
    unused = tuple(
        Finding(
            rule="unused_ignore",
            verdict=Verdict.NOTE,
            reason=f"{rule} is not found here: nothing is ignored",
            fix="drop the comment",
            place=Place(file, at, comment.start("rules") + 1),
        )
        for at, comment in said.items()
        for rule in re.split(r"\s*,\s*", comment["rules"])
        if (at, rule) not in used
    )
    kept = [replace(c, findings=tuple(f for f in c.findings if f not in ignored)) for c in checked]
    kept[:1] = [replace(one, findings=(*one.findings, *unused)) for one in kept[:1]]
    return tuple(kept), tuple(ignored)


def _lines_of(lines: Sequence[str], at: int) -> range:
    """Those whose comments count for a line: the whole of a command that goes on over several, and
    the comments above it."""
    first = last = at
    while first > 1 and lines[first - 2].endswith("\\"):
        first -= 1
    while last < len(lines) and lines[last - 1].endswith("\\"):
        last += 1
    while first > 1 and lines[first - 2].lstrip().startswith("#"):
        first -= 1
    return range(first, last + 1)
