"""Options and keys of a text with the characters that each takes, so that one can be changed and
nothing else. They are found by their form alone: whoever changes one reads the text again."""

import re
from collections.abc import Iterator
from typing import Final

from msgspec import Struct

from advisor.base.place import Place

_QUOTED: Final = r""""(?:\\.|[^"\\\n])*+"|'(?:\\.|[^'\\\n])*+'"""
_COMMENT: Final = r"(?:^|(?<=\s))#[^\n]*"
_BLANK: Final = r"(?:[ \t]|\\\n)+"
_BLANKS: Final = re.compile(_BLANK)
_WORD: Final = rf"(?:{_QUOTED}|(?:\\[^\n]|[^\s\"'\\()|;&<>])+)"
_NO_VALUE: Final = r"(?!-[A-Za-z-]|\d*[<>]|#|\"?\$\{\w+\[|$)"
_SHELL: Final = re.compile(
    rf"{_COMMENT}|(?<![\w./$=-])(?:(?P<name>[+~]{{0,2}}[A-Za-z_][\w.]*|--?[A-Za-z][\w.-]*)=(?P<value>{_WORD}?)"
    rf"|(?P<option>--[A-Za-z][\w.-]*)(?P<values>(?:{_BLANK}{_NO_VALUE}{_WORD})?(?:{_BLANK}{_NO_VALUE}"
    rf"(?!\"?\$){_WORD})*))",
    re.MULTILINE,
)


def _within(levels: int) -> str:
    """Brackets that close, with as many levels of others in them."""
    inner = rf"|{_within(levels - 1)}" if levels else ""
    inside = rf"(?:{_QUOTED}|#[^\n]*|[^\[\](){{}}\"'#]{inner})*+"
    return rf"\[{inside}\]|\{{{inside}\}}|\({inside}\)"


_KEYED: Final = re.compile(
    rf"{_COMMENT}|(?P<indent>^[ \t]*)?(?<![\w.])(?P<name>\"[\w.-]+\"|'[\w.-]+'|[+~-]*[A-Za-z_][\w.-]*)"
    r"[ \t]*(?::(?=\s|[\"{\[\d])|=(?!=))[ \t]*(?P<value>"
    rf"{_within(3)}|{_QUOTED}|[^\s,()\[\]{{}}#\"']+(?:{_within(1)})?"
    r"|(?:[ \t]*(?:#[^\n]*)?\n(?P=indent)(?:[ \t]+|- )\S[^\n]*)+|)",
    re.MULTILINE,
)


class Entry(Struct, frozen=True, kw_only=True):
    """An option with what it is given, as offsets; the value of a switch is empty.

    keyed: a key of YAML, JSON, TOML or Python, no word of a shell.
    """

    written: str
    start: int
    value: int
    stop: int
    keyed: bool

    @property
    def name_stop(self) -> int:
        """Where its name ends."""
        return self.start + len(self.written)

    @property
    def name(self) -> str:
        """Without dashes, quotes and what it is a part of."""
        return bare(self.written)


def bare(name: str) -> str:
    """The name of `--a-b`, `++model.a_b` and `"a_b"`: a_b."""
    return name.strip("-+~\"'").rpartition(".")[2].replace("-", "_")


def offset_of(text: str, place: Place) -> int:
    """Characters before a place of a text."""
    return sum(map(len, text.split("\n")[: place.line - 1])) + place.line + place.column - 2


def entries(text: str, suffix: str) -> dict[int, Entry]:
    """All of a text by where they start; a shell script may write files of the other formats."""
    keyed = suffix in (".yaml", ".yml", ".json", ".toml", ".py")
    found = {one.start: one for one in _found(text, _KEYED, keyed=True)}
    return found if keyed else found | {one.start: one for one in _found(text, _SHELL, keyed=False)}


def _found(text: str, form: "re.Pattern[str]", *, keyed: bool) -> Iterator[Entry]:
    at = 0
    while (match := form.search(text, at)) is not None:
        groups = match.groupdict()
        option = groups.get("option")
        start, stop = match.span("option" if option else "name")
        at = match.end() if start < 0 else stop
        if start >= 0:
            value, end = match.span("values" if option else "value")
            blank = _BLANKS.match(text, value, end)
            value = blank.end() if blank and not keyed else value
            yield Entry(written=text[start:stop], start=start, value=value, stop=end, keyed=keyed)
