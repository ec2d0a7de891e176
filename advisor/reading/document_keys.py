"""Settings as keys with values, for frameworks whose configuration is a flat or nested mapping."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from difflib import get_close_matches
from functools import cache
from itertools import chain
from typing import Any, Final

from msgspec import Struct, field

from advisor.base.place import Place
from advisor.reading.document_tree import Tree
from advisor.reading.python_source import Unknown
from advisor.reading.read_configuration import ReadValue
from advisor.reading.shell import Note

_TRUE: Final = ("true", "yes", "1", "on", "t", "y")
_FALSE: Final = ("false", "no", "0", "off", "f", "n")


class Keys(Struct, kw_only=True):
    """Values by key, `section.key` where they nest; `place` is that of the whole. faults: what its
    format refuses. about: what kind of document it is. unread: what lies elsewhere.
    release, num_gpus: of the check."""

    place: Place
    values: dict[str, ReadValue] = field(default_factory=dict)
    faults: tuple[tuple[str, Place], ...] = ()
    about: dict[str, str] = field(default_factory=dict)
    unread: tuple[Note, ...] = ()
    release: str = ""
    num_gpus: int | None = None

    def put(self, key: str, value: Any, place: Place, written: str = "") -> None:
        """Store a value."""
        self.values[key] = ReadValue(value=value, written=written or key, place=place)

    def has(self, key: str) -> bool:
        """Whether the key is given, whatever its value."""
        return key in self.values

    def get(self, key: str) -> Any:
        """The value; None where it is not given or not known."""
        found = self.values.get(key)
        return None if found is None or not known(found.value) else found.value

    def truth(self, key: str) -> bool | None:
        """The value as true or false; None where it is neither."""
        return truth(self.get(key))

    def number(self, key: str) -> int | None:
        """The value as a whole number; None where it is none."""
        return as_whole_number(self.get(key))

    def under(self, section: str) -> Iterator[str]:
        """Names directly below a section; of no section those at the top."""
        start = f"{section}." if section else ""
        names = (key[len(start) :] for key in self.values if key.startswith(start))
        yield from dict.fromkeys(name.partition(".")[0] for name in names)

    def where(self, *keys: str) -> Place:
        """The place of the first of `keys` that is given, or of what lies below one."""
        given = (key for key in keys if key in self.values)
        below = (name for key in keys for name in self.values if name.startswith(f"{key}."))
        return next((self.values[name].place for name in chain(given, below)), self.place)

    def means(self, key: str, value: Any) -> ReadValue:
        """`value` of a field of ours, as what is written at `key` means it."""
        return self.values[key].meaning(value)


def known(value: Any) -> bool:
    """Whether nothing in a value stands for what only a run knows; `auto` is known later."""
    if isinstance(value, Unknown):
        return False
    return not (isinstance(value, str) and ("$" in value or "{{" in value))


def truth(value: Any) -> bool | None:
    """A boolean, or the words that frameworks take for one."""
    if isinstance(value, bool):
        return value
    text = str(value).lower() if isinstance(value, str | int) else ""
    return True if text in _TRUE else False if text in _FALSE else None


def as_whole_number(value: Any) -> int | None:
    """A whole number, written as such or as text."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    with suppress(ValueError):
        return int(str(value)) if isinstance(value, int | str) else None  # "True" is none
    return None


def put_tree(keys: Keys, tree: Tree, *path: str) -> None:
    """Every leaf of a document, mappings by their keys and all else as it is."""
    for name, value in tree.items(*path):
        here = (*path, name)
        if isinstance(value, Mapping) and value:
            put_tree(keys, tree, *here)
        else:
            keys.put(".".join(here), value, tree.where(*here))


def put_mapping(keys: Keys, values: Mapping[str, Any], place: Place, *path: str) -> None:
    """Every leaf of a mapping that Python code holds, all at one place."""
    for name, value in values.items():
        here = (*path, str(name))
        if isinstance(value, Mapping) and value:
            put_mapping(keys, value, place, *here)
        else:
            keys.put(".".join(here), value, place)


def near(name: str, names: Iterable[str], cutoff: float = 0.75) -> str:
    """The known name that is meant, or empty."""
    return next(iter(_matches(name, tuple(names), 1, cutoff)), "")


_matches = cache(get_close_matches)  # 0.3 ms, once for all ways through a script
