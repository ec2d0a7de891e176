"""Strict reading of plain values into records: wrong keys and types are UserErrors; and KEY=VALUE,
the one grammar of overrides, environment variables and words of a command."""

import math
from collections.abc import Iterable, Mapping
from enum import StrEnum
from functools import cache
from types import UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from msgspec import Struct
from msgspec.structs import fields

from advisor.base.errors import UserError, likely_names, nearest_names, show
from advisor.base.limits import LARGEST
from advisor.base.units import parse_bytes

T = TypeVar("T", bound=Struct)

_BOOLEANS = {
    **dict.fromkeys(("true", "yes", "on", "1"), True),
    **dict.fromkeys(("false", "no", "off", "0"), False),
}


def read_record(cls: type[T], values: Mapping[str, object], file: object, prefix: str = "") -> T:
    """An instance of `cls` from the keys of a file.

    Raises UserError, which names file and key, on an unknown or missing key, a value of another
    type, and whatever the class itself refuses.
    """
    given = read_fields(cls, values, file, prefix)
    for field in fields(cls):
        if field.required and field.name not in given:
            raise UserError(
                f"{file}: {prefix}{field.name}", "(none)", "is missing and has no default"
            )
    try:
        return cls(**given)
    except UserError as error:
        raise UserError(
            f"{file}: {error.field}", error.value, error.relation, error.nearest
        ) from None


def read_fields(
    cls: type[Struct], values: Mapping[str, object], file: object, prefix: str = ""
) -> dict[str, Any]:
    """Values of the keys given, converted to the types of the fields of `cls`."""
    hints = field_types(cls)
    converted = {}
    for key, value in values.items():
        where = f"{file}: {prefix}{key}"
        if key not in hints:
            raise UserError(where, show(value), "is not a known key", nearest_names(key, hints))
        converted[key] = convert(value, hints[key], file, f"{prefix}{key}")
    return converted


def parse_all(cls: type[Struct], texts: Mapping[str, str], prefix: str) -> dict[str, Any]:
    """Values of fields of `cls` that a command line spells; `prefix`: the path of the fields, e.g.
    ``model.``."""
    hints, values = field_types(cls), {}
    for key, text in texts.items():
        if key not in hints:
            near = f"{nearest_names(key, hints)} (advise keys lists all)"
            raise UserError(prefix + key, text, "is not a known key", near)
        values[key] = parse(text, hints[key], prefix + key)
    return values


def parse(text: str, annotation: Any, where: str) -> Any:
    """The value of type `annotation` that `text` spells; lists are separated by commas."""
    inner = optional_type(annotation)
    if inner is not None:
        return None if text.lower() in ("", "none", "null") else parse(text, inner, where)
    if get_origin(annotation) is tuple:
        listed = text[1:-1] if text[:1] + text[-1:] == "[]" else text
        parts = [part.strip(" '\"") for part in listed.split(",") if part.strip()]
        return tuple(parse(part, get_args(annotation)[0], where) for part in parts)
    if annotation is bool:
        if text.lower() not in _BOOLEANS:
            raise UserError(where, show(text), "must be true or false")
        return _BOOLEANS[text.lower()]
    if annotation in (int, float):
        return _numeral(text, annotation, where)
    return convert(text, annotation, "", where)


def _numeral(text: str, annotation: Any, where: str) -> Any:
    """A number, or of a field of bytes a quantity such as ``2GiB``."""
    if annotation is int and where.endswith("_bytes") and text[-1:].isalpha():
        return parse_bytes(text, where)
    try:
        return _number(annotation(text), annotation, where)
    except UserError:
        raise
    except ValueError:
        raise UserError(where, show(text), f"is not {_KINDS[annotation]}") from None


def convert(value: object, annotation: Any, file: object, path: str) -> Any:
    """`value` as a YAML or JSON parser gives it, as `annotation`; no type is guessed.

    A type with a method of class `read(value, where)` reads itself.
    """
    inner = optional_type(annotation)
    if inner is not None:
        return None if value is None else convert(value, inner, file, path)
    if get_origin(annotation) in (tuple, dict) or is_record(annotation):
        return _composite(value, annotation, file, path)
    where = _where(file, path)
    if isinstance(annotation, type) and issubclass(annotation, StrEnum):
        return _member(value, annotation, where)
    if hasattr(annotation, "read"):
        return annotation.read(value, where)
    return _scalar(value, annotation, where)


def _composite(value: object, annotation: Any, file: object, path: str) -> Any:
    """`value` as a tuple, a mapping or a record, each part converted."""
    where = _where(file, path)
    if get_origin(annotation) is tuple:
        if not isinstance(value, list | tuple):
            raise UserError(where, show(value), "must be a list", _as_list(value, annotation))
        return tuple(convert(item, get_args(annotation)[0], file, path) for item in value)
    if not isinstance(value, Mapping):
        raise UserError(where, show(value), "must be a mapping of keys to values")
    if get_origin(annotation) is dict:
        kind = get_args(annotation)[1]
        if kind is Any:  # what the file holds is kept as it is
            return dict(value)
        return {key: convert(item, kind, file, f"{path}.{key}") for key, item in value.items()}
    return read_record(annotation, value, file, f"{path}.")


