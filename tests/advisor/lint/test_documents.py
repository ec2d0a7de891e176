"""Trees and Python sources with their places."""

import pytest

from advisor.base.errors import UserError
from advisor.base.place import Place
from advisor.reading.document_tree import Tree, read_tree
from advisor.reading.python_source import read_python
from advisor.reading.words import word


def tree(text: str, suffix: str) -> Tree:
    found = read_tree(word(text, Place("f", 1, 1)), suffix)
    assert found is not None
    return found


def test_places_in_every_format() -> None:
    for text, suffix in (
        ("a:\n  b: 1\n", ".yaml"),
        ('{"a":\n {"b": 1}}', ".json"),
        ("[a]\nb = 1\n", ".toml"),
    ):
        found = tree(text, suffix)
        assert found.get("a", "b") == 1
        assert found.where("a", "b").line == 2


def test_json_keeps_its_numbers_and_its_faults() -> None:
    found = tree('{"a": 5e8, "b": $X,}', ".json")
    assert found.get("a") == 5e8
    assert found.get("b") == "$X"
    assert found.faults[0][0].startswith("is not valid JSON")
    assert tree('{"a": 1, "a": 2}', ".json").faults[0][0] == "a is given twice"
    assert tree('{\n\t"a": 1\n}', ".json").get("a") == 1


def test_what_is_no_document_is_one_line() -> None:
    for text, suffix in (("a: [1", ".yaml"), ("a = ", ".toml")):
        with pytest.raises(UserError, match=r"is not valid (YAML|TOML)"):
            tree(text, suffix)
    with pytest.raises(UserError, match="is not valid Python in line 2"):
        read_python(word("a = 1\nb = (", Place("f", 1, 1)))


PYTHON = """
from x import Config
TP = 4
def recipe(layers: int = 2, fast: bool = False):
    cfg = Config(tp=TP * 2, layers=layers, unknown=f())
    if fast:
        cfg.model.modules = ["mlp"]
    else:
        cfg.model.modules = None
    return cfg
"""


def test_python_is_followed_and_not_run() -> None:
    source = read_python(word(PYTHON, Place("f.py", 1, 1)))
    ways = [way for way in source.ways if way.name == "recipe"]
    assert [way.assigned["cfg.model.modules"].value for way in ways] == [["mlp"], None]
    assert [way.branch for way in ways] == [("fast",), ("not fast",)]
    (call,) = [call for call in ways[0].calls if call.name == "Config"]
    assert (call.keywords["tp"].value, call.keywords["layers"].value) == (8, 2)
    assert not call.keywords["unknown"].known
    assert call.keywords["tp"].place == Place("f.py", 5, 18)
    in_characters = read_python(word('f("日本", a=1)', Place("f.py", 1, 1))).ways[0].calls[0]
    assert in_characters.keywords["a"].place == Place("f.py", 1, 9)
