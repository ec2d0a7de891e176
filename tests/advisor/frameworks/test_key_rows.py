"""Rows of configs/rules that are made rules: what a row has to say, and what code says for it."""

import pytest

from advisor.base.place import Place
from advisor.frameworks import key_rows
from advisor.frameworks.option import Option
from advisor.reading.key_rules import key_findings
from advisor.reading.read_configuration import Keys

SOURCE = {"source": "a file"}
OPTIONS = (
    Option(name="part.on", kind=bool),
    Option(name="part.size", kind=int),
    Option(name="other.on", kind=bool),
)


def found(monkeypatch, rows: dict, values: dict, **code) -> list[tuple[str, str]]:
    monkeypatch.setattr(key_rows, "rows_of", {"x.json": rows}.__getitem__)
    keys = Keys(place=Place("f", 1, 1))
    for line, (name, value) in enumerate(values.items(), start=2):
        keys.put(name, value, Place("f", line, 1))
    rules = tuple(key_rows.written("x", code, OPTIONS))
    return [(one.rule, one.reason) for one in key_findings(rules, keys)]


def test_values_of_options_of_a_kind(monkeypatch) -> None:
    row = {"at": "part", "kind": "bool", "legal": ["auto", "boolean"], "says": "{key}", **SOURCE}
    values = {"part.on": 3, "part.size": "x", "other.on": 3}
    assert found(monkeypatch, {"kinds": row}, values) == [("kinds", "part.on")]
    assert not found(monkeypatch, {"kinds": row}, {"part.on": "auto"})


def test_a_row_for_each_section_asks_its_code_of_that(monkeypatch) -> None:
    row = {"each": ["part", "other"], "at": "EACH", "says": "EACH is {found}", **SOURCE}
    code = {"each": lambda section, keys: section == "other" and keys.has("other.on")}
    assert found(monkeypatch, {"each": row}, {"other.on": 1}, **code) == [("each", "other is True")]
    given = {"each": {**row, "given": "never"}}
    assert not found(monkeypatch, given, {"other.on": 1}, never=lambda _: False, **code)


def test_names_and_choices(monkeypatch) -> None:
    names = {"section": "part", "says": "no such", "fix": "use {names}", "fault": "name", **SOURCE}
    choice = {"at": "part.on", "choices": ["A", "B"], "fold": "upper", **SOURCE}
    rows = {"names": names, "choice": choice}
    values = {"part.of": 1, "part.on": "c"}
    (name, what), (other, _) = found(monkeypatch, rows, values)
    assert (name, what, other) == ("name", "of: no such", "choice")
    assert not found(monkeypatch, rows, {"part.on": "a"})


def test_a_row_without_a_condition_is_an_error(monkeypatch) -> None:
    with pytest.raises(KeyError):
        found(monkeypatch, {"none": {"at": "part", "says": "", **SOURCE}}, {})
