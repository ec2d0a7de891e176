"""A report as a page for a terminal: prose and tables, without pictures and folded sections."""

import re
from functools import partial

from advisor.report.blocks import Block, Column, Fitted, Text, group, table
from advisor.report.breaking import packed
from harness.report import document
from harness.report.document import Document, Section


def terminal_page(report: Document) -> Block:
    """Title, outcome, then the sections that a reader of Markdown sees without opening any."""
    parts: list[Block] = [Text(f"{report.title}: {report.subtitle}", "bold"), report.outcome]
    for section in report.sections:
        if not section.folded and (section.prose or section.tables):
            parts += ["", *_section(section)]
    return group(*parts)


def _section(section: Section) -> list[Block]:
    tables = [part for one in section.tables for part in ("", _table(one))]
    return [Text(section.title, "bold"), *section.prose, *tables]


def _table(found: document.Table) -> Block:
    """The first column has lines of its own on a narrow page, which then leaves the last ones
    out."""
    last = len(found.columns)
    columns = (
        Column(
            title=title, left=n < found.left, wrap=True, above=n == 0, spare=last - n if n else 0
        )
        for n, title in enumerate(found.columns)
    )
    rows = table(columns)
    for row in found.rows:
        rows.add_row(*map(_cell, row))
    return rows


def _cell(text: str) -> Fitted:
    """Broken between its words, a number and its percent sign together."""
    return Fitted(partial(packed, re.sub(r" (?!%)", "\0", text).split("\0"), glue=" "))
