"""The known failures: texts, causes and fixes, read from configs/failures."""

import re
from contextlib import suppress
from functools import cache, cached_property
from importlib import import_module
from typing import Final, Literal

from msgspec import Struct, convert
from msgspec.structs import replace

from advisor.base.configuration import SUFFIX, load_yaml, packaged_configs
from advisor.base.limits import LARGEST

PLACEHOLDER: Final = re.compile(r"<(\w*):(\w+)>")
SIZE: Final = r"\d[\d.]* (?:bytes|[KMGT]iB)"
_TYPES: Final = {
    "int": r"-?\d+",
    "size": SIZE,
    "word": r"[^\s,;]+",
    "plain": r"[\w.]+",
    "some": r"[1-9]\d*",
    "dotted": r"\w+(?:\.\w+)+",
    "shape": r"torch\.Size\(\[[\d, ]*\]\)",
    "set": r"\{[^}]*\}",
    "gap": r".{0,600}?",
    "end": r" ?$",  # of the log
    "blank": r" ",  # ends the anchor where the log has several blanks
    "raised": r"(?:^|(?<=\) ))[\w.]*",  # how an exception's name begins, on a line of its own
}
_BYTES: Final = {"bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}

# A message starts a line or follows a blank, never a quote: tracebacks echo the source line that
# raises it, with the quote before it and the f-string's braces in it.
_NOT_QUOTED: Final = r"""(?<![\w.'"`])"""
_ANCHOR_LENGTH: Final = 28
_WORD: Final = re.compile(r"\S+")
_WORDS: Final = 3
_TELLING: Final = 12  # characters


class Reading(Struct, frozen=True, kw_only=True):
    """One value of a message; `value` is bytes for a size, None for what is no number."""

    name: str
    text: str
    value: float | None


class Template(Struct, frozen=True, kw_only=True, dict=True):
    """One text of a failure; its anchor must stand on the line where it begins."""

    text: str

    @cached_property
    def regex(self) -> re.Pattern[str]:
        """The text with its placeholders as groups, anchored where a message may start."""
        return re.compile(_NOT_QUOTED + _translate(" ".join(self.text.split())))

    @cached_property
    def anchor(self) -> str:
        """The first words of the first literal part that says something: few, for wrapped lines,
        but no option's name alone, which settings that are printed hold."""
        parts = [part.strip() for part in PLACEHOLDER.sub("\n", self.text).split("\n")]
        telling = next((part for part in parts if len(part) >= _TELLING), max(parts, key=len))
        ends = [word.end() for word in _WORD.finditer(telling)][_WORDS - 1 :]
        return telling[: next((end for end in ends if end >= _ANCHOR_LENGTH), len(telling))]


def _translate(text: str) -> str:
    literal, *rest = PLACEHOLDER.split(text)
    pattern = re.escape(literal)
    for name, kind, literal in zip(*[iter(rest)] * 3, strict=True):
        pattern += f"({f'?P<{name}>' if name else '?:'}{_TYPES[kind]}){re.escape(literal)}"
    return pattern


def size_bytes(text: str) -> int | None:
    """Bytes of ``1.96 GiB``; None of what is no size, or none that a device has."""
    value = reading("", text).value
    return None if value is None else round(value)


def reading(name: str, text: str) -> Reading:
    """The number that a text gives: bytes of ``1.96 GiB``, 8 of ``8``, None of a name."""
    text, value = text.rstrip(".:"), None
    amount, _, unit = text.partition(" ")
    with suppress(ValueError):
        value = float(amount) * _BYTES.get(unit, 1)
    if value is None or abs(value) > LARGEST:  # garbage, or two numbers written into one
        return Reading(name=name, text=text, value=None)
    return Reading(name=name, text=text, value=round(value) if unit else value)


Severity = Literal["error", "warning"]
"""Whether the text ends a run or only tells that a setting does not act as hoped."""
Evidence = Literal[
    "ran", "source", "fix merged", "maintainer", "fix", "fix open", "reporter", "practice", "weak"
]
EVIDENCE: Final[dict[Evidence, str]] = {
    "ran": "reproduced with the real code",
    "source": "read in the source",
    "fix merged": "a fix is merged",
    "maintainer": "stated by a maintainer",
    "fix": "a fix exists; whether it is merged is not known",
    "fix open": "a fix is proposed",
    "reporter": "stated by the reporter",
    "practice": "common practice, not read in the source",
    "weak": "weak: one unconfirmed report",
}
"""How well a case is known, best first."""


class Case(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One real occurrence: where a text was seen, why, and what helped. when: the reading of the
    numbers for which the case is meant; empty where the text alone decides. shows: a pattern
    that the log must have, where the text does not tell the case from others."""

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
    shows: str = ""


class Failure(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, dict=True):
    """One recognisable failure: its texts, with placeholders, and where it was seen. `meaning` is a
    sentence with the names of readings in braces. memory: where it ran out (`gpu`: as the traceback
    tells), empty where none did.

    rules: FRAMEWORK.ID of those whose refusal the texts are; example: settings to which it is said,
    where those of the rule are another case of it. follows: another error has caused it.
    readings: a meaning for each reading of the numbers. general: its texts are tried after all
    others. unlisted: any exception that nothing else names.
    """

    id: str
    texts: tuple[str, ...]
    title: str = ""
    cases: tuple[Case, ...] = ()
    severity: Severity = "error"
    meaning: str = ""
    memory: str = ""
    rules: tuple[str, ...] = ()
    example: str = ""
    follows: bool = False
    general: bool = False
    unlisted: bool = False
    readings: dict[str, str] = {}

    @cached_property
    def templates(self) -> tuple[Template, ...]:
        """Its texts as they are looked for."""
        return tuple(Template(text=text) for text in self.texts)

    @cached_property
    def known(self) -> "Failure":
        """Itself; where nothing else is said, with what its rules say."""
        if self.cases:
            return self
        cases = tuple(_case_of(rule, self) for rule in self.rules)
        return replace(self, title=self.title or cases[0].cause.rstrip("."), cases=cases)


def _case_of(rule: str, failure: Failure) -> Case:
    framework, _, name = rule.partition(".")
    examples = import_module(f"advisor.frameworks.{framework}.rules.examples")
    known = examples.explained(name, failure.example)
    return Case(id=name, kind="rule", message=failure.texts[0], evidence="source", **known)


@cache
def load_catalog() -> tuple[Failure, ...]:
    """Everything that a log shows; UserError or msgspec's ValidationError on a broken file."""
    files = sorted((packaged_configs() / "failures").glob(f"*{SUFFIX}"))
    known = (convert(load_yaml(one).values.get("failures", []), list[Failure]) for one in files)
    return tuple(failure for of_file in known for failure in of_file)
