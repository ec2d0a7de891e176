"""What a document may be, and the one line that says what it is not."""

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from advisor.base import yaml_tree
from advisor.base.documents import (
    parse_toml,
    read_csv,
    read_json,
    read_json_lines,
    read_text,
    read_yaml,
)
from advisor.base.errors import UserError
from advisor.base.limits import (
    MOST_CONFIG_BYTES,
    MOST_DEPTH,
    MOST_DIGITS,
    MOST_EXPANDED,
    MOST_JSON_VALUES,
)

pytestmark = pytest.mark.every_python

DIGITS = "9" * MOST_DIGITS
LAUGHS = "a0: &a0 [x]\n" + "".join(
    f"a{level}: &a{level} [{','.join([f'*a{level - 1}'] * 10)}]\n" for level in range(1, 10)
)
"""Nine lines, and a thousand million values."""


def refused(read: Callable[..., object], *source: object) -> str:
    with pytest.raises(UserError) as error:
        read(*source)
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a: [1,\n", "line 2, column 1: "),
        ("a: 1\nb: {c: 1,\n  c: 2}", "line 3, column 3: key c is given twice"),
        ("a: 1\n2: b", "line 2, column 1: 2 is not a text key; put it in quotes"),
        ("a: {on: 1}", "line 1, column 5: on is not a text key"),
        ("? [a]\n: 1", "line 1, column 3: a key is not a text key"),
        (f"a: {DIGITS}9", f"line 1, column 4: a number of more than {MOST_DIGITS} digits"),
        (f"a: 0x{DIGITS}", "a number of more than"),
        ("a: 2024-13-45", "line 1, column 4: month must be in 1..12"),
        ("a: !!int ''", "line 1, column 4: is not a valid int"),
        ("a: !!timestamp x", "line 1, column 4: is not a valid timestamp"),
        ("a: !!python/object:os.system x", "line 1, column 4: could not determine a constructor"),
        ("a: &x [*x]", "line 1, column 8: x contains itself"),
        (LAUGHS, f"aliases expand to more than {MOST_EXPANDED:,} values"),
        (LAUGHS.replace("[x]", "{x: 1}").replace(": [*", ": {<<: [*"), "is not valid YAML"),
        ("[" * 100_000, f"nests deeper than {MOST_DEPTH} levels"),
        ("- " * 100_000, f"nests deeper than {MOST_DEPTH} levels"),
        ("".join(" " * n + "a:\n" for n in range(900)), "line 101, column 101: nests deeper"),
        ("- a", "must hold keys and values, but holds a list"),
        ("", "must hold keys and values, but holds nothing"),
        ("a: b" + " " * MOST_CONFIG_BYTES, "is larger than 512 KiB"),
    ],
)
def test_what_yaml_may_not_be(text: str, says: str) -> None:
    assert says in refused(read_yaml, text, "x.yaml")
    assert "x.yaml" in refused(read_yaml, text, "x.yaml")


def test_what_yaml_may_be() -> None:
    deep = "a: " + "[" * (MOST_DEPTH - 1) + "]" * (MOST_DEPTH - 1)
    assert len(json.dumps(read_yaml(deep))) == len('{"a": }') + 2 * (MOST_DEPTH - 1)
    assert read_yaml(f"a: {DIGITS}") == {"a": int(DIGITS)}
    assert read_yaml("a: &x {b: 1}\nc: *x\nd: {<<: *x, b: 2}") == {
        "a": {"b": 1},
        "c": {"b": 1},
        "d": {"b": 2},
    }
    assert read_yaml("text: see *this* & that\n'1': x") == {"text": "see *this* & that", "1": "x"}


def test_keys_that_a_merge_brings_are_not_given_twice() -> None:
    """The mapping q is flattened for c before it is made itself."""
    text = "base: &a {x: 1}\np: {q: &b {<<: *a, x: 2}}\nc: {<<: *b}"
    assert read_yaml(text)["c"] == {"x": 2}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"a": [1,\n  2', "line 2, column 4: Expecting ',' delimiter"),
        ('{"a": [1,\n {"b": 1, "b": 2}]}', "line 2, column 11: key b is given twice"),
        ('{"a": "NaN",\n "b": NaN}', "JSON: NaN is not a JSON number"),
        ('{"a": -Infinity}', "JSON: -Infinity is not a JSON number"),
        ('{"a": 1e400}', "JSON: 1e400 is too large"),
        ('{"9": "' + DIGITS + '9", "a": -' + DIGITS + "9}", f"more than {MOST_DIGITS} digits"),
        ('{"a": ' + "[" * 150 + "]" * 150 + "}", "column 107: nests deeper than 100 levels"),
        ("[" * 200_000, "column 101: nests deeper than 100 levels"),
        ('{"a": "\\ud800"}', "half of a surrogate pair"),
        ('{"a": [' + "1," * MOST_JSON_VALUES + "1]}", "more than 1,000,000 values"),
        ("[]", "must hold keys and values, but holds a list"),
        ("null", "must hold keys and values, but holds nothing"),
    ],
)
def test_what_json_may_not_be(text: str, says: str) -> None:
    assert says in refused(read_json, text, "x.json")
    assert "x.json" in refused(read_json, text, "x.json")


