"""The page of `advise lint`: what was understood, and every finding with its fix and source."""

from collections.abc import Iterator, Sequence

from advisor.base.grouping import grouped
from advisor.base.rule import Finding, Level
from advisor.lint.target import LintReport
from advisor.reading.read_configuration import Checked
from advisor.report.blocks import Block, Span, Text, group, labelled_rows

_MARGIN = 7
_NOT_READ = "NOT READ"
_STYLES = {Level.ERROR: "bold red", Level.WARNING: "yellow", Level.NOTE: "dim"}


def lint_page(report: LintReport) -> Block:
    """A line on each configuration that was read, then a block a finding: level, rule and place,
    reason, fix, source; what could not be read comes last."""
    lines: list[Block] = [Text(line) for line in _heads(report)]
    lines += map(_finding, report.findings)
    if not report.findings:
        lines.append("OK       nothing to report")
    for note in report.notes:
        row = (_NOT_READ, Text(f"{note.place}: {note.text}"))
        lines.append(labelled_rows([row], margin=len(_NOT_READ)))
    return group(*lines)


def _heads(report: LintReport) -> Iterator[str]:
    """What was understood; with line and conditions where there is more than one thing."""
    groups = grouped(((one.understood, one.label), one) for one in report.checked)
    for (understood, label), members in groups.items():
        where = _where(members) if len(groups) > 1 else ""
        yield f"{report.target}{where}: {understood}, {label}"


def _where(members: Sequence[Checked]) -> str:
    """The first line, and the conditions that all of them share."""
    branches = [member.configuration.branch for member in members]
    shared = [text for text in branches[0] if all(text in branch for branch in branches)]
    conditions = f" ({', '.join(shared)})" if shared else ""
    return f":{members[0].configuration.place.line}{conditions}"


def _finding(finding: Finding) -> Block:
    source = f"  [{finding.source}]" if finding.source else ""
    rule = Text(finding.rule, _STYLES[finding.level], (Span(f"  {finding.place}"),))
    rows: list[tuple[str, Block]] = [
        (str(finding.level), rule),
        ("", Text(finding.reason)),
        ("  fix", Text(finding.fix, rest=(Span(source, "dim"),))),
    ]
    return labelled_rows(rows, margin=_MARGIN)
