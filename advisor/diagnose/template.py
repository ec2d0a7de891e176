"""Message templates: the literal text of a failure with typed placeholders for what varies.

``CUDA out of memory. Tried to allocate <tried_bytes:size>`` matches the real text with any size
and reads it. Templates are matched on text in which every run of white space is one blank, so a
message that a console wrapped or that has several lines reads like one.
"""

import re
from functools import cached_property
from typing import Final

from msgspec import Struct

from advisor.base.limits import LARGEST

_PLACEHOLDER: Final = re.compile(r"<(\w*):(\w+)>")
_TYPES: Final = {
    "int": r"-?\d+",
    "size": r"\d[\d.]* (?:bytes|[KMGT]iB)",
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
        rest = _PLACEHOLDER.sub("", self.text, count=1)
        return rest[:_ANCHOR_LENGTH].strip()

    @property
    def specificity(self) -> int:
        """Literal characters: the longer text is tried first."""
        return len(_PLACEHOLDER.sub("", self.text))

    def readings(self, match: re.Match[str]) -> tuple[Reading, ...]:
        """The named placeholders of a match, in the order of the text."""
        return tuple(_read(name, text) for name, text in match.groupdict().items())


def _translate(text: str) -> str:
    """Regular expression of a template's text."""
    parts, end = [], 0
    for match in _PLACEHOLDER.finditer(text):
        name, kind = match.groups()
        parts.append(re.escape(text[end : match.start()]))
        parts.append(f"(?P<{name}>{_TYPES[kind]})" if name else f"(?:{_TYPES[kind]})")
        end = match.end()
    return "".join([*parts, re.escape(text[end:])])


def _read(name: str, text: str) -> Reading:
    """The number behind a text: bytes of ``1.96 GiB``, 8 of ``8``, None of a name."""
    text = text.rstrip(".:")
    amount, _, unit = text.partition(" ")
    try:
        value = float(amount) * _BYTES.get(unit, 1)
    except ValueError:
        return Reading(name=name, text=text, value=None)
    if abs(value) > LARGEST:  # no size and no count: garbage, or two numbers written into one
        return Reading(name=name, text=text, value=None)
    return Reading(name=name, text=text, value=round(value) if unit else value)
