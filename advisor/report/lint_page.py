"""The page of `advise lint`: what was understood, and every finding with its fix and source."""

from rich.console import Group, RenderableType
from rich.text import Text

from advisor.frameworks.megatron.lint import Level, LintReport, level_of, understood
from advisor.frameworks.megatron.rules import Finding
from advisor.report.text import beside

_MARGIN = 9
_STYLES = {Level.ERROR: "bold red", Level.WARNING: "yellow", Level.NOTE: "dim"}


def lint_page(report: LintReport) -> RenderableType:
    """A line on what was read, then a block a finding: level and rule, reason, fix, source."""
    head = f"{report.target}: {understood(report.settings)}, {report.revision.label}"
    if not report.findings:
        return Group(Text(head), "OK       nothing to report")
    return Group(Text(head), *map(_finding, report.findings))


def _finding(finding: Finding) -> RenderableType:
    level = level_of(finding)
    source = f"  [{finding.source}]" if finding.source else ""
    rows: list[tuple[str, RenderableType]] = [
        (str(level), Text(finding.rule, _STYLES[level])),
        ("", Text(finding.reason)),
        ("  fix", Text.assemble(finding.fix, (source, "dim"))),
    ]
    return beside(rows, margin=_MARGIN - 2)
