"""Commands that the YAML of a scheduler holds (Kubernetes, Ray, SkyPilot, a pipeline of CI): blocks
of text, lines and lists of words, after what it exports."""

import re
from collections.abc import Iterator
from typing import Final

from advisor.base.place import Place
from advisor.reading.words import Piece, Word

_FORMS: Final = re.compile(
    r"^(?P<in> *)(?:- +)*(?:[\w.-]+: +)?(?P<style>[|>])[+-]?[ \t]*\n"
    r"(?P<block>(?:(?P=in) +\S.*\n|[ \t]*\n)+)"
    r"|- name: (?P<name>[A-Z_]+)\n\s+value: +[\"']?(?P<value>[^\"'\n$]*)"
    r"|^[ \t]*(?:- +)?(?:[\w.-]+: +)?[\"']?"
    r"(?P<line>\S*(?:python3?|run|accelerate|deepspeed|ray) .*?--.*)$"
    r"|\[(?P<flow>[^\[\]]*)\]|(?P<items>(?:^[ \t]*- +(?:\"[^\"\n]*\"|'[^'\n]*'|\S+) *\n){2,})",
    re.MULTILINE,
)
_PARTS: Final = {
    "block": r"(?m:^) *(?P<part>.*)\n",
    "flow": r"[\"']?(?P<part>(?<=\")[^\"]*|(?<=')[^']*|[^,\s\"']+)[\"']?",
    "items": r"- +[\"']?(?P<part>[^\"'\n]*?)[\"']? *\n",
}
_RUNS: Final = re.compile(r"\b(?:torchrun|python3?|accelerate|deepspeed|srun|ray|bash)\b")


def commands_in(text: str, file: str) -> Word | None:
    """All of them as one shell script, each character at its place; None where there are none."""
    pieces = [piece for match in _FORMS.finditer(text + "\n") for piece in _pieces(match, file)]
    return Word(tuple(pieces)) if _RUNS.search("".join(piece.text for piece in pieces)) else None


def _pieces(match: "re.Match[str]", file: str) -> Iterator[Piece]:
    text, kind = match.string, match.lastgroup or ""

    def piece(said: str, at: int) -> Piece:
        line = text.count("\n", 0, at) + 1
        return Piece(text=said, place=Place(file, line, at - text.rfind("\n", 0, at)))

    at, held = match.start(kind), match[kind]
    if kind == "value":
        yield from (piece(f"export {match['name']}='", at), piece(held, at), piece("'\n", at))
    elif kind == "line":
        yield piece(held.rstrip("\"'") + "\n", at)
    elif "--" in held:
        quote, end = ("", "\n" if match["style"] == "|" else " ") if kind == "block" else ("'", " ")
        for part in re.finditer(_PARTS[kind], held):
            start = at + part.start("part")
            yield from (piece(quote, start), piece(part["part"], start), piece(quote + end, start))
        yield piece("\n", match.end())
