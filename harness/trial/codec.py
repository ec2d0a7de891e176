"""Trials, plans and results as JSON text, and back.

The text is strict JSON: a loss of NaN is the string "nan", as in Megatron's own golden files.
"""

import json
import math
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, TypeVar

from advisor.base.errors import UserError
from advisor.base.fields import read_dataclass, read_fields
from harness.trial.result import SCHEMA_VERSION, TrialResult

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T", bound="DataclassInstance")

_PLAIN = ("trial", "environment")
_REQUIRED = ("name", "status", "started_at", "wall_seconds", *_PLAIN)


def encode(value: "DataclassInstance") -> str:
    """Deterministic JSON of a dataclass: sorted keys, one value a line, no NaN literals."""
    values = _finite(asdict(value))
    return json.dumps(values, sort_keys=True, indent=1, default=str, allow_nan=False) + "\n"


def plain(value: "DataclassInstance") -> dict[str, Any]:
    """A dataclass as the JSON object that `encode` writes."""
    return json_mapping(encode(value), type(value).__name__)


def decode(cls: type[T], text: str, file: object) -> T:
    """An instance of `cls` from `encode`'s text; UserError where it is something else."""
    return read_dataclass(cls, json_mapping(text, file), file)


def decode_result(text: str, file: object) -> TrialResult:
    """A result from `encode`'s text; UserError where it is half written or of another schema."""
    values = json_mapping(text, file)
    version = values.get("schema_version")
    if version != SCHEMA_VERSION:
        raise UserError(f"{file}: schema_version", version, f"must be {SCHEMA_VERSION}")
    for key in _REQUIRED:
        if key not in values:
            raise UserError(f"{file}: {key}", "(none)", "is missing")
    plain = {key: values.pop(key) for key in _PLAIN}
    for key, value in plain.items():
        if not isinstance(value, dict):
            raise UserError(f"{file}: {key}", type(value).__name__, "must be an object")
    loss = tuple(float(number) for number in values.pop("loss", ()))
    return TrialResult(**read_fields(TrialResult, values, file), **plain, loss=loss)


def json_mapping(text: str, file: object) -> dict[str, Any]:
    """The object that a JSON file holds; UserError where it holds something else."""
    try:
        values = json.loads(text)
    except (ValueError, RecursionError):
        raise UserError("file", str(file), "is not valid JSON") from None
    if not isinstance(values, dict):
        raise UserError("file", str(file), "must hold one JSON object")
    return values


def _finite(value: Any) -> Any:
    """`value` with numbers that JSON does not know written as strings."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value
