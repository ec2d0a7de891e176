"""The page of `advise diagnose`: what was found, what its numbers say, where it was seen before."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from advisor.diagnose.catalog import EVIDENCE, Case
from advisor.diagnose.meaning import cases_of, meaning_of
from advisor.diagnose.out_of_memory import has_owner, verdict_of
from advisor.diagnose.scan import Diagnosis, Finding
from advisor.report.blocks import Block, Indented, Text, group, labelled_rows

_MARGIN: Final = 11


def diagnosis_page(diagnosis: Diagnosis, advise: str = "") -> Block:
    """A block for every finding, errors first; a line where nothing was found or the file is
    damaged. advise: the line that asks for a setting that fits."""
    findings = diagnosis.findings
    parts = [part for one in findings for part in ("", *_block(one, diagnosis.head))][1:]
    if not findings:
        parts = [f"no known failure in {diagnosis.num_lines:,} lines"]
    if advise:
        parts += ["", labelled_rows([("advise", Text(advise))], margin=_MARGIN + 2)]
    if diagnosis.damaged:
        parts.append("the file is damaged or cut short: the compressed rest was not read")
    return group(*parts)


def symptoms_page(symptoms: Sequence[Case], *, short: bool) -> Block:
    """Failures without a text: one line for each where they are listed, else all that is known."""
    parts: list[Block | str] = []
    for one in symptoms:
        parts.append(Text(f"{one.id}: {one.message}", "" if short else "bold"))
        parts += [] if short else [_indented(_case(one, alone=True)), ""]
    return group(*parts)


def _indented(rows: Iterable[tuple[str, str]]) -> Block:
    shown = ((label, Text(text)) for label, text in rows if text)
    return Indented(labelled_rows(shown, margin=_MARGIN), 2)


def _block(finding: Finding, head: str) -> Iterator[Block]:
    severity = "warning: " if finding.severity == "warning" else ""
    caught = "; caught, the run went on" if finding.went_on else ""
    yield Text(f"{_place(finding)}: {severity}{finding.failure.title}{caught}", "bold")
    yield _indented(_of_memory(finding, head) if has_owner(finding) else _of_others(finding, head))


def _of_memory(finding: Finding, head: str) -> Iterator[tuple[str, str]]:
    """Who asked for the memory and what frees it; nothing to fix where the program went on."""
    verdict = verdict_of(finding, head)
    yield from (("text", finding.excerpt), ("means", verdict.means), ("asked by", verdict.asked))
    if finding.went_on:
        return
    yield from (("then" if number else "fix", text) for number, text in enumerate(verdict.fix))
    for case in verdict.cases:
        yield from _case(case, alone=False)


def _of_others(finding: Finding, head: str) -> Iterator[tuple[str, str]]:
    """The known cases that are most like it."""
    meaning = meaning_of(finding, head)
    yield from (("text", finding.excerpt), ("means", meaning.text))
    cases = () if finding.went_on else cases_of(finding, meaning.when, head)
    for case in cases:
        yield from _case(case, alone=len(cases) == 1)


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


def _case(case: Case, *, alone: bool) -> Iterator[tuple[str, str]]:
    """A text's only case is its cause; one of several is a place where it was seen."""
    yield "seen in", f"{case.framework} {case.versions}: {case.context}"
    indent = "" if alone else "  "
    yield f"{indent}cause", case.cause
    yield f"{indent}fix", case.fix
    yield f"{indent}status", f"{EVIDENCE[case.evidence]} ({case.source})"
