"""What a script or a configuration may grow to while it is read, and how deep it may nest."""

from pathlib import Path
from string import ascii_lowercase

import pytest

from advisor.base.errors import UserError
from advisor.base.limits import MOST_COMMAND, MOST_DEPTH, MOST_STEPS, MOST_VALUE
from advisor.base.place import Place
from advisor.lint.entries import entries
from advisor.lint.target import lint_target
from advisor.reading.document_tree import read_tree
from advisor.reading.python_source import PythonSource, read_python
from advisor.reading.shell import Script, read_shell
from advisor.reading.words import Piece, Word, word

pytestmark = pytest.mark.slow


def read(text: str) -> Script:
    return read_shell(text, "a.sh")


def notes(text: str) -> list[str]:
    return [f"{note.place.line}: {note.text}" for note in read(text).notes]


def python(text: str) -> PythonSource:
    return read_python(word(text, Place("a.py", 1, 1)))


FOLLOWED = f"is longer than {MOST_VALUE:,} characters: not expanded"


@pytest.mark.parametrize(
    ("first", "again", "name"),
    [
        ("X=a", "X=$X$X", "X"),
        ("X=", "X=$X$X", "X"),
        ("X=a", "X+=$X", "X"),
        ("X=a", 'export X="$X$X"', "X"),
        ("X=(a)", "X=(${X[@]} ${X[@]})", "X"),
        ("X=(a)", "X+=(${X[@]})", "X"),
    ],
)
def test_a_value_that_doubles_is_unknown_beyond_the_limit(first, again, name) -> None:
    script = read("\n".join([first, *[again] * 25, "run --a $X"]))
    assert f"{name} {FOLLOWED}" in [note.text for note in script.notes]
    assert script.commands[-1].texts[:2] == ("run", "--a")
    assert sum(map(len, script.commands[-1].texts)) <= MOST_VALUE


def test_the_note_stands_where_the_value_grew_too_long() -> None:
    doublings = (MOST_VALUE // 2).bit_length()  # a character and its piece count two
    assert notes("X=a\n" + "X=$X$X\n" * (doublings - 1)) == []
    assert notes("X=a\n" + "X=$X$X\n" * doublings) == [f"{doublings + 1}: X {FOLLOWED}"]


def test_defaults_and_parameters_double_within_the_limits() -> None:
    defaults = "".join(f": ${{A{n + 1}:=$A{n}$A{n}}}\n" for n in range(40))
    assert FOLLOWED in notes("A0=a\n" + defaults)[0]
    calls = "".join(f"f{n}() {{ f{n + 1} {'$@ ' * 12}; }}\n" for n in range(8))
    (note,) = notes(f"{calls}f0 {' '.join(ascii_lowercase)}")
    assert note.endswith(f"is longer than {MOST_COMMAND:,} characters: not expanded")


@pytest.mark.parametrize(
    "text",
    [
        "if true; then\n" * 200 + "x\n" + "fi\n" * 200,
        " && ".join(["x"] * 500),
        f"[ {' -o '.join(['$A'] * 2000)} ] && x",
        f"if [[ {' && '.join(['$A'] * 1000)} ]]; then x; fi",
        f"X=$(({'+'.join(['1'] * 3000)}))",
        f"X=$(({'(' * 5000}1{')' * 5000}))",
        f"X={'$(' * 3000}x{')' * 3000}",
        "( " * 5000 + "x" + " )" * 5000,
    ],
)
def test_what_nests_too_deep_is_a_note_and_what_follows_is_read(text: str) -> None:
    script = read(f"{text}\nrun --a")
    assert script.notes[0].text == f"is nested deeper than {MOST_DEPTH} levels: not read"
    assert script.commands[-1].texts == ("run", "--a")


def test_levels_within_the_limit_are_read() -> None:
    levels = MOST_DEPTH - 10
    script = read("if true; then\n" * levels + "run --a\n" + "fi\n" * levels)
    assert script.notes == []
    assert script.commands[0].texts == ("run", "--a")


def test_functions_within_functions_count_their_levels_together() -> None:
    body = "if [ $Q ]; then\n" * 60 + "f{}\n" + "fi\n" * 60
    text = "".join(f"f{n}() {{\n{body.format(n + 1)}}}\n" for n in range(8))
    assert "nested deeper" in notes(f"{text}f0\n")[0]


@pytest.mark.parametrize(
    "text",
    [
        "for i in 1 2 3 4 5 6 7 8 9 10 11 12; do\n" * 8 + "x\n" + "done\n" * 8,
        f"A='{'a ' * (MOST_VALUE // 4)}'\n" + "x $A\n" * 200,
        "".join(f"if [ $A{n} = 1 ]; then B{n}=2; fi\n" for n in range(600)),
        "f() { f; f; f; f; f; f; f; f; }\nf",
    ],
)
def test_steps_are_counted(text: str) -> None:
    with pytest.raises(UserError, match=rf"a\.sh: has too many .*\(more than {MOST_STEPS:,}"):
        read(text)


def test_a_long_plain_script_is_read() -> None:
    assert read("echo 123456789012\n" * 10_000 + "run --a").commands[-1].place.line == 10_001


def test_numbers_that_are_none() -> None:
    text = f"if [ {'1' * 5000} -gt 1 ]; then x; fi\nA=(1 2)\nrun ${{A[²]}} $((²))\nshift ²"
    assert read(text).commands[-1].texts[0] == "run"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("x = " + "+".join(["a"] * 3000), ""),
        ("x = 1\ny = " + "+".join(["a"] * 400), " in line 2"),
        ("x = " + "-" * 3000 + "1", ""),
        ("x = a" + ".f()" * 1500, ""),
        ("if a: pass\n" + "elif a: pass\n" * 300, f" in line {MOST_DEPTH}"),
    ],
)
def test_python_that_nests_too_deep_is_one_line(text: str, line: str) -> None:
    with pytest.raises(UserError) as caught:
        python(text)
    assert str(caught.value) == f"lint = a.py: nests deeper than {MOST_DEPTH} levels{line}"


