"""Findings for other programs: JSON, SARIF 2.1.0, GitHub's workflow commands, JUnit."""

import json
from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import quote

from advisor.base.junit import Case, junit
from advisor.base.plain_json import to_plain
from advisor.base.rule import Level
from advisor.lint.target import LintReport

_TEXTS: Final = ("level", "rule", "verdict", "reason", "fix", "source")


def _rows(reports: Sequence[LintReport]) -> list[dict[str, Any]]:
    """A row for each finding, and for each that a comment ignores."""
    every = [(one, False) for report in reports for one in report.findings]
    every += [(one, True) for report in reports for one in report.ignored]
    texts = ({name: str(getattr(one, name)) for name in _TEXTS} for one, _ in every)
    pairs = zip(every, texts, strict=True)
    rows = [said | to_plain(one.place) | {"ignored": ignored} for (one, ignored), said in pairs]
    return list({str(row): row for row in rows}.values())  # a script names a file of the folder


def _message(row: dict[str, Any]) -> str:
    return f"{row['reason']}; fix: {row['fix']}" if row["fix"] else str(row["reason"])


def _as_json(reports: Sequence[LintReport]) -> dict[str, Any]:
    """What lint.schema.json describes."""
    notes = [to_plain(note) for report in reports for note in report.notes]
    files = [report.target for report in reports]
    return {"schema_version": 1, "files": files, "findings": _rows(reports), "not_read": notes}


def _as_github(reports: Sequence[LintReport]) -> str:
    """Annotations of a pull request. Source: actions/toolkit packages/core/src/command.ts."""
    lines = []
    for row in _rows(reports):
        kind = {"NOTE": "notice"}.get(row["level"], row["level"].lower())
        file, title = (
            _escaped(row[k]).replace(":", "%3A").replace(",", "%2C") for k in ("file", "rule")
        )
        where = f"file={file},line={row['line']},col={row['column']},title={title}"
        lines += [] if row["ignored"] else [f"::{kind} {where}::{_escaped(_message(row))}\n"]
    return "".join(lines)


def _escaped(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _as_junit(reports: Sequence[LintReport]) -> str:
    """A case a finding, skipped where it is a note or ignored; one that passes a clean file."""
    cases = [Case(one.target, "lint", "clean") for one in reports if not one.findings]
    for row in _rows(reports):
        tag = "skipped" if row["ignored"] or row["level"] == Level.NOTE else "failure"
        name = f"{row['rule']} in line {row['line']}"
        cases.append(Case(row["file"], name, _message(row), tag, row["verdict"]))
    return junit("advise lint", cases)


def _as_sarif(reports: Sequence[LintReport]) -> dict[str, Any]:
    """One run, a result a finding; those ignored are suppressed. Source: OASIS SARIF 2.1.0."""
    rules: dict[str, Any] = {}
    results = []
    for row in _rows(reports):
        name, level = row["rule"], row["level"].lower()
        texts = {"shortDescription": name, "fullDescription": row["reason"], "help": _message(row)}
        rule = {"id": name, "defaultConfiguration": {"level": level}}
        rules.setdefault(name, rule | {key: {"text": text} for key, text in texts.items()})
        region = {"startLine": row["line"], "startColumn": row["column"]}
        place = {"artifactLocation": {"uri": quote(row["file"])}, "region": region}
        result = {"ruleId": name, "level": level, "message": {"text": _message(row)}}
        result["locations"] = [{"physicalLocation": place}]
        results.append(result | {"suppressions": [{"kind": "inSource"}] * row["ignored"]})
    driver = {"name": "recompute-advisor", "rules": [*rules.values()]}
    run = {"tool": {"driver": driver}, "columnKind": "unicodeCodePoints", "results": results}
    schema = "https://json.schemastore.org/sarif-2.1.0.json"
    return {"$schema": schema, "version": "2.1.0", "runs": [run]}


_FORMATS: Final = {"json": _as_json, "sarif": _as_sarif, "github": _as_github, "junit": _as_junit}


def formatted(reports: Sequence[LintReport], name: str) -> str:
    """Reports in a format, by its name."""
    found = _FORMATS[name](reports)
    if isinstance(found, str):
        return found
    return json.dumps(found, ensure_ascii=False, indent=2) + "\n"
