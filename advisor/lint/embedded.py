"""Commands that the YAML of a scheduler holds (Kubernetes, Ray, SkyPilot, a pipeline of CI): blocks
of text, lines and lists of words, after what it exports."""

import re
from itertools import chain
from typing import Final

from advisor.base.place import Place
from advisor.reading.words import Piece, Word, word

_FORMS: Final = re.compile(
    r"^(?P<in> *)(?:- +)*(?:[\w.-]+: +)?(?P<style>[|>])[+-]?[ \t]*\n"
    r"(?P<block>(?:(?P=in) +\S.*\n|[ \t]*\n)+)"
    r"|- name: (?P<name>[A-Z_]+)\n\s+value: +[\"']?(?P<value>[^\"'\n$]*)"
    r"|^[ \t]*(?:- +)?(?:[\w.-]+: +)?[\"']?"
    r"(?P<line>(?>\S*(?:python3?|run) |\S+ .*?\.py ).*?--.*)$"
    r"|\[(?P<flow>[^\[\]]*)\]|(?P<items>(?:^[ \t]*- +(?:\"[^\"\n]*\"|'[^'\n]*'|\S+) *\n){2,})",
    re.MULTILINE,
)
_PARTS: Final = {
    "block": r"(?m:^) *(?P<part>.*)\n",
    "flow": r"[\"']?(?P<part>(?<=\")[^\"]*|(?<=')[^']*|[^,\s\"']+)[\"']?",
    "items": r"- +[\"']?(?P<part>[^\"'\n]*?)[\"']? *\n",
}
_RUNS: Final = re.compile(r"\.py\b|\b(?:python3?|torchrun|srun|bash)\b")


def commands_in(text: str, file: str) -> Word | None:
    """All of them as one shell script, each character at its place; None where there are none."""
    whole = word(text + "\n", Place(file, 1, 1))
    parts = chain.from_iterable(map(_parts, _FORMS.finditer(whole.text)))
    pieces = tuple(Piece(text=said, place=whole.place_at(at)) for at, said in parts)
    return Word(pieces) if _RUNS.search("".join(piece.text for piece in pieces)) else None


def _parts(match: "re.Match[str]") -> list[tuple[int, str]]:
    """Of one of them, each with the characters before it."""
    kind = match.lastgroup or ""
    at, held = match.start(kind), match[kind]
    if kind == "value":
        return [(at, f"export {match['name']}='"), (at, held), (at, "'\n")]
    if kind == "line":
        return [(at, held.rstrip("\"'") + "\n")]
    quote, end = ("", "\n" if match["style"] == "|" else " ") if kind == "block" else ("'", " ")
    found = re.finditer(_PARTS[kind], held) if "--" in held else ()
    each = ((at + part.start("part"), part["part"]) for part in found)
    words = [((start, quote), (start, said), (start, quote + end)) for start, said in each]
    return [*chain.from_iterable(words), (match.end(), "\n")]
