"""YAML, JSON and TOML as one tree of values, each with the place where it is written."""

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, Final

from msgspec import Struct, field
from msgspec.structs import replace

from advisor.base.documents import parse_json, parse_toml
from advisor.base.errors import DocumentError, UserError
from advisor.base.place import Place
from advisor.reading.words import Word

Path = tuple[str, ...]
_SECTION: Final = re.compile(r"\s*\[\[?\s*([^\]]+?)\s*\]\]?")
_KEY: Final = re.compile(r"\s*([\w.\-]+|\"[^\"]+\")\s*=\s*")
_VARIABLE: Final = re.compile(r"\$\{?\w+\}?|\{\{.*?\}\}")


class Tree(Struct, frozen=True, kw_only=True):
    """A document of nested mappings. places: of the value (YAML, JSON) or the key (TOML) at a path.
    faults: what its own format refuses, with the place."""

    format: str
    values: Mapping[str, Any]
    place: Place
    places: Mapping[Path, Place] = field(default_factory=dict)
    faults: tuple[tuple[str, Place], ...] = ()

    def get(self, *path: str) -> Any:
        """The value at `path`; None where there is none."""
        value: Any = self.values
        for name in path:
            value = value.get(name) if isinstance(value, Mapping) else None
        return value

    def where(self, *path: str) -> Place:
        """The place of `path`, or of what is nearest above it."""
        above = (path[:length] for length in range(len(path), 0, -1))
        return next((self.places[one] for one in above if one in self.places), self.place)

    def items(self, *path: str) -> Iterator[tuple[str, Any]]:
        """Keys and values of the mapping at `path`."""
        value = self.get(*path) if path else self.values
        if isinstance(value, Mapping):
            yield from ((str(key), item) for key, item in value.items())


def read_tree(content: Word, suffix: str) -> Tree | None:
    """The tree of a text; None where it is no mapping, UserError where it cannot be read."""
    if suffix == ".toml":
        return _read_toml(content)
    return _read_json(content) if suffix == ".json" else _read_yaml(content, "yaml")


def _place_at(content: Word, line: int, column: int) -> Place:
    return content.place_at(content.offset_of(line, column))


def _read_yaml(content: Word, name: str) -> Tree | None:
    """All mappings with their places: a document of several is read to the first mapping."""
    from advisor.base.yaml_tree import read_yaml_tree

    try:
        found = read_yaml_tree(content.text.replace("\t", " "), foreign=True)
    except DocumentError as error:
        at = f" in line {_place_at(content, *error.place).line}" if error.place else ""
        reason = error.reason if error.beyond else f"is not valid {name.upper()}"
        raise UserError("lint", content.place.file, reason + at) from None
    if not isinstance(found.values, Mapping):
        return None
    return Tree(
        format=name,
        values=found.values,
        place=content.place,
        places={path: _place_at(content, *place) for path, place in found.places.items()},
        faults=tuple((reason, _place_at(content, *place)) for reason, place in found.faults),
    )


def _read_json(content: Word) -> Tree:
    """JSON is read as the YAML that it nearly is, for its places; what JSON refuses is a fault."""
    tree = Tree(format="json", values={}, place=content.place)
    with suppress(UserError):
        tree = _read_yaml(content, "json") or tree
    faults = tree.faults
    try:
        parse_json(_VARIABLE.sub("0", content.text), foreign=True)
    except DocumentError as error:
        place = _place_at(content, *error.place) if error.place else content.place
        faults = (*faults, (f"is not valid JSON: {error.reason}", place))
    return replace(tree, values=_numbers(tree.values), faults=faults)


def _numbers(value: Any) -> Any:
    """5e8, which YAML 1.1 takes for a text, is a number in JSON."""
    if isinstance(value, Mapping):
        return {key: _numbers(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_numbers(item) for item in value]
    if isinstance(value, str) and re.fullmatch(r"-?\d+(\.\d+)?[eE][+-]?\d+", value):
        return float(value)
    return value


def _read_toml(content: Word) -> Tree:
    try:
        values = parse_toml(content.text)
    except ValueError as error:
        raise UserError("lint", content.place.file, f"is not valid TOML: {error}") from None
    places: dict[Path, Place] = {}
    section: Path = ()
    for number, line in enumerate(content.text.split("\n")):
        header, key = _SECTION.match(line), _KEY.match(line)
        if header and not key:
            section = _names(header[1])
            places[section] = _place_at(content, number, header.start(1))
        elif key:
            places[(*section, *_names(key[1]))] = _place_at(content, number, key.start(1))
    return Tree(format="toml", values=values, place=content.place, places=places)


def _names(text: str) -> Path:
    return tuple(part.strip().strip("\"'") for part in text.split("."))
