"""Records: immutable values with named, typed fields.

They are ``msgspec.Struct`` classes, which are made in C. A frozen dataclass means the same, but
writes and compiles its methods in every process, and one answer needs two hundred classes.
"""

from typing import Any

from msgspec import NODEFAULT, Struct


def defaults(cls: type[Struct]) -> dict[str, Any]:
    """Defaults of the fields that have one (msgspec's factory, where it is made anew)."""
    values = cls.__struct_defaults__
    names = cls.__struct_fields__[len(cls.__struct_fields__) - len(values) :]
    return {
        name: value for name, value in zip(names, values, strict=True) if value is not NODEFAULT
    }


def as_dict(record: Struct) -> dict[str, Any]:
    """Fields by name; records within it, however deep, likewise."""
    return {name: _plain(getattr(record, name)) for name in record.__struct_fields__}


def _plain(value: Any) -> Any:
    if isinstance(value, Struct):
        return as_dict(value)
    if isinstance(value, tuple):
        return tuple(map(_plain, value))
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return value
