"""`advise --from FILE`: the job that a configuration describes, as a Request.

A file that holds one job, however many branches lead to it, is that job; of several, one is named
by its number, `train.sh#2`.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from advisor.base.errors import UserError
from advisor.base.fields import show_path
from advisor.lint.target import read_target
from advisor.reading.read_configuration import ReadConfiguration, Reader, ReadValue
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
    return ReadJob(request=request_from(configuration, given), configuration=configuration)


def request_from(configuration: ReadConfiguration, given: Mapping[str, Any]) -> Request:
    """The Request of a configuration; what `given` says wins."""
    flags = set(Request.__struct_fields__)
    values: dict[str, Any] = {"framework": str(configuration.framework)}
    if configuration.version:
        values["framework_version"] = configuration.version
    overrides = []
    taken = {pair.partition("=")[0] for pair in given.get("overrides", ())}
    for path, found in configuration.values.items():
        field = path.partition(".")[2]
        if path in taken or given.get(field) is not None:
            continue
        if field in flags:
            values[field] = found.value
        elif field != "data_parallel_size":  # the GPUs decide it
            overrides.append(f"{path}={_text(found.value)}")
    values["takes_recipe"] = not configuration.whole
    if values.get("tensor_model_parallel_size", 1) == 1:
        values.pop("sequence_parallel", None)
    values |= {name: value for name, value in given.items() if value not in (None, ())}
    values["overrides"] = (*overrides, *given.get("overrides", ()))
    values["model"] = given.get("model") or configuration.model
    values["gpus"] = _gpus(configuration, given.get("gpus"))
    for name, flag, example in (("model", "--model", "llama3_8b"), ("gpus", "--gpus", "8xH100")):
        if not values[name]:
            raise UserError(
                _FLAG,
                configuration.place.file,
                f"does not tell the {name}",
                f"add {flag} {example}",
            )
    return Request(**values)


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
