"""The pages of `advise lint` (what was understood, and every finding), `advise rules` (what a
release accepts and refuses) and `advise keys` (every KEY, and the options that mean the same)."""

from collections.abc import Collection, Iterator, Mapping, Sequence

from advisor.base.errors import UserError
from advisor.base.grouping import grouped
from advisor.base.rule import Finding, Level
from advisor.base.units import counted
from advisor.frameworks.part_types import RulesOverview
from advisor.lint.target import LintReport
from advisor.reading.read_configuration import Checked
from advisor.report.blocks import Block, Indented, Span, Text, group, labelled_rows
from advisor.request.given import known_keys

_MARGIN = 7
_STYLES = {Level.ERROR: "bold red", Level.WARNING: "yellow", Level.NOTE: "dim"}


def lint_page(report: LintReport, *, fixed: bool = False) -> Block:
    """A line on each configuration that was read, then a block a finding: level, rule and place,
    reason, fix, source; what could not be read comes last. fixed: what is left had no fix."""
    lines: list[Block] = [Text(line) for line in _heads(report)]
    lines += (_finding(one, "  (no automatic fix)" * fixed) for one in report.findings)
    for note in report.notes:
        text = Text(f"{note.place}: {note.text}")
        lines.append(labelled_rows([("NOT READ", text)], margin=len("NOT READ")))
    if report.ignored:
        lines.append(f"IGNORED  {counted(len(report.ignored), 'finding')}, by comments in the file")
    if report.verdict:
        lines.append(Text(report.verdict))
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


def _finding(finding: Finding, remark: str) -> Block:
    source = (f"  [{finding.source}]" if finding.source else "") + remark
    rule = Text(finding.rule, _STYLES[finding.level], (Span(f"  {finding.place}"),))
    fix = Text(finding.fix, rest=(Span(source, "dim"),))
    rows = [(str(finding.level), rule), ("", Text(finding.reason)), ("  fix", fix)]
    return labelled_rows(rows, margin=_MARGIN)


_WIDE_MARGIN = 18


def rules_page(overview: RulesOverview, word: str = "") -> Block:
    """What a release takes, and its rules by heading; of a word those that hold it, UserError where
    none does."""
    rules = [rule for rule in overview.rules if word.lower() in " ".join(rule).lower()]
    if not rules:
        relation = f"matches no rule of {overview.label}"
        raise UserError("rules", word, relation, "advise rules lists them all")
    parts: list[Block] = [] if word else ["", labelled_rows(overview.facts, margin=_WIDE_MARGIN)]
    for heading in dict.fromkeys(heading for heading, _, _ in rules):
        of_kind = [(name, text) for one, name, text in rules if one == heading]
        if heading:
            parts += ["", f"{heading} ({len(of_kind)})", Indented(labelled_rows(of_kind), 2)]
        else:
            for name, text in of_kind:
                parts += ["", name, Indented(text, 2)]
    return group(f"{overview.label}: {counted(len(rules), 'rule')}", *parts)


def keys_page(options: Mapping[str, Collection[str]], word: str = "") -> Block:
    """Each KEY with its default, what it takes, and the framework's `options` that mean it; of a
    word those that hold it, UserError where none does."""
    parts: list[Block] = []
    for known in known_keys():
        own = options.get(known.key, ())
        head = f"{known.key}={known.default}" if known.default else known.key
        text = f"{known.takes}: {', '.join(own)}" if own else known.takes
        if word.lower() in f"{head} {text}".lower():
            parts += [head, Indented(text, 2)]
    if not parts:
        raise UserError("keys", word, "matches no KEY", "advise keys lists them all")
    return group(*parts)
