"""A JSON Schema (draft 2020-12) of a tree of records, as base.plain_json writes them."""

import inspect
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final, get_args, get_origin

from msgspec import Struct
from msgspec.structs import fields

from advisor.base.fields import field_types, is_record, optional_type

_SCALARS: Final = {bool: "boolean", int: "integer", float: "number"}


def json_schema(
    cls: type[Struct], *, title: str, instead: Mapping[str, Mapping[str, Any]] | None = None
) -> dict[str, Any]:
    """The schema of `cls`, with every record below it under ``$defs``.

    A key is required where its field has no default; further keys are allowed, for they may be
    added. instead: schemas of fields of `cls` that are not written as their type says.
    """
    definitions: dict[str, Any] = {}
    root = _object(cls, definitions)
    root["properties"] |= instead or {}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": title,
        **root,
        "$defs": dict(sorted(definitions.items())),
    }


def _object(cls: type[Struct], definitions: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "description": " ".join(inspect.cleandoc(cls.__doc__ or "").split()),
        "properties": {name: _schema(kind, definitions) for name, kind in field_types(cls).items()},
        "required": [field.name for field in fields(cls) if field.required],
    }


def _schema(annotation: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    inner = optional_type(annotation)
    if inner is not None:
        return {"anyOf": [_schema(inner, definitions), {"type": "null"}]}
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is tuple:
        return {"type": "array", "items": _schema(arguments[0], definitions)}
    if origin is dict:
        return {"type": "object", "additionalProperties": _schema(arguments[1], definitions)}
    if annotation is Any:
        return {}
    if is_record(annotation):
        name = annotation.__name__
        if name not in definitions:
            definitions[name] = {}  # a record may hold one of its own kind
            definitions[name] = _object(annotation, definitions)
        return {"$ref": f"#/$defs/{name}"}
    if issubclass(annotation, StrEnum):
        return {"type": "string", "enum": [member.value for member in annotation]}
    if issubclass(annotation, str):
        return {"type": "string"}
    return {"type": _SCALARS[annotation]}
