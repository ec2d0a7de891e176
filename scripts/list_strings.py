#!/usr/bin/env python3
"""Lists every text that a user can meet: pages, errors, notes, help, rules, failures, recipes.

scripts/list_strings.py [PATH]...      # default: advisor harness configs

Python: string literals of two words or more, an f-string as one text with its fields in braces; no
patterns, annotations, docstrings or lists of keys. JavaScript: strings and templates, of ``html``
templates and of HTML what stands between tags and in attributes; it is read by regular expressions,
which take a `/` after an operator or a bracket for the begin of a pattern. YAML: values and CSV:
cells of two words or more. Help pages: paragraphs, and topics with their rows. What others have
written (folders ``vendor``) is left out. A text that stands in several places is listed once, at
the first.
"""

import argparse
import ast
import csv
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("advisor", "harness", "configs")

_WORDS = re.compile(r"[A-Za-z]{2,}[,;:.)'’]*\s+\S*[A-Za-z]{2,}")
_PATTERN_MAKERS = {"compile", "search", "match", "fullmatch", "sub", "findall", "finditer"}

_SCRIPT = re.compile(
    r"/\*.*?\*/|//[^\n]*"
    r"|(?<=[(,=:?|&!])\s*/(?:\\.|\[(?:\\.|[^\]\\])*\]|[^/\\\[\n])+/"
    r"|(?P<string>\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*')"
    r"|(?P<template>(?:html)?`)|(?P<open>\{)|(?P<close>\})",
    re.DOTALL,
)
"""Comments, patterns, strings, begins of templates, braces."""
_PART = re.compile(r"(?:\S| +\S).*(?:\n.+)*")
_TEMPLATE = re.compile(r"\\.|(?P<end>`)|(?P<field>\$\{)", re.DOTALL)
_HOLE, _HOLE_END = "\ue000", "\ue001"
_MARKUP = re.compile(r"(?P<unread><(script|style)\b.*?</\2>|<!--.*?-->)|<[^>]*>|[^<]+", re.DOTALL)
_ATTRIBUTE = re.compile(r"(?<=\s)(?!class|style|content|d=)[\w-]+=\"([^\"]*)\"")

Text = tuple[int, str]


def texts_in(path: Path) -> list[Text]:
    """Line and text of each string of `path` that reads as words, in the order of lines."""
    readers = {
        ".py": _python_texts,
        ".js": _script_texts,
        ".html": _page_texts,
        ".yaml": _yaml_texts,
        ".csv": _csv_texts,
        ".txt": _help_texts,
    }
    reader = readers.get(path.suffix)
    found = reader(path.read_text(encoding="utf-8")) if reader else ()
    flat = {(line, " ".join(text.split())) for line, text in found}
    return sorted((line, text) for line, text in flat if _reads_as_words(text))


def _reads_as_words(text: str) -> bool:
    """Two words or more, and not a list of keys."""
    return bool(_WORDS.search(text)) and not _lists_keys(text.split())


def _lists_keys(words: list[str]) -> bool:
    """Whether all words have an underscore, or three and more than half."""
    keys = sum("_" in word for word in words)
    return keys == len(words) or keys > max(2, len(words) / 2)


def files_below(paths: list[Path]) -> list[Path]:
    """The files that may hold texts, sorted."""
    suffixes = (".py", ".js", ".html", ".yaml", ".csv", ".txt")
    found = {
        file
        for path in paths
        for file in (path.rglob("*") if path.is_dir() else [path])
        if file.suffix in suffixes and "vendor" not in file.parts
    }
    return sorted(found)


def _python_texts(source: str) -> Iterator[Text]:
    tree = ast.parse(source)
    silent = {id(node) for node in _silent(tree)}
    yield from _visible(tree, silent)


def _visible(node: ast.AST, silent: set[int]) -> Iterator[Text]:
    if id(node) in silent:
        return
    if isinstance(node, ast.JoinedStr):
        yield node.lineno, _format_text(node)
        return
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.lineno, node.value
    for child in ast.iter_child_nodes(node):
        yield from _visible(child, silent)


