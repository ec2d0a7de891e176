"""Every YAML, JSON, TOML and CSV file that a user gives, read within the limits of base/limits.py.

A document is a mapping with text keys, none given twice. JSON has no NaN and no Infinity. Whatever
is wrong is a UserError of one line: the file, the line and column where they are known, and why.
"""

import os
import re
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

from advisor.base import limits
from advisor.base.errors import DocumentError, UserError, show, show_path

_TOO_DEEP: Final = f"nests deeper than {limits.MOST_DEPTH} levels"
_TOO_LONG: Final = f"a number of more than {limits.MOST_DIGITS} digits"


class _RefusedError(ValueError):
    """What is wrong with a document, without its place."""


def read_text(path: Path, most: int = limits.MOST_TEXT_BYTES) -> str:
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


def read_yaml(source: Path | str, file: object = "text") -> dict[str, Any]:
    """The mapping in a file, or in a text that is called `file`."""
    text, file = _text_of(source, file, limits.MOST_CONFIG_BYTES)
    from advisor.base.yaml_tree import read_yaml_tree

    try:
        values = read_yaml_tree(text).values
    except DocumentError as error:
        raise _not_valid("YAML", file, str(error)) from None
    return _mapping(values, file)


def read_json(source: Path | str, file: object = "text", foreign: bool = False) -> dict[str, Any]:
    """The object in a file, or in a text that is called `file`. foreign: see parse_json."""
    text, file = _text_of(source, file, limits.MOST_JSON_BYTES)
    try:
        values = parse_json(text, foreign=foreign)
    except DocumentError as error:
        raise _not_valid("JSON", file, str(error)) from None
    return _mapping(values, file)


def parse_json(text: str, *, foreign: bool = False) -> Any:
    """The value in a text; DocumentError that says why there is none, or it is beyond the limits.

    foreign: another program's, as Python reads it: with NaN, and of keys given twice the last.
    """
    import json

    hooks: dict[str, Any] = {
        "object_pairs_hook": _unique,
        "parse_int": _integer,
        "parse_float": _finite,
        "parse_constant": _constant,
    }
    try:
        if text.count(",") + text.count("[") + text.count("{") > limits.MOST_JSON_VALUES:
            raise DocumentError(f"more than {limits.MOST_JSON_VALUES:,} values", beyond=True)
        values = json.loads(text, **({} if foreign else hooks))
        if _too_deep(values):
            raise _RefusedError(_TOO_DEEP)
        if "\\u" in text:  # half of a surrogate pair: no file and no terminal takes it
            json.dumps(values, ensure_ascii=False).encode()
    except json.JSONDecodeError as error:
        raise DocumentError(error.msg, (error.lineno - 1, error.colno - 1)) from None
    except UnicodeEncodeError:
        raise DocumentError("half of a surrogate pair, which is not a character") from None
    except DocumentError:
        raise
    except (ValueError, RecursionError) as error:
        raise _placed(text, error) from None
    return values


def read_json_lines(path: Path, *, skip_broken: bool = False) -> tuple[dict[str, Any], ...]:
    """The objects in a file that has one on each line; of a last line without end, which a kill cut
    short, nothing. skip_broken: lines that hold none are passed over."""
    found = []
    lines = read_text(path, limits.MOST_JSON_BYTES).split("\n")
    for number, line in enumerate(lines[:-1], start=1):
        try:
            found.append(read_json(line, f"{path}:{number}"))
        except UserError:
            if not skip_broken:
                raise
    return tuple(found)


def parse_toml(text: str) -> dict[str, Any]:
    """The table in a text; ValueError that says why there is none."""
    import tomllib

    try:
        if max(piece.count(".") for piece in re.split(_BETWEEN_KEYS, text)) > limits.MOST_DEPTH:
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
    if any(isinstance(one, int) and abs(one) >= 10**limits.MOST_DIGITS for one in _scalars(values)):
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
        raise _not_valid("CSV", path, f"line {reader.line_num}: {error}") from None


_BETWEEN_KEYS: Final = r"[=\n{},\[\]]"


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
    for _ in range(limits.MOST_DEPTH):
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


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        raise _RefusedError("a key is given twice")
    return values


def _integer(text: str) -> int:
    if len(text) > limits.MOST_DIGITS:
        raise _RefusedError(_TOO_LONG)
    return int(text)


def _finite(text: str) -> float:
    number = float(text)
    if number in (float("inf"), float("-inf")):
        raise _RefusedError(f"{show(text)} is too large")
    return number


def _constant(text: str) -> float:
    raise _RefusedError(f"{text} is not a JSON number")


def _placed(text: str, error: Exception) -> DocumentError:
    """The fault with its place, which hooks do not know: JSON is nearly YAML, whose reader does."""
    if len(text) <= limits.MOST_CONFIG_BYTES:
        from advisor.base.yaml_tree import read_yaml_tree

        try:
            read_yaml_tree(text)
        except DocumentError as found:
            if found.beyond:
                return found
    return DocumentError(
        _TOO_DEEP if isinstance(error, RecursionError) else str(error), beyond=True
    )


_DESCRIPTORS: Final = ("/dev/stdin", "/dev/fd/", "/proc/self/fd/")
"""What a shell gives another program to read: `<(command)`, `command | advise lint /dev/stdin`."""


def refuse_endless(path: Path, field: str) -> None:
    """UserError for a named pipe or a device, which nobody may ever write to or which never ends;
    one that does not exist is left to whoever opens it."""
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError):
        return
    if stat.S_ISREG(mode) or stat.S_ISDIR(mode) or str(path).startswith(_DESCRIPTORS):
        return
    raise UserError(field, show_path(path), "is a pipe or a device", "give a file")
