"""No text that a user can meet holds a form that docs/wording.md replaces."""

import ast
import re
import sys
import tokenize
from collections.abc import Iterator
from importlib import import_module
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
GUIDE = ROOT / "docs" / "wording.md"


@pytest.fixture
def list_strings(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The script, which is no package's module."""
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    monkeypatch.delitem(sys.modules, "list_strings", raising=False)
    return import_module("list_strings")


def _replaced() -> list[str]:
    """The left column of the table below ``Instead of``."""
    table = GUIDE.read_text(encoding="utf-8").partition("## Instead of")[2]
    return re.findall(r"^\| (?!not \|)(?!---)(.+?) \|", table, re.MULTILINE)


def test_the_guide_has_a_table() -> None:
    assert "is none of" in _replaced()


def test_no_text_holds_what_is_replaced(list_strings: Any) -> None:
    folders, replaced = [ROOT / name for name in list_strings.FOLDERS], _replaced()
    found = [
        f"{file.relative_to(ROOT)}:{line}: {form}"
        for file in list_strings.files_below(folders)
        for line, text in list_strings.texts_in(file)
        for form in replaced
        if form in text
    ]
    assert not found


def test_the_list_knows_what_a_user_meets(list_strings: Any, tmp_path: Path) -> None:
    source = tmp_path / "a.py"
    source.write_text(
        '"""Not this one."""\n'
        'import re\nPATTERN = re.compile("nor this one")\nKEYS = "tp_size pp_size"\n'
        'def said(n: int) -> str:\n    return f"row {n:.1f} of "  "the page"\n'
        'def rule(n: int) -> int:\n    """pp needs tp.\n\n    More."""\n'
        'NOTE = "needs tp_size"\n'
    )
    assert list_strings.texts_in(source) == [(6, "row {n:.1f} of the page"), (11, "needs tp_size")]
    table = tmp_path / "a.yaml"
    table.write_text("key: one\nwhy: >-\n  two words,\n  and more\n")
    assert list_strings.texts_in(table) == [(2, "two words, and more")]
    page = tmp_path / "a.txt"
    page.write_text("advise it\n\nFlags\n  --tp N  the degree\n      of it\n")
    assert list_strings.texts_in(page) == [(1, "advise it"), (3, "Flags --tp N the degree of it")]


def test_the_list_knows_what_a_page_shows(list_strings: Any, tmp_path: Path) -> None:
    script = tmp_path / "a.js"
    script.write_text(
        '/* not this one */ const split = text.split(/["` ]+ nor this/); // nor "this one"\n'
        "const half = all / 2, why = 'it doesn\\'t fit';\n"
        'const row = html`<${Card} class="nor this" title="The first row">\n'
        "  ${many(n, `${n} of ${all.length} rows, ${open ? `not {all} yet` : ''}`)} are <b>dearly\n"
        '  loved</b></${Card}>`, last = { "one key": 1 };\n'
    )
    assert list_strings.texts_in(script) == [
        (2, "it doesn\\'t fit"),
        (3, "The first row"),
        (4, "dearly loved"),
        (4, "not {all} yet"),
        (4, "{n} of {all.length} rows, {…}"),
        (5, "one key"),
    ]
    page = tmp_path / "a.html"
    page.write_text("<title>One page</title>\n<style>not this</style>\n<p>and\n more</p>")
    assert list_strings.texts_in(page) == [(1, "One page"), (3, "and more")]
    (tmp_path / "vendor").mkdir()
    (tmp_path / "vendor" / "b.js").write_text("const other = 'not of ours';")
    assert list_strings.files_below([tmp_path]) == [page, script]


# Phrases of no performance engineer: after, except, next to, omitted.
PHRASES = re.compile(
    r"\bbut for (?!all\b)|\bbeside\b(?!:)|\bunsaid\b(?!:)|\ballocator replayed\b"
    r"|(?<!left )(?<!leave )(?<!leaves )(?<!hidden )(?<!hides )(?<!hide )\bbehind\b",
    re.IGNORECASE,
)
CLEAN = ("advisor", "harness", "research", "scripts", "tests")


def _prose(source: str) -> Iterator[str]:
    """Docstrings and comments, without names in backticks."""
    for token in tokenize.generate_tokens(StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.string
    for node in ast.walk(ast.parse(source)):
        for child in node.body if isinstance(getattr(node, "body", None), list) else ():
            match child:
                case ast.Expr(value=ast.Constant(value=str(text))):
                    yield re.sub(r"`[^`]*`", "", " ".join(text.split()))


@pytest.mark.parametrize("folder", CLEAN)
def test_docstrings_and_comments_are_the_fields_english(folder: str) -> None:
    found = [
        (path.relative_to(ROOT).as_posix(), text[max(0, match.start() - 40) : match.end() + 20])
        for path in sorted((ROOT / folder).rglob("*.py"))
        for text in _prose(path.read_text(encoding="utf-8"))
        for match in PHRASES.finditer(text)
    ]
    assert not found


_NAMES = re.compile(r"(^|_)(beside|behind|unsaid|told)(_|$)")
_KEPT = {"beside", "beside_degrees", "unsaid"}
"""Keys of the JSON, and the keyword of `advise` that was renamed: kept while they are read."""


def _names(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name) | ast.arg(arg=name):
                yield name
            case ast.Name(id=name, ctx=ast.Store()):
                yield name


@pytest.mark.parametrize("folder", ["advisor", "harness", "research", "scripts"])
def test_names_are_the_fields_english(folder: str) -> None:
    found = [
        (path.relative_to(ROOT).as_posix(), name)
        for path in sorted((ROOT / folder).rglob("*.py"))
        for name in _names(ast.parse(path.read_text(encoding="utf-8")))
        if "workers" not in path.parts  # Optuna's word for an outcome that a study knows
        if _NAMES.search(name) and name not in _KEPT
    ]
    assert not found