def _silent(tree: ast.AST) -> Iterator[ast.AST]:
    """Strings that no user meets: docstrings, patterns, annotations."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            yield node.value
        elif isinstance(node, ast.Call) and _is_pattern_maker(node.func):
            yield from node.args
        elif isinstance(node, ast.AnnAssign | ast.arg) and node.annotation:
            yield node.annotation
        elif isinstance(node, ast.FunctionDef) and node.returns:
            yield node.returns


def _is_pattern_maker(function: ast.expr) -> bool:
    return (
        isinstance(function, ast.Attribute)
        and function.attr in _PATTERN_MAKERS
        and isinstance(function.value, ast.Name)
        and function.value.id == "re"
    )


def _format_text(node: ast.JoinedStr) -> str:
    return "".join(
        str(part.value)
        if isinstance(part, ast.Constant)
        else ast.unparse(ast.JoinedStr(values=[part]))[2:-1]
        for part in node.values
    )


def _script_texts(source: str) -> Iterator[Text]:
    return _by_line(source, _code(source, 0)[0])


def _page_texts(source: str) -> Iterator[Text]:
    return _by_line(source, _markup(source))


def _help_texts(source: str) -> Iterator[Text]:
    """What stands between blank lines: a paragraph, or a topic with its rows."""
    return _by_line(source, ((part.start(), part[0]) for part in _PART.finditer(source)))


def _by_line(source: str, found: Iterable[Text]) -> Iterator[Text]:
    return ((source.count("\n", 0, place) + 1, text) for place, text in found)


def _code(source: str, place: int) -> tuple[list[Text], int]:
    """Strings and templates up to the closing brace of what is around, and where that ends."""
    found: list[Text] = []
    depth = 0
    while token := _SCRIPT.search(source, place):
        place = token.end()
        if token["string"]:
            found.append((token.start(), token["string"][1:-1]))
        elif token["template"]:
            texts, place = _template(source, place, markup=token["template"] != "`")
            found += texts
        elif token["open"]:
            depth += 1
        elif token["close"]:
            depth -= 1
            if depth < 0:
                return found, place
    return found, len(source)


def _template(source: str, begin: int, *, markup: bool) -> tuple[list[Text], int]:
    """The text of a template, or what its markup shows, and the texts of its fields."""
    found: list[Text] = []
    text, place = "", begin
    while token := _TEMPLATE.search(source, place):
        text += source[place : token.start()]
        place = token.end()
        if token["end"]:
            break
        if token["field"]:
            texts, place = _code(source, place)
            found += texts
        text += _HOLE * (place - token.start() - 1) + _HOLE_END
    for at, part in _markup(text) if markup else [(0, text)]:
        found.append((begin + at, _filled(part, source[begin + at :])))
    return found, place


def _filled(text: str, source: str) -> str:
    """`text`, whose holes are as long as what `source` has there, with short fields in braces."""

    def field(hole: re.Match[str]) -> str:
        said = source[hole.start() : hole.end()].removeprefix("$")
        return said if re.fullmatch(r"\{[\w.()]{1,30}\}", said) else "{…}"

    return re.sub(f"{_HOLE}*{_HOLE_END}", field, text)


def _markup(text: str) -> Iterator[Text]:
    """What stands between tags, and the values of their attributes, each with its place."""
    for part in _MARKUP.finditer(text):
        if not part[0].startswith("<"):
            blanks = len(part[0]) - len(part[0].lstrip())
            yield part.start() + blanks, part[0][blanks:]
        elif not part["unread"]:
            for value in _ATTRIBUTE.finditer(part[0]):
                yield part.start() + value.start(1), value[1]


def _yaml_texts(source: str) -> Iterator[Text]:
    pending = [node for node in yaml.compose_all(source, yaml.SafeLoader) if node is not None]
    while pending:
        node = pending.pop()
        if isinstance(node, yaml.ScalarNode):
            yield node.start_mark.line + 1, node.value
        elif isinstance(node, yaml.MappingNode):
            pending += [value for _, value in node.value]
        else:
            pending += node.value


def _csv_texts(source: str) -> Iterator[Text]:
    reader = csv.reader(source.splitlines())
    for cells in reader:
        yield from ((reader.line_num, cell) for cell in cells)


def main() -> None:
    """Print ``file:line  text``, each text once, and how many there are."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("paths", nargs="*", type=Path, default=[ROOT / name for name in FOLDERS])
    seen: set[str] = set()
    for file in files_below(parser.parse_args().paths):
        for line, text in texts_in(file):
            if text not in seen:
                seen.add(text)
                print(f"{file.resolve().relative_to(ROOT)}:{line}  {text}")
    print(f"{len(seen)} texts", file=sys.stderr)


if __name__ == "__main__":
    main()
