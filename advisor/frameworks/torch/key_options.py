"""One key of a framework's configuration as one row: what it holds, and what of ours it means."""

from collections.abc import Collection, Iterator, Mapping
from types import MappingProxyType
from typing import Any

from msgspec import Struct

from advisor.frameworks.option_status import Status
from advisor.reading.document_keys import Keys
from advisor.reading.read_configuration import ReadValue


class KeyOption(Struct, frozen=True, kw_only=True):
    """One key of a configuration.

    key: its path, `section.name`. kind: type of its value. default: of the newest release that is
    known; None where it is nothing. ours: the field it means, as `KEY=VALUE` writes it, or
    recompute; means: values of ours by its own, where they are not the same.
    status, note: what becomes of it; of one that is not modelled why.
    """

    key: str
    kind: type
    default: Any = None
    ours: str = ""
    means: Mapping[Any, Any] | None = None
    status: Status = Status.MODELLED
    note: str = ""

    def meaning(self, keys: Keys) -> Any:
        """Its value in our words; None where it is not given, not known or means nothing."""
        value = keys.truth(self.key) if self.kind is bool else keys.get(self.key)
        if self.means is not None:
            return self.means.get(value) if isinstance(value, int | str) else None
        if self.kind is int:
            number = keys.number(self.key)
            return number if number is not None and number > 0 else None
        return value if isinstance(value, self.kind) else None


def option(
    key: str, default: Any, ours: str, *, kind: type | None = None, **said: Any
) -> KeyOption:
    """A row of a key that means `ours`; its kind is that of the default where it has one."""
    return KeyOption(key=key, kind=kind or type(default), default=default, ours=ours, **said)


def checked(section: str, names: Mapping[str, str], kind: type = object) -> Iterator[KeyOption]:
    """Rows of keys that checks read and no field of ours means: what is to be said, and names."""
    return _unmodelled(Status.CHECKED, section, names, kind)


def harmless(section: str, names: Mapping[str, str], kind: type = object) -> Iterator[KeyOption]:
    """Rows of keys without effect on memory and time."""
    return _unmodelled(Status.HARMLESS, section, names, kind)


def unpriced(
    section: str,
    names: Mapping[str, str],
    kind: type = object,
    predicted: Mapping[str, Any] | None = None,
) -> Iterator[KeyOption]:
    """Rows of keys whose effect on memory or time is not modelled; `predicted`: values by name that
    predictions are for."""
    return _unmodelled(Status.UNPRICED, section, names, kind, predicted or {})


def _unmodelled(
    status: Status,
    section: str,
    names: Mapping[str, str],
    kind: type,
    predicted: Mapping[str, Any] = MappingProxyType({}),
) -> Iterator[KeyOption]:
    start = f"{section}." if section else ""
    for note, group in names.items():
        for name in group.split():
            default = predicted.get(name)
            yield KeyOption(
                key=f"{start}{name}", kind=kind, default=default, status=status, note=note
            )


def names_in(options: Collection[KeyOption], section: str = "") -> tuple[str, ...]:
    """Names that a section has, or the top."""
    start = f"{section}." if section else ""
    below = (row.key[len(start) :] for row in options if row.key.startswith(start))
    return tuple(dict.fromkeys(name.partition(".")[0] for name in below))


def keys_of(options: Collection[KeyOption], section: str, kind: type) -> tuple[str, ...]:
    """Keys directly below a section whose values are of a kind."""
    direct = (row for row in options if row.key.rpartition(".")[0] == section)
    return tuple(row.key for row in direct if row.kind is kind)


def keys_by_field(options: Collection[KeyOption]) -> dict[str, list[str]]:
    """Keys by the field of ours that they mean."""
    found: dict[str, list[str]] = {}
    for row in options:
        if row.ours:
            found.setdefault(row.ours, []).append(row.key)
    return found


def values_of(options: Collection[KeyOption], keys: Keys) -> dict[str, ReadValue]:
    """What keys say, by the fields of ours that they mean."""
    found = {}
    for row in options:
        value = row.meaning(keys) if row.ours.partition(".")[1] else None
        if value is not None:
            found[row.ours] = keys.means(row.key, value)
    return found
