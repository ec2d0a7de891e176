"""`advise --from FILE`: the job that a configuration describes, as a Request.

A file that holds one job, however many branches lead to it, is that job; of several, one is named
by its number, `train.sh#2`.
"""

import re
from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import fields as struct_fields
from msgspec.structs import replace

from advisor.base.errors import UserError
from advisor.base.fields import show_path
from advisor.base.units import parse_gpus
from advisor.lint.target import read_target
from advisor.models.spec import ModelSpec
from advisor.reading.read_configuration import (
    ReadConfiguration,
    Reader,
    ReadValue,
    UnknownValue,
)
from advisor.request.request import Request

_FLAG: Final = "--from"
_NUMBERED: Final = re.compile(r"(.+)#(\d+)")


class ReadJob(Struct, frozen=True, kw_only=True):
    """The job of a file: its Request, and the configuration that it came of."""

    request: Request
    configuration: ReadConfiguration


def read_job(target: str, given: Mapping[str, Any]) -> ReadJob:
    """The job that a file describes, with what the command line says instead.

    given: fields of Request that the command line gives. UserError where the file holds no job,
    several, or one whose model or GPUs neither it nor the command line names.
    """
    match = _NUMBERED.fullmatch(target)
    name, number = (match[1], int(match[2])) if match else (target, None)
    shown = show_path(name)
    try:
        jobs = _jobs(read_target(name).configurations)
    except UserError as error:  # which calls it a file, or what is linted
        raise UserError(_FLAG, error.value, error.relation, error.nearest) from None
    if number is None and len(jobs) > 1:
        raise UserError(
            _FLAG,
            shown,
            f"holds {len(jobs)} jobs: {'; '.join(_described(jobs))}",
            f"choose one, e.g. {_FLAG} {shown}#1",
        )
    if number is not None and not 1 <= number <= len(jobs):
        nearest = min(max(number, 1), len(jobs))
        jobs_held = "1 job" if len(jobs) == 1 else f"{len(jobs)} jobs"
        where = f"nearest: {shown}#{nearest}"
        raise UserError(_FLAG, show_path(target), f"holds {jobs_held}", where)
    configuration = jobs[(number or 1) - 1]
    request = request_from(configuration, given)
    unknown = (one for one in configuration.unknown if not _is_settled(one, configuration, given))
    return ReadJob(request=request, configuration=replace(configuration, unknown=tuple(unknown)))


def _is_settled(
    one: UnknownValue, configuration: ReadConfiguration, given: Mapping[str, Any]
) -> bool:
    """Whether the command line, or another document, says what one leaves open."""
    if one.path.startswith("model.") and given.get("model"):
        return True
    return bool(one.path) and (one.path in configuration.values or is_given(one.path, given))


def request_from(configuration: ReadConfiguration, given: Mapping[str, Any]) -> Request:
    """The Request of a configuration; what `given` says wins, `--model` over the whole shape."""
    flags = set(Request.__struct_fields__)
    values: dict[str, Any] = {"framework": str(configuration.framework)}
    if configuration.version:
        values["framework_version"] = configuration.version
    overrides, unsaid = [], []
    named = given.get("model") or configuration.model
    shape = configuration.shape if configuration.model and not given.get("model") else {}
    for path, found in {**shape, **configuration.values}.items():
        field = path.partition(".")[2]
        if is_given(path, given):
            continue
        if found.unsaid:
            unsaid.append(path)
        if field in flags and not path.startswith("model."):
            values[field] = found.value
        elif field != "data_parallel_size":  # the GPUs decide it
            overrides.append(f"{path}={_text(found.value)}")
    values["takes_recipe"] = not configuration.whole
    if values.get("tensor_model_parallel_size", 1) == 1:
        values.pop("sequence_parallel", None)
    values |= {name: value for name, value in given.items() if value not in (None, ())}
    values["overrides"] = (*overrides, *given.get("overrides", ()))
    values["unsaid"] = tuple(unsaid)
    values["model"] = named or _spelled_out(configuration, given)
    values["gpus"] = _gpus(configuration, given.get("gpus"))
    for name, flag, example in (("model", "--model", "llama3_8b"), ("gpus", "--gpus", "8xH100")):
        if not values[name]:
            raise UserError(
                _FLAG,
                configuration.place.file,
                f"does not tell the {name}",
                f"add {flag} {example}",
            )
    if configuration.num_microbatches and not values.get("global_batch_size"):
        values |= _batch(configuration.num_microbatches, values)
    return Request(**values)


def is_given(path: str, given: Mapping[str, Any]) -> bool:
    """Whether the command line says a field, by its flag or as KEY=VALUE."""
    taken = {pair.partition("=")[0] for pair in given.get("overrides", ())}
    flag = path.partition(".")[2] or path
    return path in taken or given.get(flag) not in (None, ())


