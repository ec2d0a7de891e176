"""Tables, wrapping, bars and screens."""

import io

import pytest

from advisor.report.text import (
    Column,
    Screen,
    Style,
    bar,
    break_spec,
    continued,
    labelled,
    table_lines,
    wrap,
)


@pytest.mark.parametrize(
    ("value", "drawn"),
    [(0, ""), (1, "▏"), (8, "█"), (12, "█▌"), (32, "████"), (33, "████▶"), (900, "████▶")],
)
def test_bars_have_eighths_and_run_over_visibly(value: int, drawn: str) -> None:
    assert bar(value, 32, 4) == drawn


def test_a_bar_of_nothing() -> None:
    assert bar(1, 0, 4) == ""


def test_tables_align_and_keep_lines_of_a_cell_together() -> None:
    columns = [Column(title="name", left=True), Column(title="n"), Column(title="t", left=True)]
    rows = [["a\n  b", "1", "x"], ["long name", "10", ""]]
    assert table_lines(columns, rows, indent=1) == [
        " name        n  t",
        " a           1  x",
        "   b",
        " long name  10",
    ]


def test_labels_hang() -> None:
    assert labelled("budget", "one two three", 20) == ["budget       one two", " " * 13 + "three"]
    assert labelled("budget", "", 20) == ["budget"]


def test_lists_break_between_their_parts() -> None:
    assert wrap("aa bb · cc dd · ee ff", 14) == ["aa bb ·", "cc dd · ee ff"]
    assert wrap("plain text here", 10) == ["plain text", "here"]


def test_specs_break_at_their_joints() -> None:
    spec = "selective:core_attn,mlp+offload=core_attn,attn_proj"
    assert break_spec(spec, 60) == spec
    assert break_spec(spec, 24) == "selective:core_attn,mlp\n  +offload=core_attn,\n  attn_proj"
    for width in (14, 18, 22, 28):
        broken = break_spec(spec, width)
        assert broken.replace("\n  ", "") == spec


def test_broken_commands_are_one_to_a_shell() -> None:
    lines = continued("--a 1 --b 2 --c 3", 10)
    assert lines == ["--a 1 \\", "--b 2 \\", "--c 3"]
    assert max(map(len, lines)) <= 10
    assert continued("", 10) == [""]


class Terminal(io.StringIO):
    """A stream that says that it is a terminal of unknown size."""

    def isatty(self) -> bool:
        return True

    def fileno(self) -> int:
        raise OSError


def test_screens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    assert Screen.of(io.StringIO()) == Screen(width=100, colour=False)
    assert Screen.of(Terminal()) == Screen(width=100, colour=True)
    monkeypatch.setenv("NO_COLOR", "1")
    assert Screen.of(Terminal()).colour is False
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.setenv("TERM", "dumb")
    assert Screen.of(Terminal()).colour is False


def test_paint() -> None:
    assert Screen(colour=True).paint("x", Style.BOLD) == "\033[1mx\033[0m"
    assert Screen(colour=True).paint("x", None) == Screen().paint("x", Style.BOLD) == "x"
