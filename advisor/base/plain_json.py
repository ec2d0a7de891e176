"""A tree of records as plain JSON values, and back.

The records are the only description: base.json_schema writes down the same as a JSON Schema.
"""

import json
import math
from collections.abc import Mapping
from typing import Any, TypeVar, get_args, get_origin

from msgspec import Struct

from advisor.base.documents import parse_json
from advisor.base.errors import DocumentError, UserError, show
from advisor.base.fields import field_types, is_record, optional_type, read_record

T = TypeVar("T", bound=Struct)


def to_plain(value: Any) -> Any:
    """`value` with records as objects, tuples as lists, enums as their strings; null for a
    number that JSON cannot say (an infinity, NaN)."""
    if isinstance(value, Struct):
        return {name: to_plain(getattr(value, name)) for name in value.__struct_fields__}
    if isinstance(value, Mapping):
        return {str(key): to_plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain(item) for item in value]
    if isinstance(value, str):
        return str(value)
    return None if isinstance(value, float) and not math.isfinite(value) else value


def to_text(value: Struct) -> str:
    """Strict JSON with a final newline, keys in the order of the fields."""
    return json.dumps(to_plain(value), allow_nan=False, ensure_ascii=False, indent=2) + "\n"


def from_text(cls: type[T], text: str, where: str) -> T:
    """An instance of `cls` from the text of `to_text`.

    Keys that are not known are passed over: a later release may have added them. Raises UserError
    where a key is missing or a value has another type.
    """
    if not isinstance(text, str | bytes):
        raise UserError(where, show(text), "must be text")
    try:
        values = parse_json(text if isinstance(text, str) else text.decode())
    except (DocumentError, UnicodeDecodeError) as error:
        raise UserError(where, None, f"is not valid JSON: {error}") from None
    if not isinstance(values, Mapping):
        raise UserError(where, type(values).__name__, "must be one JSON object")
    return read_record(cls, _known(cls, values), where)


def _known(annotation: Any, value: Any) -> Any:
    """`value` without keys that the records of `annotation` do not have."""
    annotation = optional_type(annotation) or annotation
    if isinstance(value, Mapping) and is_record(annotation):
        hints = field_types(annotation)
        return {key: _known(hints[key], item) for key, item in value.items() if key in hints}
    if isinstance(value, list) and get_origin(annotation) is tuple:
        return [_known(get_args(annotation)[0], item) for item in value]
    return value
