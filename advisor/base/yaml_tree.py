"""The one reader of YAML: values, and the place of each.

PyYAML takes longer to load than an answer to compute, so that only who meets a user's file imports
this module (`documents.read_yaml`, `reading.document_tree`).
"""

import re
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Final

import yaml
from msgspec import Struct

from advisor.base.errors import DocumentError, show
from advisor.base.limits import MOST_DEPTH, MOST_DIGITS, MOST_EXPANDED

Path = tuple[str, ...]
_TOO_DEEP: Final = f"nests deeper than {MOST_DEPTH} levels"
_SURE_DEPTH: Final = 500
"""Levels that libyaml's composer, a C function that calls itself, has the stack for many times."""
_ALIAS: Final = re.compile(r"(?<![^\s\[{,:?-])\*[^\s*]")
"""Where an alias may stand; prose has an asterisk there now and then."""
_TEXT_TAGS: Final = ("tag:yaml.org,2002:str", "tag:yaml.org,2002:merge")
_PLAIN_TAGS: Final = ("tag:yaml.org,2002:map", "tag:yaml.org,2002:seq")


class YamlTree(Struct, frozen=True, kw_only=True):
    """A document; places: line and column, from 0, of the key at a path; faults: keys given twice,
    with their places."""

    values: Any
    places: dict[Path, tuple[int, int]]
    faults: tuple[tuple[str, tuple[int, int]], ...]


def read_yaml_tree(text: str, *, foreign: bool = False) -> YamlTree:
    """The document in a text; DocumentError where there is none, or it is beyond the limits.

    foreign: another program's. The first of several documents is read, a key given twice is a
    fault, keys are what is written, and a tag that is not known leaves the text as it is.
    """
    try:
        if _may_harm(text):
            _check_events(text)
        loader = _Loader(text)
        loader.foreign = foreign
        node = _first(loader) if foreign else loader.get_single_node()
        if node is None:
            return YamlTree(values=None, places={}, faults=())
        _check_depth(node)
        values = loader.value(node, ())
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = (mark.line, mark.column) if mark else None
        reason = " ".join((error.problem or "broken").split())
        raise DocumentError(reason, place, beyond=isinstance(error, _RefusedError)) from None
    except yaml.YAMLError as error:
        raise DocumentError(str(error)) from None
    except RecursionError:  # without libyaml, or keys within keys
        raise DocumentError(_TOO_DEEP, beyond=True) from None
    return YamlTree(values=values, places=loader.places, faults=tuple(loader.faults))


class Written(Struct, frozen=True, kw_only=True):
    """A scalar as it is written, without its quotes or the head of its block, and where it
    begins."""

    text: str
    start: int
    is_block: bool
    is_folded: bool


def read_collections(text: str) -> Iterator[tuple[bool, list[Written | None]]]:
    """Every mapping (True) and list of all documents as it ends, up to the first fault: its keys
    and values in their order, None for what is no scalar."""
    open_ones: list[list[Written | None]] = [[]]
    with suppress(yaml.YAMLError):
        for event in yaml.parse(text, Loader=_Loader):
            if isinstance(event, yaml.CollectionStartEvent):
                open_ones.append([])
            elif isinstance(event, yaml.CollectionEndEvent):
                yield isinstance(event, yaml.MappingEndEvent), open_ones.pop()
                open_ones[-1].append(None)
            elif isinstance(event, yaml.NodeEvent):
                open_ones[-1].append(_written(event, text))


def _written(event: yaml.NodeEvent, text: str) -> Written | None:
    if not isinstance(event, yaml.ScalarEvent):  # an alias
        return None
    marks = event.start_mark, event.end_mark
    start, stop = (mark.index if mark else 0 for mark in marks)
    if is_block := event.style in ("|", ">"):
        start = text.find("\n", start) + 1
    elif event.style:
        start, stop = start + 1, stop - 1
    folded = event.style != "|"
    return Written(text=text[start:stop], start=start, is_block=is_block, is_folded=folded)


