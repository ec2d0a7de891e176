"""The known failures: texts, causes and fixes, read from configs/failures."""

from enum import StrEnum
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from advisor.base.configuration import SUFFIX, load_yaml, packaged_configs
from advisor.diagnose.template import Template


class Severity(StrEnum):
    """Whether the text ends a run or only tells that a setting does not act as hoped."""

    ERROR = "error"
    WARNING = "warning"


class Evidence(StrEnum):
    """How well a case is known, best first."""

    RAN = "ran"
    SOURCE = "source"
    FIX_MERGED = "fix merged"
    MAINTAINER = "maintainer"
    FIX = "fix"
    FIX_OPEN = "fix open"
    REPORTER = "reporter"
    WEAK = "weak"

    @property
    def meaning(self) -> str:
        """The level in words."""
        return _EVIDENCE[self]

    @property
    def rank(self) -> int:
        """0 for the best evidence."""
        return list(Evidence).index(self)


_EVIDENCE: Final = {
    Evidence.RAN: "reproduced with the real code",
    Evidence.SOURCE: "read in the source",
    Evidence.FIX_MERGED: "a fix is merged",
    Evidence.MAINTAINER: "stated by a maintainer",
    Evidence.FIX: "a fix exists; whether it is merged is not known",
    Evidence.FIX_OPEN: "a fix is proposed",
    Evidence.REPORTER: "stated by the reporter",
    Evidence.WEAK: "weak: one unconfirmed report",
}


class Case(Struct, frozen=True, kw_only=True):
    """One real occurrence: where a text was seen, why, and what helped.

    when: the reading of the numbers for which the case is meant (advisor/diagnose/meaning.py);
    empty where the text alone decides.
    """

    id: str
    framework: str
    versions: str
    kind: str
    message: str
    context: str
    cause: str
    fix: str
    source: str
    evidence: Evidence
    when: str = ""


class Failure(Struct, frozen=True, kw_only=True):
    """One recognisable failure. `meaning` is a sentence with the names of readings in braces."""

    id: str
    title: str
    severity: Severity
    templates: tuple[Template, ...]
    meaning: str
    cases: tuple[Case, ...]


class Symptom(Struct, frozen=True, kw_only=True):
    """Something that goes wrong without a message, so that no log can show it."""

    id: str
    framework: str
    versions: str
    kind: str
    symptom: str
    context: str
    cause: str
    fix: str
    source: str
    evidence: Evidence


class Catalog(Struct, frozen=True, kw_only=True):
    """Everything that is known, in the order of the files."""

    failures: tuple[Failure, ...]
    symptoms: tuple[Symptom, ...]


@lru_cache(maxsize=4)
def load_catalog(directory: Path | None = None) -> Catalog:
    """All files of a directory; UserError, KeyError, TypeError or ValueError on a broken one."""
    failures: list[Failure] = []
    symptoms: list[Symptom] = []
    folder = directory or packaged_configs() / "failures"
    for path in sorted(folder.glob(f"*{SUFFIX}")):
        document: dict[str, Any] = load_yaml(path).values
        failures += [_failure(entry) for entry in document.get("failures", ())]
        symptoms += [Symptom(**_typed(entry)) for entry in document.get("symptoms", ())]
    return Catalog(failures=tuple(failures), symptoms=tuple(symptoms))


def symptoms() -> tuple[Symptom, ...]:
    """The failures without a message."""
    return load_catalog().symptoms


def _failure(entry: dict[str, Any]) -> Failure:
    return Failure(
        id=entry["id"],
        title=entry["title"],
        severity=Severity(entry.get("severity", Severity.ERROR)),
        templates=tuple(Template(text=text) for text in entry["texts"]),
        meaning=entry.get("meaning", ""),
        cases=tuple(Case(**_typed(case)) for case in entry["cases"]),
    )


def _typed(entry: dict[str, Any]) -> dict[str, Any]:
    return {**entry, "evidence": Evidence(entry["evidence"])}
