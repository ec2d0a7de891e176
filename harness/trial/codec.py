"""Trials, plans and results as JSON text, and back.

The text is strict JSON: a loss of NaN is the string "nan", as in Megatron's own golden files.

What is computed with in a result is checked when it is read, for a file may be anybody's. Trial and
environment are plain JSON and may be known in part; what of them is there has its type.
"""

import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from advisor.base.documents import read_json
from advisor.base.errors import UserError
from advisor.base.fields import convert, read_record, show
from advisor.base.limits import LARGEST, LARGEST_FLOAT
from advisor.base.record import as_dict
from harness.trial.result import SCHEMA_VERSION, TrialResult, TrialStatus
from harness.trial.trial import Device

_MAPPINGS: Final[tuple[tuple[str, ...], ...]] = (
    ("trial", "workload"),
    ("trial", "workload", "model"),
    ("trial", "workload", "layout"),
    ("environment", "software"),
)
_SIZES: Final[tuple[tuple[str, ...], ...]] = (
    ("trial", "workload", "seq_length"),
    ("trial", "workload", "micro_batch_size"),
    ("trial", "workload", "global_batch_size"),
    *(
        ("trial", "workload", "layout", f"{name}_parallel_size")
        for name in ("tensor_model", "pipeline_model", "context", "data")
    ),
)
_TYPED: Final[dict[tuple[str, ...], Any]] = {
    ("trial", "workload", "device"): Device,
    ("trial", "workload", "recompute"): str,
    ("trial", "variables"): tuple[str, ...],
}


def _check_plain(plain: Mapping[str, Any], file: object) -> None:
    """UserError where `trial` or `environment` of a result holds what nobody can compute with."""
    for path in _MAPPINGS:
        value = _at(plain, path)
        if value is not None and not isinstance(value, Mapping):
            raise UserError(_where(file, path), show(value), "must be an object")
    for path in _SIZES:
        value = _at(plain, path)
        if value is not None and convert(value, int, file, ".".join(path)) < 1:
            raise UserError(_where(file, path), value, "must be at least 1")
    for path, kind in _TYPED.items():
        value = _at(plain, path)
        if value is not None:
            convert(value, kind, file, ".".join(path))
    gpus = plain["environment"].get("gpus") or ()
    if not isinstance(gpus, list | tuple) or not all(isinstance(one, Mapping) for one in gpus):
        raise UserError(f"{file}: environment.gpus", show(gpus), "must be a list of objects")


def check_result(result: TrialResult, file: object) -> None:
    """UserError where a number of a result is none that was measured, or nobody can compute with
    what it says of its trial and environment."""
    _check_plain({"trial": result.trial, "environment": result.environment}, file)
    if result.wall_seconds < 0:
        raise UserError(f"{file}: wall_seconds", result.wall_seconds, "must not be negative")
    times, flops, reported = result.times, result.flops, result.reported
    if times is not None:
        if not times.seconds and result.status in (TrialStatus.OK, TrialStatus.UNSTABLE):
            raise UserError(f"{file}: times.seconds", "[]", "must hold the seconds of a step")
        _check_positive(times.seconds, f"{file}: times.seconds")
        _check_positive(times.warmup_seconds, f"{file}: times.warmup_seconds")
    if reported is not None:
        _check_positive(reported.tflops_per_gpu, f"{file}: reported.tflops_per_gpu")
        rates = reported.tokens_per_second_per_gpu
        _check_positive(rates, f"{file}: reported.tokens_per_second_per_gpu")
    if flops is not None and not 0 <= flops.model <= LARGEST_FLOAT:
        raise UserError(f"{file}: flops.model", flops.model, "is not a number of FLOPs")
    for peak in result.memory:
        sizes = (peak.rank, peak.stage, peak.allocated, peak.active, peak.reserved, peak.nvml_used)
        if any(size is not None and size < 0 for size in sizes):
            raise UserError(f"{file}: memory", show(peak), "must not be negative")


def read_number(value: object, where: object) -> float:
    """A number that may be written as a string, as loggers write nan; bytes stay integers.

    UserError where it is none, or finite and too large to be squared.
    """
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise UserError(str(where), show(value), "is not a number")
    try:
        number = value if isinstance(value, int) else float(value)
    except ValueError:
        raise UserError(str(where), show(value), "is not a number") from None
    if abs(number) > LARGEST_FLOAT and (isinstance(number, int) or math.isfinite(number)):
        raise UserError(str(where), show(value), f"is too large; at most {LARGEST_FLOAT:g}")
    return number


def _check_positive(numbers: Iterable[float], where: str) -> None:
    for number in numbers:
        if not 1 / LARGEST <= number <= LARGEST:
            raise UserError(where, number, "must be positive and of a plausible size")


def _at(values: Mapping[str, Any], path: tuple[str, ...]) -> Any:
    """The value at a path of keys; None where a part of it is not there."""
    found: Any = values
    for key in path:
        found = found.get(key) if isinstance(found, Mapping) else None
    return found


def _where(file: object, path: tuple[str, ...]) -> str:
    return f"{file}: {'.'.join(path)}"


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
