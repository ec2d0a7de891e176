"""Many values: what is known, nested ones by their paths."""

from collections.abc import Iterable, Mapping
from typing import TypeVar

Scalar = str | int | float | bool | None
"""A value of JSON that holds no others."""

Item = TypeVar("Item")


def known(values: Iterable[Item | None]) -> list[Item]:
    """Those that are not None."""
    return [value for value in values if value is not None]


def flatten(value: object, prefix: str = "") -> dict[str, Scalar]:
    """Nested JSON as ``a.b[0].c`` -> scalar; empty containers vanish."""
    found: dict[str, Scalar] = {}
    if isinstance(value, Mapping):
        for key, item in value.items():
            found |= flatten(item, f"{prefix}.{key}" if prefix else str(key))
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            found |= flatten(item, f"{prefix}[{index}]")
    elif isinstance(value, str | int | float | bool) or value is None:
        found[prefix] = value
    else:
        found[prefix] = str(value)
    return found


def dotted(value: object) -> dict[str, str | int | float | bool]:
    """The same as ``a.b.0.c``, without what is not known."""
    flat = flatten(value).items()
    return {k.replace("[", ".").replace("]", ""): one for k, one in flat if one is not None}