def _as_list(value: object, annotation: Any) -> str:
    """What to write where one value stands in a list's place, if it could be in the list."""
    try:
        convert(value, get_args(annotation)[0], "", "")
    except UserError:
        return ""
    return f"write [{show(value)}]"


def is_record(annotation: Any) -> bool:
    """Whether a type is that of a record."""
    return isinstance(annotation, type) and issubclass(annotation, Struct)


def _where(file: object, path: str) -> str:
    return f"{file}: {path}" if file else path


@cache
def field_types(cls: type[Struct]) -> dict[str, Any]:
    """Field names of a record, with their types."""
    hints = get_type_hints(cls)
    return {name: hints[name] for name in cls.__struct_fields__}


def optional_type(annotation: Any) -> Any:
    """X of `X | None`; None where the annotation is no such union."""
    if get_origin(annotation) not in (Union, UnionType):
        return None
    return next(arg for arg in get_args(annotation) if arg is not type(None))


def _member(value: object, enum: type[StrEnum], where: str) -> StrEnum:
    """The member whose value or name is `value`, case aside (`bf16` is DType.BF16)."""
    for member in enum:
        if isinstance(value, str) and value.lower() in (member.value.lower(), member.name.lower()):
            return member
    if isinstance(kin := enum._missing_(value), StrEnum):
        return kin
    legal = [member.value for member in enum]
    likely = likely_names(value, legal) if isinstance(value, str) else ""
    raise UserError(where, show(value), f"must be one of {', '.join(legal)}", likely)


_KINDS = {int: "an integer", float: "a number", bool: "true or false", str: "text"}


def takes(annotation: Any) -> str:
    """What a command line may write for a type: ``a number or null``, ``p2p | a2a``."""
    inner = optional_type(annotation)
    if inner is not None:
        return f"{takes(inner)} or null"
    if get_origin(annotation) is tuple:
        return f"{takes(get_args(annotation)[0])}, …"
    if isinstance(annotation, type) and issubclass(annotation, StrEnum):
        return " | ".join(annotation)
    return _KINDS.get(annotation, "text")


def spelled(value: object) -> str:
    """`value` as a command line writes it: what `parse` reads."""
    if isinstance(value, tuple | list):
        return ",".join(map(spelled, value))
    return "null" if value is None else str(value).lower() if value in (True, False) else str(value)


def _scalar(value: object, annotation: Any, where: str) -> Any:
    if annotation not in _KINDS:
        raise TypeError(f"no reader for {annotation}")
    kinds: tuple[type, ...] = (int, float) if annotation is float else (annotation,)
    wrong_bool = isinstance(value, bool) and annotation is not bool
    if wrong_bool or not isinstance(value, kinds):
        raise UserError(
            where, show(value), f"must be {_KINDS[annotation]}", _hint(value, annotation)
        )
    return value if annotation in (bool, str) else _number(value, annotation, where)


def _number(value: Any, annotation: Any, where: str) -> Any:
    """`value` as the number type `annotation`; infinite and undefined ones are refused, and
    integers that nobody counts to."""
    if isinstance(value, int) and abs(value) > LARGEST:
        raise UserError(where, _short(value), f"is too large; at most {LARGEST:.0e}")
    if not math.isfinite(value):
        raise UserError(where, value, "must be finite")
    return annotation(value)


def _short(value: int) -> str:
    """An integer of any size: Python spells one of more than 4,300 digits only when asked to."""
    return str(value) if value.bit_length() < 200 else f"(an integer of {value.bit_length()} bits)"


def _hint(value: object, annotation: Any) -> str:
    """What to write where YAML 1.1 reads a number as text (``1e9``) or it carries quotes."""
    if isinstance(value, str) and annotation in (int, float):
        try:
            number = float(value)
        except ValueError:
            return ""
        if math.isfinite(number):
            return f"write {int(number) if number.is_integer() else number} without quotes"
    if isinstance(value, float) and annotation is int and value.is_integer():
        return f"write {int(value)}"
    return ""


def split_key_value(text: str, field: str = "argument") -> tuple[str, str]:
    """What stands before and after the first ``=``; UserError, about `field`, where there is none
    or no key.

    >>> split_key_value("model.activation=swiglu")
    ('model.activation', 'swiglu')
    """
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise UserError(field, show(text), "is not KEY=VALUE")
    return key, value


def key_of(text: str) -> str:
    """The key of KEY=VALUE; of ``--flag`` and any other word without a value, the word."""
    return text.partition("=")[0]


def split_key_values(pairs: Iterable[str], field: str = "argument") -> dict[str, str]:
    """Values by key, of a key given twice the last; UserError as for `split_key_value`."""
    return dict(split_key_value(pair, field) for pair in pairs)


def join_key_values(values: Mapping[str, object]) -> str:
    """``layout.data_parallel_sharding=full job.torch_compile=true``: what a command line takes."""
    return " ".join(f"{key}={spelled(value)}" for key, value in values.items())
