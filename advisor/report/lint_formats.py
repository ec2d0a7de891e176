"""Findings for other programs: JSON, SARIF 2.1.0 (GitHub's code scanning, GitLab), GitHub's
workflow commands, JUnit."""

import json
from collections.abc import Iterable
from urllib.parse import quote

from msgspec import Struct
from msgspec.structs import asdict

from advisor.base.junit import Case, junit
from advisor.base.plain_json import to_text
from advisor.base.rule import Finding, Level
from advisor.lint.target import LintReport


class LintedFinding(Struct, frozen=True, kw_only=True):
    """A finding. level: ERROR, WARNING or NOTE. line and column count from 1; ignored: by a comment
    in the file."""

    level: str
    rule: str
    verdict: str
    reason: str
    fix: str
    source: str
    file: str
    line: int
    column: int
    ignored: bool = False

    @property
    def message(self) -> str:
        """Reason and fix."""
        return f"{self.reason}; fix: {self.fix}" if self.fix else self.reason


class Linted(Struct, frozen=True, kw_only=True):
    """What `advise lint --format json` prints. not_read: parts of files, with their places."""

    schema_version: int = 1
    files: tuple[str, ...]
    findings: tuple[LintedFinding, ...]
    not_read: tuple[str, ...]


def linted(reports: Iterable[LintReport]) -> Linted:
    """Everything that reports say."""
    files, findings, notes = [], [], []
    for report in reports:
        files.append(report.target)
        findings += [_linted(one) for one in report.findings]
        findings += [_linted(one, ignored=True) for one in report.ignored]
        notes += [f"{note.place}: {note.text}" for note in report.notes]
    return Linted(files=tuple(files), findings=tuple(findings), not_read=tuple(notes))


def _linted(found: Finding, *, ignored: bool = False) -> LintedFinding:
    place = asdict(found.place)
    texts = {name: getattr(found, name) for name in ("rule", "reason", "fix", "source")}
    return LintedFinding(
        level=str(found.level), verdict=str(found.verdict), ignored=ignored, **texts, **place
    )


def as_github(found: Linted) -> str:
    """Annotations of a pull request. Source: actions/toolkit packages/core/src/command.ts."""
    return "".join(
        f"::{_GITHUB[one.level]} file={_property(one.file)},line={one.line},col={one.column},"
        f"title={_property(one.rule)}::{_data(one.message)}\n"
        for one in found.findings
        if not one.ignored
    )


_GITHUB = {"ERROR": "error", "WARNING": "warning", "NOTE": "notice"}


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


def as_junit(found: Linted) -> str:
    """A case a finding, skipped where it is a note or ignored; one that passes a clean file."""
    cases = []
    for one in found.findings:
        tag = "skipped" if one.ignored or one.level == Level.NOTE else "failure"
        name = f"{one.rule} in line {one.line}"
        cases.append(Case(one.file, name, one.message, tag, one.verdict))
    clean = [file for file in found.files if all(case.subject != file for case in cases)]
    return junit("advise lint", [*cases, *(Case(file, "lint", "clean") for file in clean)])


def as_sarif(found: Linted) -> str:
    """One run with a result a finding. Source: OASIS sarif-v2.1.0-errata01; ignored findings are
    suppressed in the source."""
    rules: dict[str, LintedFinding] = {}
    for one in found.findings:
        rules.setdefault(one.rule, one)
    driver = {
        "name": "recompute-advisor",
        "rules": [
            {
                "id": name,
                "shortDescription": {"text": name},
                "fullDescription": {"text": one.reason},
                "help": {"text": f"{one.fix}\n{one.source}".strip() or one.reason},
                "defaultConfiguration": {"level": _SARIF[one.level]},
            }
            for name, one in rules.items()
        ],
    }
    results = [
        {
            "ruleId": one.rule,
            "ruleIndex": list(rules).index(one.rule),
            "level": _SARIF[one.level],
            "message": {"text": one.message},
            "locations": [
                {
                    "physicalLocation": {
                        "artifactLocation": {"uri": quote(one.file)},
                        "region": {"startLine": one.line, "startColumn": one.column},
                    }
                }
            ],
            **({"suppressions": [{"kind": "inSource"}]} if one.ignored else {}),
        }
        for one in found.findings
    ]
    run = {"tool": {"driver": driver}, "columnKind": "unicodeCodePoints", "results": results}
    log = {"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]}
    return json.dumps(log, ensure_ascii=False, indent=2) + "\n"


_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
_SARIF = {"ERROR": "error", "WARNING": "warning", "NOTE": "note"}
FORMATS = {"json": to_text, "sarif": as_sarif, "github": as_github, "junit": as_junit}