def test_what_json_may_be() -> None:
    text = '{"a": [1e-3, ' + DIGITS + ', "NaN", {"b": 1}, {"b": 1}], "c": "\\ud83d\\ude00"}'
    expected = {"a": [1e-3, int(DIGITS), "NaN", {"b": 1}, {"b": 1}], "c": "\U0001f600"}
    assert read_json(text) == expected


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a = \n", "line 1, column 5"),
        ("a = 1\na = 2", "Cannot overwrite a value"),
        ("a = " + "[" * 150 + "]" * 150, "nests deeper than 100 levels"),
        ("a = " + "[" * 15_000, "nests deeper than 100 levels"),
        (".".join("a" * 20_000) + " = 1", "nests deeper than 100 levels"),
        (f"a = {DIGITS}9", f"a number of more than {MOST_DIGITS} digits"),
        ("a = " + "9" * 5_000, f"a number of more than {MOST_DIGITS} digits"),
    ],
)
def test_what_toml_may_not_be(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=re.escape(says)):
        parse_toml(text)


def test_what_toml_may_be() -> None:
    read = parse_toml('[a.b]\nc = [1, 2.5]\nd = "1.2.3"')
    assert read == {"a": {"b": {"c": [1, 2.5], "d": "1.2.3"}}}


@pytest.mark.parametrize("read", [read_yaml, read_json])
def test_a_file_is_read_in_every_encoding_that_says_so(tmp_path: Path, read: Any) -> None:
    text = '{"a": "é"}\r\n'
    path = tmp_path / "f"
    for encoding in ("utf-8", "utf-8-sig", "utf-16"):
        path.write_bytes(text.encode(encoding))
        assert read(path) == {"a": "é"}
    path.write_bytes(text.encode("latin-1"))
    assert "is not UTF-8 text in line 1" in refused(read, path)
    path.write_bytes(b"\n\xff")
    assert "is not UTF-8 text in line 2" in refused(read, path)
    assert "cannot be read: " in refused(read, tmp_path)
    assert "cannot be read: " in refused(read, tmp_path / "none")
    assert "cannot be read: " in refused(read, Path("a\0b"))


def test_no_more_of_a_file_is_read_than_may_be(tmp_path: Path) -> None:
    path = tmp_path / "sparse"
    path.touch()
    os.truncate(path, 2**40)
    assert "is larger than 4 KiB" in refused(read_text, path, 4096)


def test_json_lines_end_where_a_kill_cut_them(tmp_path: Path) -> None:
    path = tmp_path / "j.jsonl"
    path.write_text('{"a": 1}\n{"a": 2}\n{"a": 3')
    assert read_json_lines(path) == ({"a": 1}, {"a": 2})
    path.write_text('{"a": 1}\n{"a": \n{"a": 3}\n')
    assert "j.jsonl:2: is not valid JSON: line 1, column 7" in refused(read_json_lines, path)
    assert read_json_lines(path, skip_broken=True) == ({"a": 1}, {"a": 3})


def test_a_table(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(b'a,b\r\n1,"x, y"\r\n2\r\n')
    assert read_csv(path) == (("a", "b"), ({"a": "1", "b": "x, y"}, {"a": "2", "b": ""}))
    path.write_text("a,b\n1,2,3\n")
    assert "line 2: more cells than columns" in refused(read_csv, path)
    path.write_text("a\n" + "x" * 200_000)
    assert "field larger than field limit" in refused(read_csv, path)


def test_ordinary_files_are_built_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The look at every event of a text is for those that may do harm."""

    def counted(_: str) -> None:
        raise AssertionError("an ordinary file was looked through")

    monkeypatch.setattr(yaml_tree, "_check_events", counted)
    root = Path(yaml_tree.__file__).parents[2] / "configs"
    for path in sorted(root.glob("*/*.yaml")):
        read_yaml(path)
