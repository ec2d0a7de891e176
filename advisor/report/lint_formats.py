"""Findings for other programs: JSON, SARIF 2.1.0 (GitHub's code scanning, GitLab), GitHub's
workflow commands, JUnit."""

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final
from urllib.parse import quote

from msgspec import Struct

from advisor.base.junit import Case, junit
from advisor.base.plain_json import to_text
from advisor.base.rule import Finding, Level
from advisor.lint.target import LintReport
from advisor.reading.shell import Note


class LintedFile(Struct, frozen=True):
    """The findings of a file by their level; ignored: by comments in it; not_read: parts of it."""

    file: str
    errors: tuple[Finding, ...]
    warnings: tuple[Finding, ...]
    notes: tuple[Finding, ...]
    ignored: tuple[Finding, ...]
    not_read: tuple[Note, ...]


class Linted(Struct, frozen=True, kw_only=True):
    """What `advise lint --format json` prints. Places: line and column count from 1."""

    schema_version: int = 1
    files: tuple[LintedFile, ...]


def as_json(reports: Sequence[LintReport]) -> str:
    """Strict JSON, as lint.schema.json describes it."""
    files = []
    for one in reports:
        bad, warned, noted = (tuple(f for f in one.findings if f.level is at) for at in Level)
        files.append(LintedFile(one.target, bad, warned, noted, one.ignored, one.notes))
    return to_text(Linted(files=tuple(files)))


def _all(reports: Sequence[LintReport]) -> Iterator[tuple[Finding, bool]]:
    """Every finding, and whether it is ignored."""
    for report in reports:
        yield from ((one, False) for one in report.findings)
        yield from ((one, True) for one in report.ignored)


def _message(finding: Finding) -> str:
    return f"{finding.reason}; fix: {finding.fix}" if finding.fix else finding.reason


def as_github(reports: Sequence[LintReport]) -> str:
    """Annotations of a pull request. Source: actions/toolkit packages/core/src/command.ts."""
    lines = []
    for one, ignored in _all(reports):
        kind = {Level.NOTE: "notice"}.get(one.level, one.level.lower())
        file, title = (
            _escaped(t).replace(":", "%3A").replace(",", "%2C") for t in (one.place.file, one.rule)
        )
        where = f"file={file},line={one.place.line},col={one.place.column},title={title}"
        lines += [] if ignored else [f"::{kind} {where}::{_escaped(_message(one))}\n"]
    return "".join(lines)


def _escaped(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def as_junit(reports: Sequence[LintReport]) -> str:
    """A case a finding, skipped where it is a note or ignored; one that passes a clean file."""
    cases = [
        Case(one.target, "lint", "clean") for one in reports if not (one.findings or one.ignored)
    ]
    for one, ignored in _all(reports):
        tag = "skipped" if ignored or one.level is Level.NOTE else "failure"
        name = f"{one.rule} in line {one.place.line}"
        cases.append(Case(one.place.file, name, _message(one), tag, str(one.verdict)))
    return junit("advise lint", cases)


def as_sarif(reports: Sequence[LintReport]) -> str:
    """One run, a result a finding; those ignored are suppressed. Source: OASIS SARIF 2.1.0."""
    rules: dict[str, Any] = {}
    results = []
    for one, ignored in _all(reports):
        texts = {
            "shortDescription": one.rule,
            "fullDescription": one.reason,
            "help": one.fix or one.reason,
        }
        level = one.level.lower()
        rules.setdefault(
            one.rule,
            {
                "id": one.rule,
                "defaultConfiguration": {"level": level},
                **{name: {"text": text} for name, text in texts.items()},
            },
        )
        region = {"startLine": one.place.line, "startColumn": one.place.column}
        place = {"artifactLocation": {"uri": quote(one.place.file)}, "region": region}
        results.append(
            {
                "ruleId": one.rule,
                "level": level,
                "message": {"text": _message(one)},
                "locations": [{"physicalLocation": place}],
                "suppressions": [{"kind": "inSource"}] * ignored,
            }
        )
    driver = {"name": "recompute-advisor", "rules": [*rules.values()]}
    run = {"tool": {"driver": driver}, "columnKind": "unicodeCodePoints", "results": results}
    log = {"$schema": _SARIF, "version": "2.1.0", "runs": [run]}
    return json.dumps(log, ensure_ascii=False, indent=2) + "\n"


_SARIF: Final = "https://json.schemastore.org/sarif-2.1.0.json"
FORMATS: Final[dict[str, Callable[[Sequence[LintReport]], str]]] = {
    "json": as_json,
    "sarif": as_sarif,
    "github": as_github,
    "junit": as_junit,
}
