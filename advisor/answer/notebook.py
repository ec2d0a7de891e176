"""A table with a headline, lines to paste and notes, as HTML for a notebook's cell.

Colours are those of the page around it, so that it reads on light and dark grounds alike; nothing
is loaded, and every text is escaped.
"""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Final

from msgspec import Struct

_CELL: Final = "padding:0.2em 0.7em;border:none;background:none;vertical-align:top"


class NotebookTable(Struct, frozen=True, kw_only=True):
    """Head and rows as text; `strong` and `faint` say so of each row, `below` stands under all."""

    titles: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    strong: tuple[bool, ...]
    faint: tuple[bool, ...]
    below: str = ""


def preformatted(text: str) -> str:
    """A page of the terminal."""
    return f'<pre style="overflow-x:auto">{escape(text)}</pre>'


def notebook_html(
    *,
    title: str,
    verdict: str,
    table: NotebookTable,
    flags: Mapping[str, str],
    notes: Sequence[str],
) -> str:
    """One `div`: title, verdict, table, flags by framework, notes."""
    parts = [f"<p><b>{escape(title)}</b></p>", f"<p>{escape(verdict)}</p>", _table(table)]
    parts += [f"<p>{escape(table.below)}</p>"] if table.below else []
    parts += [_flags(name, words) for name, words in flags.items() if words]
    parts += [f'<p style="opacity:0.75">{"<br>".join(map(escape, notes))}</p>'] if notes else []
    return f'<div class="recompute-advice">{"".join(parts)}</div>'


def _table(table: NotebookTable) -> str:
    """Columns in which no row says anything are left out."""
    titles = [
        (number, title)
        for number, title in enumerate(table.titles)
        if any(row[number] for row in table.rows)
    ]
    head = "".join(_cell("th", title, title) for _, title in titles)
    rows = []
    for row, strong, faint in zip(table.rows, table.strong, table.faint, strict=True):
        style = "font-weight:bold;" * strong + "opacity:0.6;" * faint
        cells = "".join(_cell("td", row[number], title) for number, title in titles)
        rows.append(f'<tr style="{style}">{cells}</tr>')
    body = f"<thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody>"
    frame = '<div style="overflow-x:auto"><table style="border-collapse:collapse">'
    return f"{frame}{body}</table></div>" if rows else ""


def _cell(tag: str, text: str, title: str) -> str:
    side = "left" if title in ("layout", "recompute", "note") else "right"
    width = "min-width:20em" if title == "note" else "white-space:nowrap"
    return f'<{tag} style="{_CELL};text-align:{side};{width}">{escape(text)}</{tag}>'


def _flags(name: str, words: str) -> str:
    style = "margin:0 0 0.6em;white-space:pre-wrap;overflow-wrap:anywhere"
    lines = f'<pre style="{style}">{escape(words)}</pre>'
    return f'<p style="margin:0.6em 0 0;opacity:0.75">{escape(name)}</p>{lines}'
