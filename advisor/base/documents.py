"""Every YAML, JSON, TOML and CSV file that a user gives, read within the limits of base/limits.py.

A document is a mapping with text keys, none given twice. JSON has no NaN and no Infinity. Whatever
is wrong is a UserError of one line: the file, the line and column where they are known, and why.
"""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import yaml

from advisor.base.endless import refuse_endless
from advisor.base.errors import UserError
from advisor.base.fields import show, show_path
from advisor.base.limits import (
    MOST_CONFIG_BYTES,
    MOST_DEPTH,
    MOST_DIGITS,
    MOST_EXPANDED,
    MOST_JSON_BYTES,
    MOST_JSON_VALUES,
    MOST_TEXT_BYTES,
)

_TOO_DEEP: Final = f"nests deeper than {MOST_DEPTH} levels"
_TOO_LONG: Final = f"a number of more than {MOST_DIGITS} digits"
_SURE_DEPTH: Final = 500
"""Levels that libyaml's composer, a C function that calls itself, has the stack for many times."""


class _RefusedError(ValueError):
    """What is wrong with a document, without its place."""


def read_text(path: Path, most: int = MOST_TEXT_BYTES) -> str:
    """The text of a file of at most `most` bytes: UTF-8, or UTF-16 that says so, as PowerShell
    redirects it."""
    refuse_endless(path, "file")
    try:
        with open(path, "rb") as file:
            data = file.read(most + 1)
    except OSError as error:
        raise UserError("file", show_path(path), f"cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise UserError("file", show_path(path), f"cannot be read: {error}") from None
    if len(data) > most:
        raise _too_large(path, most)
    wide = data.startswith((b"\xff\xfe", b"\xfe\xff"))
    try:
        return data.decode("utf-16" if wide else "utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        kind = "UTF-16" if wide else "UTF-8"
        raise UserError("file", show_path(path), f"is not {kind} text in line {line}") from None


def read_yaml(
    source: Path | str, file: object = "text", *, foreign: bool = False
) -> dict[Any, Any]:
    """The mapping in a file, or in a text that is called `file`.

    foreign: another program's file, which may have keys that are no text.
    """
    text, file = _text_of(source, file, MOST_CONFIG_BYTES)
    try:
        if _may_harm(text):
            _check_events(text)
        values = yaml.load(text, Loader=ForeignLoader if foreign else _OwnLoader)
        if _too_deep(values):
            _check_events(text)
    except yaml.MarkedYAMLError as error:
        raise _not_valid("YAML", file, _yaml_place(error)) from None
    except yaml.YAMLError as error:
        raise _not_valid("YAML", file, str(error)) from None
    except RecursionError:  # without libyaml, or keys within keys
        raise _not_valid("YAML", file, _TOO_DEEP) from None
    return _mapping(values, file)


def compose_yaml(text: str) -> yaml.Node | None:
    """The nodes of a text's first document, with their places; yaml.YAMLError where it is none, or
    beyond the limits."""
    if _may_harm(text):
        _check_events(text)
    try:
        node = next(iter(yaml.compose_all(text, yaml.SafeLoader)), None)
    except RecursionError:
        _check_events(text)
        raise
    if node is not None:
        _check_depth(node)
    return node


def read_json(source: Path | str, file: object = "text") -> dict[str, Any]:
    """The object in a file, or in a text that is called `file`."""
    import json

    text, file = _text_of(source, file, MOST_JSON_BYTES)
    try:
        if text.count(",") + text.count("[") + text.count("{") > MOST_JSON_VALUES:
            raise _not_valid("JSON", file, f"more than {MOST_JSON_VALUES:,} values")
        values = json.loads(
            text,
            object_pairs_hook=_unique,
            parse_int=_integer,
            parse_float=_finite,
            parse_constant=_constant,
        )
        if _too_deep(values):
            raise _RefusedError(_TOO_DEEP)
        if "\\u" in text:  # half of a surrogate pair: no file and no terminal takes it
            json.dumps(values, ensure_ascii=False).encode()
    except json.JSONDecodeError as error:
        reason = f"line {error.lineno}, column {error.colno}: {error.msg}"
        raise _not_valid("JSON", file, reason) from None
    except UnicodeEncodeError:
        raise _not_valid(
            "JSON", file, "half of a surrogate pair, which is not a character"
        ) from None
    except (_RefusedError, RecursionError) as error:
        raise _not_valid("JSON", file, _json_fault(text) or str(error)) from None
    return _mapping(values, file)


def read_json_lines(path: Path, *, skip_broken: bool = False) -> tuple[dict[str, Any], ...]:
    """The objects in a file that has one on each line; of a last line without end, which a kill cut
    short, nothing. skip_broken: lines that hold none are passed over."""
    found = []
    lines = read_text(path, MOST_JSON_BYTES).split("\n")
    for number, line in enumerate(lines[:-1], start=1):
        try:
            found.append(read_json(line, f"{path}:{number}"))
        except UserError:
            if not skip_broken:
                raise
    return tuple(found)


def read_toml(source: Path | str, file: object = "text") -> dict[str, Any]:
    """The table in a file, or in a text that is called `file`."""
    text, file = _text_of(source, file, MOST_CONFIG_BYTES)
    try:
        return parse_toml(text)
    except ValueError as error:
        raise _not_valid("TOML", file, str(error)) from None


def parse_toml(text: str) -> dict[str, Any]:
    """The table in a text; ValueError that says why there is none."""
    import tomllib

    try:
        if max(piece.count(".") for piece in _BETWEEN_KEYS.split(text)) > MOST_DEPTH:
            raise _RefusedError(_TOO_DEEP)  # tomllib takes the square of a dotted key's length
        values = tomllib.loads(text)
        if _too_deep(values):
            raise _RefusedError(_TOO_DEEP)
    except RecursionError:
        raise _RefusedError(_TOO_DEEP) from None
    except (tomllib.TOMLDecodeError, _RefusedError):
        raise
    except (ValueError, ArithmeticError) as error:  # Python's own limit of an integer's digits
        raise _RefusedError(_TOO_LONG if "digits" in str(error) else str(error)) from None
    if any(isinstance(one, int) and abs(one) >= 10**MOST_DIGITS for one in _scalars(values)):
        raise _RefusedError(_TOO_LONG)
    return values


def read_csv(path: Path) -> tuple[tuple[str, ...], tuple[dict[str, str], ...]]:
    """Columns and rows of a table with a head; a cell that a row lacks is empty."""
    import csv
    from io import StringIO

    reader = csv.DictReader(StringIO(read_text(path), newline=""), restval="")
    try:
        rows = []
        for row in reader:
            if None in row:
                raise csv.Error("more cells than columns")
            rows.append(row)
        return tuple(reader.fieldnames or ()), tuple(rows)
    except csv.Error as error:
        reason = f"line {reader.line_num}: {error}"
        raise _not_valid("CSV", path, reason) from None


_BETWEEN_KEYS: Final = re.compile(r"[=\n{},\[\]]")


def _text_of(source: Path | str, file: object, most: int) -> tuple[str, object]:
    if isinstance(source, Path):
        return read_text(source, most), source
    if len(source) > most:
        raise _too_large(file, most)
    return source, file


def _too_large(file: object, most: int) -> UserError:
    return UserError("file", show_path(file), f"is larger than {most // 1024:,} KiB")


def _not_valid(kind: str, file: object, reason: str) -> UserError:
    return UserError("file", show_path(file), f"is not valid {kind}: {' '.join(reason.split())}")


def _mapping(values: object, file: object) -> dict[Any, Any]:
    if isinstance(values, dict):
        return values
    kind = "nothing" if values is None else f"a {type(values).__name__}"
    raise UserError("file", show_path(file), f"must hold keys and values, but holds {kind}")


def _children(node: Any) -> Iterable[Any]:
    found: Iterable[Any] = node.values() if isinstance(node, dict) else node
    return found


def _too_deep(values: object) -> bool:
    """Whether lists and mappings nest deeper than `MOST_DEPTH`, level by level."""
    level = [values] if isinstance(values, dict | list) else []
    for _ in range(MOST_DEPTH):
        level = [c for node in level for c in _children(node) if isinstance(c, dict | list)]
        if not level:
            return False
    return True


def _scalars(values: object) -> Iterator[object]:
    """Every value that is neither a list nor a mapping; the document does not nest too deep."""
    if isinstance(values, dict | list):
        for child in _children(values):
            yield from _scalars(child)
    else:
        yield values


def _yaml_place(error: yaml.MarkedYAMLError) -> str:
    """``line 3, column 7: could not find expected ':'``."""
    mark = error.problem_mark
    where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
    return where + " ".join((error.problem or "broken").split())


_ALIAS: Final = re.compile(r"(?<![^\s\[{,:?-])\*[^\s*]")
"""Where an alias may stand; prose has an asterisk there now and then."""


def _may_harm(text: str) -> bool:
    """Whether a YAML text may have aliases, or nest deeper than the C composer may be given."""
    if "*" in text and "&" in text and _ALIAS.search(text):
        return True
    in_one_line = max((line.count("- ") + line.count("? ") for line in text.split("\n")), default=0)
    return text.count("[") + text.count("{") + in_one_line > _SURE_DEPTH


def _check_events(text: str) -> None:
    """MarkedYAMLError where a YAML text nests too deep, or its aliases would make too much of it.
    Nothing is built, and libyaml's parser calls itself for nothing."""
    whole: dict[str | None, int] = {}
    opened: list[tuple[str | None, int]] = [(None, 0)]
    for event in yaml.parse(text, Loader=_OwnLoader):
        size = 0
        if isinstance(event, yaml.CollectionStartEvent):
            opened.append((event.anchor, 1))
            if len(opened) - 1 > MOST_DEPTH:
                raise _marked(_TOO_DEEP, event)
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, size = opened.pop()
            whole[anchor] = size
        elif isinstance(event, yaml.AliasEvent):
            if event.anchor in (anchor for anchor, _ in opened):
                raise _marked(f"{show(event.anchor)} contains itself", event)
            size = whole.get(event.anchor, 1)
        elif isinstance(event, yaml.ScalarEvent):
            size = whole[event.anchor] = 1
        anchor, sum_so_far = opened.pop()
        opened.append((anchor, sum_so_far + size))
        if sum_so_far + size > MOST_EXPANDED:
            raise _marked(f"aliases expand to more than {MOST_EXPANDED:,} values", event)


def _check_depth(node: yaml.Node) -> None:
    """LimitError where composed nodes nest too deep, level by level."""
    level = [node]
    for _ in range(MOST_DEPTH + 1):
        collections = [one for one in level if isinstance(one, yaml.CollectionNode)]
        if not collections:
            return
        level = [
            child
            for one in collections
            for item in one.value
            for child in (item if isinstance(item, tuple) else (item,))
        ]
    raise _marked(_TOO_DEEP, level[0])


class LimitError(yaml.MarkedYAMLError):
    """A YAML text beyond the limits, or with what is refused here."""


def _marked(reason: str, event: Any) -> LimitError:
    return LimitError(problem=reason, problem_mark=event.start_mark)


class ForeignLoader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """In C where libyaml is there, ten times as fast. Refuses a key given twice, and an integer
    without end."""

    text_keys = False

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        """Check a mapping before the keys that it merges are put into it, and thus once."""
        checked = self.__dict__.setdefault("checked", set())
        if id(node) not in checked:
            checked.add(id(node))
            self._check_keys(node)
        super().flatten_mapping(node)

    def _check_keys(self, node: yaml.MappingNode) -> None:
        seen: set[str] = set()
        for key, _ in node.value:
            if self.text_keys and key.tag not in _TEXT_TAGS:
                shown = show(key.value) if isinstance(key, yaml.ScalarNode) else "a key"
                raise _marked(f"{shown} is not a text key; put it in quotes", key)
            if not isinstance(key, yaml.ScalarNode):
                continue
            if key.value in seen:
                raise _marked(f"key {show(key.value)} is given twice", key)
            seen.add(key.value)

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        """The value of a node; MarkedYAMLError where it is not what its tag says."""
        try:
            return super().construct_object(node, deep)
        except (ValueError, ArithmeticError) as error:
            raise _marked(str(error), node) from None
        except (LookupError, AttributeError, TypeError):
            raise _marked(f"is not a valid {node.tag.rpartition(':')[2]}", node) from None

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
        """An integer, of at most `MOST_DIGITS` characters."""
        if len(str(node.value)) > MOST_DIGITS:
            raise _marked(_TOO_LONG, node)
        return int(super().construct_yaml_int(node))


class _OwnLoader(ForeignLoader):
    """Refuses keys that are no text too."""

    text_keys = True


_TEXT_TAGS: Final = ("tag:yaml.org,2002:str", "tag:yaml.org,2002:merge")
for _loader in (ForeignLoader, _OwnLoader):
    _loader.add_constructor("tag:yaml.org,2002:int", ForeignLoader.construct_yaml_int)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        raise _RefusedError("a key is given twice")
    return values


def _integer(text: str) -> int:
    if len(text) > MOST_DIGITS:
        raise _RefusedError(_TOO_LONG)
    return int(text)


def _finite(text: str) -> float:
    number = float(text)
    if number in (float("inf"), float("-inf")):
        raise _RefusedError(f"{show(text)} is too large")
    return number


def _constant(text: str) -> float:
    raise _RefusedError(f"{text} is not a JSON number")


_JSON_TOKEN: Final = re.compile(
    r'"(?:[^"\\]|\\.)*"\s*:?|[][{}]|-?\d[\d.eE+-]*|NaN|-?Infinity', re.DOTALL
)


def _json_fault(text: str) -> str:
    """Place and reason of what the hooks refuse: they are not told where they are."""
    keys: list[set[str]] = []
    for match in _JSON_TOKEN.finditer(text):
        token, reason = match[0], ""
        if token in "[{":
            keys.append(set())
            reason = _TOO_DEEP if len(keys) > MOST_DEPTH else ""
        elif token in "]}":
            keys = keys[:-1]
        elif token.endswith(":") and keys:
            key = token[1:].rstrip(": \t\r\n").removesuffix('"')
            reason = f"key {show(key)} is given twice" if key in keys[-1] else ""
            keys[-1].add(key)
        elif not token.startswith('"'):
            reason = _number_fault(token)
        if reason:
            line, start = text.count("\n", 0, match.start()) + 1, text.rfind("\n", 0, match.start())
            return f"line {line}, column {match.start() - start}: {reason}"
    return ""


def _number_fault(token: str) -> str:
    try:
        if token.lstrip("-") in ("NaN", "Infinity"):
            _constant(token)
        elif token.lstrip("-").isdigit():
            _integer(token)
        else:
            _finite(token)
    except ValueError as error:
        return str(error)
    return ""
