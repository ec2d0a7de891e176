"""The known failures: texts, causes and fixes, read from configs/failures."""

import re
from enum import StrEnum
from functools import cache, cached_property
from typing import Final

from msgspec import Struct, convert

from advisor.base.configuration import SUFFIX, load_yaml, packaged_configs
from advisor.base.limits import LARGEST

_PLACEHOLDER: Final = re.compile(r"<(\w*):(\w+)>")
SIZE: Final = r"\d[\d.]* (?:bytes|[KMGT]iB)"
_TYPES: Final = {
    "int": r"-?\d+",
    "size": SIZE,
    "word": r"[^\s,;]+",
    "dotted": r"\w+(?:\.\w+)+",
    "shape": r"torch\.Size\(\[[\d, ]*\]\)",
    "set": r"\{[^}]*\}",
    "gap": r".{0,600}?",
    "blank": r" ",  # ends the anchor where the log has several blanks
}
_BYTES: Final = {"bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}

# A message starts a line or follows a blank, never a quote: tracebacks echo the source line that
# raises it, with the quote before it and the f-string's braces in it.
_NOT_QUOTED: Final = r"""(?<![\w.'"`])"""
_ANCHOR_LENGTH: Final = 28


class Reading(Struct, frozen=True, kw_only=True):
    """One value read out of a message; `value` is bytes for a size, None for what is no number."""

    name: str
    text: str
    value: float | None


class Template(Struct, frozen=True, kw_only=True, dict=True):
    """One text of a failure.

    anchor: the first characters of the text, which must stand on the line where it begins.
    """

    text: str

    @cached_property
    def regex(self) -> re.Pattern[str]:
        """The text with its placeholders as groups, anchored where a message may start."""
        return re.compile(_NOT_QUOTED + _translate(self.text))

    @cached_property
    def anchor(self) -> str:
        """Literal beginning of the text, cut short so that a wrapped line still holds it."""
        literal = _PLACEHOLDER.split(self.text, maxsplit=1)[0]
        if literal:
            return literal[:_ANCHOR_LENGTH].rstrip()
        return _PLACEHOLDER.sub("", self.text, count=1)[:_ANCHOR_LENGTH].strip()

    @property
    def specificity(self) -> int:
        """Literal characters: the longer text is tried first."""
        return len(_PLACEHOLDER.sub("", self.text))

    def readings(self, match: re.Match[str]) -> tuple[Reading, ...]:
        """The named placeholders of a match, in the order of the text."""
        return tuple(_read(name, text) for name, text in match.groupdict().items())


def _translate(text: str) -> str:
    parts, end = [], 0
    for match in _PLACEHOLDER.finditer(text):
        name, kind = match.groups()
        parts.append(re.escape(text[end : match.start()]))
        parts.append(f"(?P<{name}>{_TYPES[kind]})" if name else f"(?:{_TYPES[kind]})")
        end = match.end()
    return "".join([*parts, re.escape(text[end:])])


def size_bytes(text: str) -> int | None:
    """Bytes of ``1.96 GiB``; None of what is no size, or none that a device has."""
    value = _read("", text).value
    return None if value is None else round(value)


def _read(name: str, text: str) -> Reading:
    """The number that a text gives: bytes of ``1.96 GiB``, 8 of ``8``, None of a name."""
    text = text.rstrip(".:")
    amount, _, unit = text.partition(" ")
    try:
        value = float(amount) * _BYTES.get(unit, 1)
    except ValueError:
        return Reading(name=name, text=text, value=None)
    if abs(value) > LARGEST:  # no size and no count: garbage, or two numbers written into one
        return Reading(name=name, text=text, value=None)
    return Reading(name=name, text=text, value=round(value) if unit else value)


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


class Case(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
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


class Failure(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, dict=True):
    """One recognisable failure: its texts, with placeholders, and where it was seen. `meaning` is a
    sentence with the names of readings in braces. memory: where it ran out (`gpu`: as the traceback
    tells), empty where none did."""

    id: str
    title: str
    texts: tuple[str, ...]
    cases: tuple[Case, ...]
    severity: Severity = Severity.ERROR
    meaning: str = ""
    memory: str = ""

    @cached_property
    def templates(self) -> tuple[Template, ...]:
        """Its texts as they are looked for."""
        return tuple(Template(text=text) for text in self.texts)


@cache
def load_catalog() -> tuple[Failure, ...]:
    """Everything that a log shows, in the order of the files; UserError or msgspec's
    ValidationError on a broken one."""
    files = sorted((packaged_configs() / "failures").glob(f"*{SUFFIX}"))
    known = (convert(load_yaml(one).values.get("failures", []), list[Failure]) for one in files)
    return tuple(failure for of_file in known for failure in of_file)