def _spelled_out(configuration: ReadConfiguration, given: Mapping[str, Any]) -> Any:
    """The fields of a model that is no preset; what is given as KEY=VALUE is among them. Nothing
    where the file does not spell them out; UserError where the vocabulary alone is missing."""
    pairs = (pair.partition("=") for pair in given.get("overrides", ()))
    fields: dict[str, Any] = {
        path.removeprefix("model."): found.value for path, found in configuration.shape.items()
    }
    if "hidden_size" not in fields:
        return ""
    for key, _, text in pairs:
        if key.startswith("model."):
            name = key.removeprefix("model.")
            fields[name] = int(text) if text.isdigit() else text
    sequence = configuration.values.get("job.seq_length")
    if "max_position_embeddings" not in fields and sequence is not None:
        fields["max_position_embeddings"] = sequence.value
    needed = [one.name for one in struct_fields(ModelSpec) if one.required and one.name != "name"]
    missing = [name for name in needed if name not in fields]
    if missing == ["vocab_size"]:
        raise UserError(
            _FLAG,
            configuration.place.file,
            "spells out a model that is no preset, but for its vocabulary",
            "add model.vocab_size=N, or --model",
        )
    return "" if missing else {"name": Path(configuration.place.file).stem, **fields}


def _batch(num_microbatches: int, values: Mapping[str, Any]) -> dict[str, int]:
    """The global batch of so many microbatches on every data-parallel rank."""
    names = ("tensor", "pipeline")
    degrees = [values.get(f"{name}_model_parallel_size") or 1 for name in names]
    degrees.append(values.get("context_parallel_size") or 1)
    micro = values.get("micro_batch_size")
    ranks = parse_gpus(values["gpus"])[0] // prod(degrees)
    return {"global_batch_size": micro * num_microbatches * ranks} if micro and ranks else {}


def _gpus(configuration: ReadConfiguration, given: str | None) -> str:
    """`--gpus H100` leaves the number to the file."""
    if given and configuration.num_gpus and not re.match(r"\d+x", given):
        return f"{configuration.num_gpus}x{given}"
    return given or ""


def _text(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def _jobs(found: Sequence[tuple[Reader, ReadConfiguration]]) -> list[ReadConfiguration]:
    """Configurations that differ in what they say; documents that complete each other are one."""
    jobs: list[ReadConfiguration] = []
    for reader, configuration in found:
        named = replace(configuration, model=reader.model(configuration))
        for number, other in enumerate(jobs):
            merged = _merged(other, named)
            if merged is not None:
                jobs[number] = merged
                break
        else:
            jobs.append(named)
    return jobs


def _merged(one: ReadConfiguration, other: ReadConfiguration) -> ReadConfiguration | None:
    """Both as one job, unless a value differs, or neither framework takes the other's jobs over."""
    owner = next((own for own, its in ((one, other), (other, one)) if _takes(own, its)), None)
    if owner is None:
        return None
    if any(
        _differ(one.values[path], other.values[path]) for path in one.values if path in other.values
    ):
        return None
    settings = {one.recompute, other.recompute} - {None}
    if len(settings) > 1 or (one.model and other.model and one.model != other.model):
        return None
    return replace(
        one,
        framework=owner.framework,
        takes_over=owner.takes_over,
        values={**one.values, **other.values},
        recompute=one.recompute or other.recompute,
        recompute_at=one.recompute_at or other.recompute_at,
        model=one.model or other.model,
        num_gpus=one.num_gpus or other.num_gpus,
        untaken=(*one.untaken, *other.untaken),
        unknown=(*one.unknown, *other.unknown),
        shape={**one.shape, **other.shape},
        num_microbatches=one.num_microbatches or other.num_microbatches,
    )


def _takes(own: ReadConfiguration, other: ReadConfiguration) -> bool:
    return other.framework in (own.framework, *own.takes_over)


def _differ(one: ReadValue, other: ReadValue) -> bool:
    return bool(one.value != other.value)


def _described(jobs: Sequence[ReadConfiguration]) -> list[str]:
    """Number and line of each, with its conditions, or else the values that tell them apart."""
    paths = dict.fromkeys(path for job in jobs for path in job.values)
    texts = {path: [_text_of(job, path) for job in jobs] for path in paths}
    differing = [path for path in paths if len(set(texts[path])) > 1]
    described = []
    for number, job in enumerate(jobs):
        text = f"{number + 1} in line {job.place.line}"
        if job.branch:
            text += f" where {job.branch[-1]}"
        elif differing:
            text += f" with {differing[0]} {texts[differing[0]][number]}"
        described.append(text)
    return described


def _text_of(job: ReadConfiguration, path: str) -> str:
    return _text(job.values[path].value) if path in job.values else "not given"
