"""What a report consists of (sections of prose, tables and pictures), and a report as HTML, as
GitHub's Markdown (whole or within a limit), and as a page for a terminal."""

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from advisor.report.blocks import Block, Column, Fitted, Text, group, packed, table


class Table(Struct, frozen=True, kw_only=True):
    """Rows of text, the most important first; the first `left` columns are words, not numbers."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    left: int = 1

    def __post_init__(self) -> None:
        assert all(len(row) == len(self.columns) for row in self.rows)


def table_of(rows: Iterable[Mapping[str, str]], left: int = 1) -> Table:
    """Rows that have the same columns."""
    found = list(rows)
    columns = tuple(found[0]) if found else ()
    return Table(columns=columns, rows=tuple(tuple(row.values()) for row in found), left=left)


class Picture(Struct, frozen=True, kw_only=True):
    """A figure: its file's name without suffix, what it shows, its SVG for desktop and phone."""

    name: str
    caption: str
    svg: str
    narrow_svg: str


class Section(Struct, frozen=True, kw_only=True):
    """One heading and what is below it, in the order of the fields. lines: shown as they are, in a
    typewriter's letters. folded: closed until it is opened."""

    title: str
    prose: tuple[str, ...] = ()
    lines: tuple[str, ...] = ()
    tables: tuple[Table, ...] = ()
    pictures: tuple[Picture, ...] = ()
    folded: bool = False

    @property
    def anchor(self) -> str:
        """Its name in a link."""
        return "-".join(self.title.lower().replace(",", "").split())


class Document(Struct, frozen=True, kw_only=True):
    """A report. good: whether the outcome is one; None where nothing was judged."""

    title: str
    subtitle: str
    outcome: str
    good: bool | None
    sections: tuple[Section, ...]


def html(document: Document) -> str:
    """The report as a page, pictures inside; ImportError where jinja2 is not installed. All text is
    escaped. The pictures' SVG, which we drew ourselves, goes in as it is."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    look: dict[str, Any] = {"trim_blocks": True, "lstrip_blocks": True, "autoescape": True}
    loader = FileSystemLoader(Path(__file__).parent / "templates")
    environment = Environment(loader=loader, undefined=StrictUndefined, **look)
    return environment.get_template("report.html.j2").render(document=document) + "\n"


SUMMARY_BYTES: Final = 1024 * 1024
"""GitHub drops a step summary that is larger than 1 MiB."""
_SPECIAL: Final = re.compile(r"([\\`*_{}\[\]<>#|~])")
_LEFT_OUT: Final = "*The rest is in report.md: this page would be too long.*\n"


def markdown(document: Document, *, pictures: bool = True) -> str:
    """The whole report; pictures are links to figures/NAME.svg."""
    return "\n".join([_head(document), *(_section(s, pictures) for s in document.sections)])


def summary(document: Document, limit: int = SUMMARY_BYTES) -> str:
    """The report without pictures in at most `limit` bytes of UTF-8; "" where not even its head
    fits. What is too long loses its last rows (the least important), then whole sections."""
    text, room = _head(document), limit - len(_LEFT_OUT.encode()) - 1
    if _size(text) > room:
        return ""
    complete = True
    for section in document.sections:
        shown: Section | None = section
        while shown is not None and _size(text) + _size(_section(shown, False)) + 1 > room:
            shown, complete = _shorter(shown), False
        if shown is not None:
            text += "\n" + _section(shown, False)
    return text if complete else f"{text}\n{_LEFT_OUT}"


def escaped(text: str) -> str:
    """`text` on one line, with nothing in it that Markdown or HTML would act on."""
    return _SPECIAL.sub(r"\\\1", " ".join(text.split())).replace("\\<", "&lt;")


def fenced(lines: Sequence[str]) -> str:
    """Lines as they are; the fence is longer than any run of backticks in them."""
    fence = "`" * max(3, *(len(run) + 1 for run in re.findall(r"`+", "\n".join(lines))), 3)
    return "\n".join([f"{fence}text", *lines, fence])


def _head(document: Document) -> str:
    words = map(escaped, (document.title, document.subtitle, document.outcome))
    return "# {}\n\n{}\n\n**{}**\n".format(*words)


def _section(section: Section, pictures: bool) -> str:
    parts = [escaped(text) for text in section.prose]
    parts += [_table(table) for table in section.tables]
    parts += [fenced(section.lines)] if section.lines else []
    if pictures:
        parts += [f"![{escaped(p.caption)}](figures/{p.name}.svg)" for p in section.pictures]
    body = "\n\n".join(parts)
    if section.folded:
        title = escaped(section.title)
        return f"<details><summary>{title}</summary>\n\n{body}\n\n</details>\n"
    return f"## {escaped(section.title)}\n\n{body}\n"


def _table(table: Table) -> str:
    sides = [":--" if number < table.left else "--:" for number in range(len(table.columns))]
    rows = [table.columns, tuple(sides), *table.rows]
    return "\n".join(
        "| " + " | ".join(cell if row is rows[1] else escaped(cell) for cell in row) + " |"
        for row in rows
    )


def _shorter(section: Section) -> Section | None:
    """The first half of its longest part; None where nothing is left to take away."""
    longest = max((len(table.rows) for table in section.tables), default=0)
    if max(longest, len(section.lines)) < 2:
        return None
    if len(section.lines) >= longest:
        return replace(section, lines=section.lines[: len(section.lines) // 2])
    kept = (
        one.rows[: longest // 2 if len(one.rows) == longest else None] for one in section.tables
    )
    tables = (replace(one, rows=rows) for one, rows in zip(section.tables, kept, strict=True))
    return replace(section, tables=tuple(tables))


def _size(text: str) -> int:
    return len(text.encode())


def terminal_page(report: Document) -> Block:
    """Title, outcome, then the sections that a reader of Markdown sees without opening any."""
    parts: list[Block] = [Text(f"{report.title}: {report.subtitle}", "bold"), report.outcome]
    for section in report.sections:
        if not section.folded and (section.prose or section.tables):
            tables = [part for one in section.tables for part in ("", _table_block(one))]
            parts += ["", Text(section.title, "bold"), *section.prose, *tables]
    return group(*parts)


def _table_block(found: Table) -> Block:
    """The first column has lines of its own on a narrow page, which leaves the last ones out."""
    spare = [0, *range(len(found.columns) - 1, 0, -1)]
    rows = table(
        Column(title=title, left=n < found.left, wrap=True, above=n == 0, spare=spare[n])
        for n, title in enumerate(found.columns)
    )
    for row in found.rows:  # cells break between words, a number and its percent sign together
        words = (re.split(r" (?!%)", text) for text in row)
        rows.add_row(*(Fitted(partial(packed, one, glue=" ")) for one in words))
    return rows