class _RefusedError(yaml.MarkedYAMLError):
    """A text beyond the limits, or with what is refused here."""

    def __init__(self, reason: str, at: Any) -> None:
        super().__init__(problem=reason, problem_mark=at.start_mark)


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """In C where libyaml is there, ten times as fast. Refuses a key given twice or that is no text,
    and an integer without end."""

    foreign = False

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.places: dict[Path, tuple[int, int]] = {}
        self.faults: list[tuple[str, tuple[int, int]]] = []
        self._checked: set[int] = set()

    def value(self, node: yaml.Node, path: Path) -> Any:
        """What a node holds; the places below it are kept."""
        if self.foreign or node.tag in _PLAIN_TAGS:
            if isinstance(node, yaml.MappingNode):
                return self._mapping(node, path)
            if isinstance(node, yaml.SequenceNode):
                return [self.value(one, (*path, str(at))) for at, one in enumerate(node.value)]
        try:
            return self.construct_object(node, deep=True)
        except yaml.YAMLError:  # a tag of another program, !ENV and the like
            if not self.foreign:
                raise
            return node.value

    def _mapping(self, node: yaml.MappingNode, path: Path) -> dict[str, Any]:
        self.flatten_mapping(node)
        found = {}
        for key, value in node.value:
            here = (*path, str(getattr(key, "value", "")))
            self.places[here] = key.start_mark.line, key.start_mark.column
            found[here[-1]] = self.value(value, here)
        return found

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        """Check a mapping before the keys that it merges are put into it, and thus once."""
        if id(node) not in self._checked:
            self._checked.add(id(node))
            self._check_keys(node)
        super().flatten_mapping(node)

    def _check_keys(self, node: yaml.MappingNode) -> None:
        seen: set[str] = set()
        for key, _ in node.value:
            if not self.foreign and key.tag not in _TEXT_TAGS:
                shown = show(key.value) if isinstance(key, yaml.ScalarNode) else "a key"
                raise _RefusedError(f"{shown} is not a text key; put it in quotes", key)
            if not isinstance(key, yaml.ScalarNode):
                continue
            if key.value in seen:
                reason = f"{show(key.value)} is given twice"
                if not self.foreign:
                    raise _RefusedError(f"key {reason}", key)
                self.faults.append((reason, (key.start_mark.line, key.start_mark.column)))
            seen.add(key.value)

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        """The value of a node; MarkedYAMLError where it is not what its tag says."""
        try:
            return super().construct_object(node, deep)
        except (ValueError, ArithmeticError) as error:
            raise _RefusedError(str(error), node) from None
        except (LookupError, AttributeError, TypeError):
            raise _RefusedError(f"is not a valid {node.tag.rpartition(':')[2]}", node) from None

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
        """An integer, of at most `MOST_DIGITS` characters."""
        if len(str(node.value)) > MOST_DIGITS:
            raise _RefusedError(f"a number of more than {MOST_DIGITS} digits", node)
        return int(super().construct_yaml_int(node))


_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_yaml_int)


def _first(loader: _Loader) -> yaml.Node | None:
    found: yaml.Node | None = loader.get_node() if loader.check_node() else None
    return found


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
    for event in yaml.parse(text, Loader=_Loader):
        size = 0
        if isinstance(event, yaml.CollectionStartEvent):
            opened.append((event.anchor, 1))
            if len(opened) - 1 > MOST_DEPTH:
                raise _RefusedError(_TOO_DEEP, event)
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, size = opened.pop()
            whole[anchor] = size
        elif isinstance(event, yaml.AliasEvent):
            if event.anchor in (anchor for anchor, _ in opened):
                raise _RefusedError(f"{show(event.anchor)} contains itself", event)
            size = whole.get(event.anchor, 1)
        elif isinstance(event, yaml.ScalarEvent):
            size = whole[event.anchor] = 1
        anchor, sum_so_far = opened.pop()
        opened.append((anchor, sum_so_far + size))
        if sum_so_far + size > MOST_EXPANDED:
            raise _RefusedError(f"aliases expand to more than {MOST_EXPANDED:,} values", event)


def _check_depth(node: yaml.Node) -> None:
    """_RefusedError where composed nodes nest too deep, level by level."""
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
    raise _RefusedError(_TOO_DEEP, level[0])
