"""Trials, plans and results as JSON text, and back.

The text is strict JSON: a loss of NaN is the string "nan", as in Megatron's own golden files.

What is computed with in a result is checked when it is read, for a file may be anybody's. Trial and
environment are plain JSON and may be known in part; what of them is there has its type.
"""

import json
import math
from pathlib import Path
from typing import Annotated, Any, TypeVar

from msgspec import Meta, Struct, ValidationError, convert
from msgspec.structs import replace

from advisor.base.documents import read_json
from advisor.base.errors import UserError
from advisor.base.fields import read_record, show
from advisor.base.limits import LARGEST, LARGEST_FLOAT
from advisor.base.record import as_dict
from harness.trial.result import SCHEMA_VERSION, TrialResult, TrialStatus
from harness.trial.trial import Device

_Size = Annotated[int, Meta(ge=1, le=LARGEST)] | None


class _Layout(Struct):
    tensor_model_parallel_size: _Size = None
    pipeline_model_parallel_size: _Size = None
    context_parallel_size: _Size = None
    data_parallel_size: _Size = None


class _Workload(Struct):
    model: dict[str, Any] | None = None
    layout: _Layout | None = None
    seq_length: _Size = None
    micro_batch_size: _Size = None
    global_batch_size: _Size = None
    device: Device | None = None
    recompute: str | None = None


class _Trial(Struct):
    workload: _Workload | None = None
    variables: tuple[str, ...] | None = None


class _Environment(Struct):
    software: dict[str, Any] | None = None
    gpus: tuple[dict[str, Any], ...] | None = None


class _Result(Struct):
    """What is computed with in a result: other keys may be there."""

    trial: _Trial
    environment: _Environment


T = TypeVar("T", bound=Struct)
Converted = TypeVar("Converted")


def _checked(values: object, kind: type[Converted], file: object, key: str = "") -> Converted:
    """`values` as JSON has them, as `kind`. key: theirs, if they are not all of the file; a number
    may be a string there."""
    try:
        return convert(values, kind, strict=not key)
    except ValidationError as error:
        relation, _, path = str(error).partition(" - at `$")
        where = f"{key}{path.removesuffix('`')}".lstrip(".")
        raise UserError(f"{file}: {where}", None, relation) from None


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
    check_schema(values, SCHEMA_VERSION, file)
    _checked(values, _Result, file)
    loss = _checked(values.pop("loss", ()), tuple[float, ...], file, "loss")
    result = _checked(values, TrialResult, file)
    timed = result.status in (TrialStatus.OK, TrialStatus.UNSTABLE)
    if timed and result.times is not None and not result.times.seconds:
        raise UserError(f"{file}: times.seconds", "[]", "must hold the seconds of a step")
    for one in loss:
        if math.isfinite(one) and abs(one) > LARGEST_FLOAT:
            raise UserError(f"{file}: loss", one, f"is too large; at most {LARGEST_FLOAT:g}")
    return replace(result, loss=loss)


def check_schema(values: dict[str, Any], known: int, file: object) -> None:
    """UserError where a file is of another schema than the one `known`."""
    version = values.get("schema_version")
    if version != known:
        raise UserError(f"{file}: schema_version", show(version), f"must be {known}")


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
