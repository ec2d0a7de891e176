"""Keywords of a Python call as the overrides of a command line."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, TypeAlias

from advisor.base.errors import UserError, show
from advisor.base.fields import spelled

Overrides: TypeAlias = Mapping[str, object] | Sequence[str]

_PLAIN: Final = re.compile(r"(?!(?i:true|false|null|nan|inf)$)[A-Za-z_][\w.-]*")
_VERBATIM: Final = ("command",)


def hydra_overrides(overrides: Overrides, keywords: Mapping[str, object]) -> tuple[str, ...]:
    """``KEY=VALUE`` in Hydra's grammar: `overrides` as a command line spells them or as a mapping,
    and then the keywords; ``measure={"steps": 5}`` means ``measure.steps=5``."""
    listed, pairs = _parted(overrides, keywords)
    return (*listed, *(f"{k}={v if k in _VERBATIM else _hydra(v)}" for k, v in pairs))


def plain_overrides(overrides: Overrides, keywords: Mapping[str, object]) -> tuple[str, ...]:
    """The same as words of a command line that Hydra does not read: text stands as it is."""
    listed, pairs = _parted(overrides, keywords)
    return (*listed, *(f"{key}={_word(value)}" for key, value in pairs))


def _parted(
    overrides: Overrides, keywords: Mapping[str, object]
) -> tuple[tuple[str, ...], list[tuple[str, object]]]:
    """What is spelled already, and keys with Python values."""
    if isinstance(overrides, Mapping):
        return (), [*_pairs(overrides), *_pairs(keywords)]
    return texts(overrides, "overrides"), list(_pairs(keywords))


def texts(value: object, name: str) -> tuple[str, ...]:
    """One text or several; UserError for anything else."""
    listed = (value,) if isinstance(value, str) else value
    if not isinstance(listed, list | tuple) or not all(isinstance(one, str) for one in listed):
        raise UserError(name, show(value), "must be text, or a list of it")
    return tuple(listed)


def _pairs(values: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, object]]:
    """Dotted keys and values; None, which means not given, is left out of keywords."""
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _pairs(value, f"{prefix}{key}.")
        elif value is not None:
            yield f"{prefix}{key}", value


def _hydra(value: object) -> str:
    if isinstance(value, list | tuple):
        return f"[{','.join(map(_hydra, value))}]"
    text = _word(value)
    if isinstance(value, str) and not _PLAIN.fullmatch(text):
        escaped = text.replace("'", "\\'")
        return f"'{escaped}'"
    return text


def _word(value: object) -> str:
    return f"[{spelled(value)}]" if isinstance(value, list | tuple) else spelled(value)
