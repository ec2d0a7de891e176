"""Trials, plans and results as JSON text, and back.

The text is strict JSON: a loss of NaN is the string "nan", as in Megatron's own golden files.
"""

import json
import math
from pathlib import Path
from typing import Any, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from advisor.base.documents import read_json
from advisor.base.errors import UserError
from advisor.base.fields import read_record, show
from advisor.base.record import as_dict
from harness.trial.plausible import check_result, read_number
from harness.trial.result import SCHEMA_VERSION, TrialResult

T = TypeVar("T", bound=Struct)


def encode(value: Struct) -> str:
    """Deterministic JSON of a record: sorted keys, one value a line, no NaN literals."""
    values = _finite(as_dict(value))
    return json.dumps(values, sort_keys=True, indent=1, default=str, allow_nan=False) + "\n"


def plain(value: Struct) -> dict[str, Any]:
    """A record as the JSON object that `encode` writes."""
    found: dict[str, Any] = json.loads(encode(value))
    return found


def decode(cls: type[T], source: Path | str, file: object = "text") -> T:
    """An instance of `cls` from `encode`'s text, or from a file of it; UserError where it is
    something else."""
    return read_record(cls, read_json(source, file), _name(source, file))


def decode_result(source: Path | str, file: object = "text") -> TrialResult:
    """A result from `encode`'s text, or from a file of it; UserError where it is half written, of
    another schema, or holds what nobody measures."""
    values, file = read_json(source, file), _name(source, file)
    version = values.get("schema_version")
    if version != SCHEMA_VERSION:
        raise UserError(f"{file}: schema_version", show(version), f"must be {SCHEMA_VERSION}")
    losses = values.pop("loss", ())
    if not isinstance(losses, list | tuple):
        raise UserError(f"{file}: loss", show(losses), "must be a list")
    loss = tuple(float(read_number(one, f"{file}: loss")) for one in losses)
    result = replace(read_record(TrialResult, values, file), loss=loss)
    check_result(result, file)
    return result


def _name(source: Path | str, file: object) -> object:
    return source if isinstance(source, Path) else file


def _finite(value: Any) -> Any:
    """`value` with numbers that JSON does not know written as strings."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value