def test_python_values_that_double_are_unknown() -> None:
    for again in ("x = [x, x]", "x = x * x", "x = [x]", "x = {'a': x, 'b': x}"):
        (way,) = python("x = 10\n" + f"{again}\n" * 200).ways
        assert not way.assigned["x"].known


def test_ways_through_python_are_counted() -> None:
    with pytest.raises(UserError, match=r"a\.py: has too many branches"):
        python("".join(f"if a{n}:\n  f(1)\n" for n in range(5000)))


def test_keys_that_nest_too_deep_are_one_line_with_its_place() -> None:
    def nested(levels: int) -> Word:
        return word("\n".join(f"{' ' * n}k:" for n in range(levels)), Place("a", 1, 1))

    assert read_tree(nested(MOST_DEPTH), ".yaml") is not None
    for levels in (MOST_DEPTH + 1, 400, 500):
        with pytest.raises(UserError) as caught:
            read_tree(nested(levels), ".yaml")
        line = MOST_DEPTH + 1
        assert str(caught.value) == f"lint = a: nests deeper than 100 levels in line {line}"
    with pytest.raises(UserError, match="is not valid TOML: nests deeper than 100 levels"):
        read_tree(word("a = " + "[" * 3000 + "]" * 3000, Place("a", 1, 1)), ".toml")


def test_places_within_pieces() -> None:
    pieces = ("ab\nc", "", "dä\n\ne", "f")
    places = [Place("f", 10 * number, 5) for number, _ in enumerate(pieces, 1)]
    whole = Word(tuple(Piece(text=t, place=p) for t, p in zip(pieces, places, strict=True)))
    each = [p.after(t[:n]) for t, p in zip(pieces, places, strict=True) for n in range(len(t))]
    assert [whole.place_at(n) for n in range(len(whole.text))] == each
    assert whole.place_at(len(whole.text)) == places[-1].after("f")
    for start in range(len(whole.text)):
        part = whole.part(start, start + 3)
        assert (part.text, part.place) == (whole.text[start : start + 3], each[start])
    assert [whole.offset_of(line, 1) for line in range(4)] == [1, 4, 8, 9]


def test_a_slow_parse_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("advisor.reading.shell.syntax._MOST_SECONDS", 0.1)
    (tmp_path / "a.sh").write_text("a=(1 " * 20_000)
    with pytest.raises(UserError, match=r"is not read as shell text within 0.1 s"):
        lint_target(str(tmp_path / "a.sh"))


CHUNKS = "--num-layers-per-virtual-pipeline-stage"


def test_a_long_line_takes_as_long_as_it_is(tmp_path: Path) -> None:
    assert len(entries("a=" * 30_000, ".py")) == 30_000
    (tmp_path / "a.sh").write_text(f"pretrain_gpt.py {CHUNKS} ² --num-layers 2 {'$@ ' * 5_000}")
    assert len(lint_target(str(tmp_path / "a.sh")).findings) == 5_000 + 1  # a digit that is none


def test_a_file_of_a_script_that_cannot_be_read_hides_no_other(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"--tp \xff")
    (tmp_path / "a.sh").write_text("source a.txt\ntorchrun pretrain_gpt.py --num-layers 2 @a.txt\n")
    unread = "source a.txt: the variables that it sets are not read"
    assert lint_target(str(tmp_path / "a.sh")).left_out == ("@a.txt", unread)
