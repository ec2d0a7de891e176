"""Fenced blocks of the README and the docs, and what stands after their backticks.

The first word is the language; words after it say how the block is tested:

- ``parse-only``: the commands are parsed, or asked for a dry run, and not run;
- ``exit=N``: the last command ends with N;
- ``file=PATH``: the text is a file for the blocks below it.
"""

import re
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

ROOT = Path(__file__).parents[2]
PAGES = (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md")))

RUN = frozenset(("console", "bash", "python"))
READ = frozenset(("yaml", "toml", "json"))
PLAIN = frozenset(("text",))
MARKS = frozenset(("parse-only", "exit", "file"))

_FENCE = re.compile(r"^( *)(`{3,})(.*)$")


class Block(Struct, frozen=True):
    """One fenced block: where it begins, its language, its marks, its lines."""

    page: Path
    line: int
    language: str
    marks: dict[str, str]
    lines: tuple[str, ...]

    @property
    def text(self) -> str:
        return "".join(f"{line}\n" for line in self.lines)

    @property
    def place(self) -> str:
        return f"{self.page.name}:{self.line}"


def blocks_of(page: Path) -> Iterator[Block]:
    """The blocks of a page in their order; directives of Sphinx (``{name}``) are none."""
    lines = iter(enumerate(page.read_text(encoding="utf-8").splitlines(), 1))
    for number, line in lines:
        opened = _FENCE.match(line)
        if not opened:
            continue
        indent, fence, info = opened.groups()
        inside = []
        for _, text in lines:
            if text.strip() == fence:
                break
            inside.append(text)
        language, *marks = info.split() or [""]
        if not language.startswith("{"):
            assert not indent, f"{page}:{number}: a block that is indented is not tested"
            said = dict(mark.partition("=")[::2] for mark in marks)
            yield Block(page, number, language, said, tuple(inside))


def with_lines(page: Path, changed: dict[int, tuple[str, ...]]) -> str:
    """The text of a page with other lines in the blocks that begin at these lines."""
    text = page.read_text(encoding="utf-8").splitlines()
    for block in reversed(list(blocks_of(page))):
        if block.line in changed:
            text[block.line : block.line + len(block.lines)] = changed[block.line]
    return "\n".join(text) + "\n"
