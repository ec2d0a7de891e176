"""The findings as text for a terminal of 100 columns."""

from collections.abc import Iterator, Sequence
from textwrap import wrap
from typing import Final

from advisor.diagnose.catalog import Case, Severity
from advisor.diagnose.meaning import meaning_of
from advisor.diagnose.scan import Finding

_WIDTH: Final = 100
_LABEL: Final = 11
_MAX_CASES: Final = 5


def render(findings: Sequence[Finding], num_lines: int | None = None) -> str:
    """One block for every finding, errors first; a single line where nothing was found."""
    if not findings:
        lines = "" if num_lines is None else f" in {num_lines:,} lines"
        return f"no known failure{lines}"
    return "\n\n".join("\n".join(_block(finding)) for finding in findings)


def _block(finding: Finding) -> Iterator[str]:
    severity = "warning: " if finding.failure.severity is Severity.WARNING else ""
    yield from wrap(f"{_place(finding)}: {severity}{finding.failure.title}", _WIDTH)
    yield from _labelled("text", finding.excerpt)
    meaning = meaning_of(finding)
    yield from _labelled("means", meaning.text)
    yield from _labelled("fix", meaning.fix)
    cases = _relevant(finding.failure.cases, meaning.when)
    for case in cases[:_MAX_CASES]:
        yield from _case(case, alone=len(finding.failure.cases) == 1)
    if len(cases) > _MAX_CASES:
        yield from _labelled("", f"… and {len(cases) - _MAX_CASES} more known cases of this text")


def _place(finding: Finding) -> str:
    """Where it came first and how often: ``line 12, rank 3 (8 times, ranks 0, 1, 3)``."""
    place = f"line {finding.line_number:,}"
    if finding.rank is not None:
        place += f", rank {finding.rank}"
    if finding.occurrences == 1:
        return place
    shown = ", ".join(str(rank) for rank in finding.ranks[:8])
    more = ", …" if len(finding.ranks) > 8 else ""
    ranks = f", ranks {shown}{more}" if len(finding.ranks) > 1 else ""
    return f"{place} ({finding.occurrences} times{ranks})"


def _relevant(cases: Sequence[Case], when: str) -> list[Case]:
    """The cases that the reading of the numbers leaves, the best known first."""
    chosen = [case for case in cases if not when or case.when in ("", when)]
    return sorted(chosen, key=lambda case: (case.when != when, case.evidence.rank))


def _case(case: Case, *, alone: bool) -> Iterator[str]:
    """A text's only case is its cause; one of several is a place where it was seen."""
    where = f"{case.framework} {case.versions}: {case.context}"
    known = f"{case.evidence.meaning} ({case.source})"
    yield from _labelled("seen in", where)
    yield from _labelled("cause" if alone else "  cause", case.cause)
    yield from _labelled("fix" if alone else "  fix", case.fix)
    yield from _labelled("known" if alone else "  known", known)


def _labelled(label: str, text: str) -> list[str]:
    """Text in a column beside its label; nothing for an empty text."""
    lines = wrap(text, _WIDTH - _LABEL - 2, break_on_hyphens=False)
    indent = " " * (_LABEL + 2)
    first = f"  {label:<{_LABEL}}"
    return [(first if i == 0 else indent) + line for i, line in enumerate(lines)]
