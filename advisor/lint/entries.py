"""Options and keys of a text with the characters that each takes, so that one can be changed and
nothing else. They are found by their form alone: whoever changes one reads the text again."""

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from advisor.base.place import Place

_QUOTED: Final = r""""(?:\\.|[^"\\\n])*+"|'(?:\\.|[^'\\\n])*+'"""
_COMMENT: Final = r"(?:^|(?<=\s))#[^\n]*"
BREAK: Final = r"\\\r?\n"
_BLANK: Final = rf"(?:[ \t]|{BREAK})+"
_WORD: Final = rf"(?:{_QUOTED}|(?:\\[^\r\n]|[^\s\"'\\()|;&<>]){{1,999}})"
_ENDED: Final = r"(?!-[A-Za-z-]|\d*[<>]|#|\"?\$\{\w+\[|$)"
_NAME: Final = r"[+~]{0,2}[A-Za-z_][\w.]*|--?[A-Za-z][\w.-]*"
_SHELL: Final = re.compile(
    rf"{_COMMENT}|(?<![\w./$=-])(?:(?P<name>{_NAME})=(?P<value>{_WORD}?)|(?P<option>--[A-Za-z]"
    rf"[\w.-]*)(?:(?P<blank>{_BLANK}){_ENDED}{_WORD}(?:{_BLANK}{_ENDED}(?!\"?\$){_WORD})*)?)",
    re.MULTILINE,
)


def _within(levels: int) -> str:
    """Brackets that close, with as many levels of others in them."""
    inner = rf"|{_within(levels - 1)}" if levels else ""
    inside = rf"(?:{_QUOTED}|#[^\n]*|[^\[\](){{}}\"'#]{inner})*+"
    return rf"\[{inside}\]|\{{{inside}\}}|\({inside}\)"


_KEYED: Final = re.compile(
    rf"{_COMMENT}|(?P<indent>^[ \t]*)?(?<![\w.+~-])(?P<name>\"[\w.-]+\"|'[\w.-]+'|[+~-]*[A-Za-z_]"
    rf"[\w.-]*)[ \t]*(?::(?=\s|[\"{{\[\d])|=(?!=))[ \t]*(?P<value>{_within(3)}|{_QUOTED}"
    rf"|[^\s,()\[\]{{}}#\"']{{1,999}}(?:{_within(1)})?"
    r"|(?:[ \t]*(?:#[^\n]*)?\r?\n(?P=indent)(?:[ \t]+|- )\S[^\r\n]*)+|)",
    re.MULTILINE,
)


class Entry(NamedTuple):
    """An option and its value, empty of a switch, as offsets; keyed: not a word of a shell."""

    written: str
    start: int
    name_stop: int
    value: int
    stop: int
    keyed: bool

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


def entries(text: str, suffix: str) -> list[Entry]:
    """All of a text; a shell script may write files of the other formats, YAML hold commands."""
    forms = (_KEYED,) if suffix in (".json", ".toml", ".py") else (_KEYED, _SHELL)
    forms = (_SHELL, _KEYED) if suffix in (".yaml", ".yml") else forms
    return list({one.start: one for form in forms for one in _found(text, form)}.values())


def _found(text: str, form: "re.Pattern[str]") -> Iterator[Entry]:
    at = 0
    while (match := form.search(text, at)) is not None:
        option = match.groupdict().get("option")
        (start, at), value = match.span("option" if option else "name"), match.start("value")
        if option:
            value = match.end("blank") if match["blank"] else at
        if start < 0:
            at = match.end()
        else:
            yield Entry(text[start:at], start, at, value, match.end(), form is _KEYED)
