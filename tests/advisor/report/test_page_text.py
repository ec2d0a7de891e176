"""Consoles, tables and margins: how a page becomes text."""

import io

import pytest

from advisor.report import blocks
from advisor.report.blocks import Column, Fitted, Indented, Table, Text, labelled_rows, table
from advisor.report.text import plain_lines, printed, screen_of


def test_tables_align_and_keep_lines_of_a_cell_together() -> None:
    columns = [Column(title="name", left=True), Column(title="n"), Column(title="t", left=True)]
    shown = table(columns)
    shown.add_row("a\n  b", "1", "x")
    shown.add_row("long name", "10", "")
    assert plain_lines(Indented(shown, 1)) == [
        " name        n  t",
        " a           1  x",
        "   b",
        " long name  10",
    ]


def test_text_is_printed_as_it_is() -> None:
    reported = "a [bold]name[/] with [1], :smile: and 'quotes'"
    assert plain_lines(reported) == [reported]
    shown = table([Column(title="[red]x", left=True)])
    shown.add_row(reported)
    assert plain_lines(shown) == ["[red]x", reported]


def test_margins_hang() -> None:
    assert plain_lines(labelled_rows([("budget", "one two three")], margin=8), 18) == [
        "budget    one two",
        "          three",
    ]


def test_prose_wraps() -> None:
    assert blocks.wrapped("plain text here", 10) == ["plain text", "here"]
    assert blocks.wrapped("  two blanks first, kept", 12) == ["  two blanks", "first, kept"]
    assert blocks.wrapped(" " * 100_000 + "x", 10)[-1] == "x"
    assert blocks.wrapped("x" * 25, 10) == ["x" * 10, "x" * 10, "x" * 5]
    assert blocks.wrapped("model.num_layers=12", 10) == ["model.num_", "layers=12"]


NARROW = Table(
    columns=(
        Column(title="name", left=True, wrap=True, above=True),
        Column(title="peak GiB"),
        Column(title="of it replayed", spare=1),
    )
)
NARROW.add_row("selective:mlp of all", "73.4", "1")


@pytest.mark.parametrize(
    ("width", "text"),
    [
        (
            50,
            "name                  peak GiB  of it replayed\n"
            "selective:mlp of all      73.4               1",
        ),
        (
            30,
            "name            peak     of it\n                 GiB  replayed\n"
            "selective:mlp   73.4         1\nof all",
        ),
        (26, f"  peak GiB  of it replayed\nselective:mlp of all\n{73.4:>10}{1:>16}"),
        (14, "  peak GiB\nselective:mlp\nof all\n      73.4"),
    ],
)
def test_a_table_breaks_at_blanks_then_stacks_then_leaves_out(width: int, text: str) -> None:
    assert plain_lines(NARROW, width) == text.splitlines()


def test_fitted_lines_are_never_cut() -> None:
    word = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
    assert plain_lines(Fitted(lambda width: [word, str(width)]), 20) == [word, "20"]


class Terminal(io.StringIO):
    """A stream that says that it is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def colourful(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A terminal of 200 columns that takes colour."""
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "200")
    return monkeypatch


BOLD = Text("x", "bold yellow")


def test_a_file_gets_plain_text_of_100_columns_or_as_many_as_are_said(colourful) -> None:
    console = screen_of(io.StringIO())
    assert console.width == 140  # of 200
    colourful.delenv("COLUMNS")
    assert screen_of(io.StringIO()).width == 100
    assert printed(BOLD, console) == "x\n"


@pytest.mark.parametrize(
    ("columns", "width"),
    [("40", 60), ("80", 80), ("110", 110), ("300", 140), pytest.param("9" * 5000, 140, id="huge")],
)
def test_a_terminal_gets_its_own_width_within_reason(colourful, columns, width) -> None:
    colourful.setenv("COLUMNS", columns)
    assert screen_of(Terminal()).width == width


def test_colour_only_where_it_is_wanted(colourful: pytest.MonkeyPatch) -> None:
    assert printed(BOLD, screen_of(Terminal())) == "\033[1;33mx\033[0m\n"
    colourful.setenv("NO_COLOR", "1")
    assert printed(BOLD, screen_of(Terminal())) == "x\n"
    colourful.setenv("NO_COLOR", "")
    colourful.setenv("TERM", "dumb")
    assert printed(BOLD, screen_of(Terminal())) == "x\n"
