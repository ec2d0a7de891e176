"""`advise --from FILE`: the job that a configuration describes, as a Request. Of several jobs that
a file holds, one is named by its number, `train.sh#2`."""

import re
from collections.abc import Iterator, Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any, Final, TypeVar

from msgspec import Struct
from msgspec.structs import asdict, replace
from msgspec.structs import fields as struct_fields

from advisor.base.errors import UserError, nearest_divisors, show_path
from advisor.base.fields import field_types, key_of, parse, split_key_values
from advisor.base.rule import Level
from advisor.base.units import counted, parse_gpus, whole_number
from advisor.frameworks.own_options import refuse_options
from advisor.frameworks.registry import parts_of
from advisor.job.job import JobConfig
from advisor.job.layout import ParallelLayout
from advisor.lint.target import read_target, reads
from advisor.models.presets import load_model
from advisor.models.spec import ModelSpec
from advisor.reading.read_configuration import (
    EXPANDABLE_SEGMENTS,
    ReadConfiguration,
    Reader,
    ReadValue,
    UnknownValue,
    Untaken,
)
from advisor.request.given import SAMPLES
from advisor.request.request import Request

T = TypeVar("T")
_FLAG: Final = "--from"
_CHUNKS: Final = "virtual_pipeline_model_parallel_size"
_NUMBERED: Final = re.compile(r"(.+)#(\d+)")


class ReadJob(Struct, frozen=True, kw_only=True):
    """The job of a file: its Request, and the configuration that it came of."""

    request: Request
    configuration: ReadConfiguration


def read_job(target: str, given: Mapping[str, Any], *, whole: bool = True) -> ReadJob:
    """The job that a file describes, with the fields of Request that the command line has `given`.
    UserError where it is no job, several, or, if it is to be `whole`, one whose model or GPUs
    neither of them names."""
    match = _NUMBERED.fullmatch(target)
    name, number = (match[1], int(match[2])) if match else (target, None)
    shown = show_path(name)
    try:
        read = read_target(name)
        jobs = _jobs(read.configurations)
    except UserError as error:  # which calls it a file, or what is linted
        raise UserError(_FLAG, error.value, error.relation, error.nearest) from None
    if number is None and len(jobs) > 1:
        relation = f"holds {len(jobs)} jobs: {'; '.join(_described(jobs))}"
        raise UserError(_FLAG, shown, relation, f"choose one, e.g. {_FLAG} {shown}#1")
    if number is not None and not 1 <= number <= len(jobs):
        nearest = min(max(number, 1), len(jobs))
        held, where = counted(len(jobs), "job"), f"nearest: {shown}#{nearest}"
        raise UserError(_FLAG, show_path(target), f"holds {held}", where)
    configuration = _without_foreign(jobs[(number or 1) - 1], given)
    request = replace(request_from(configuration, given, whole=whole), source=target)
    unknown = (one for one in configuration.unknown if not _is_settled(one, configuration, given))
    its = (pair for pair in read.configurations if pair[1].place == configuration.place)
    checks = (reader.check(one, given.get("framework_version")) for reader, one in its)
    refused = tuple(f for one in checks for f in one.findings if f.level is Level.ERROR)
    known = replace(configuration, unknown=tuple(unknown), notes=read.notes, refused=refused)
    return ReadJob(request=request, configuration=known)


_UNTUNED: Final = "not modelled with adapters or frozen weights"


def _without_foreign(read: ReadConfiguration, given: Mapping[str, Any]) -> ReadConfiguration:
    """Without options that the framework of the job, which a Trainer hands it to, does not have,
    and what is not modelled next to an adapter."""
    framework = str(given.get("framework") or read.hands_to or read.framework)
    kept, foreign = dict(read.values), []
    for path, found in read.values.items():
        if relation := _refusal(path, found, framework):
            one = kept.pop(path)  # a default of the one that handed it over is none of its own
            foreign += [] if one.omitted else [Untaken.of(one, relation)]
    adapter, layers = (kept.get(f"tuning.{name}") for name in ("adapter", "num_trainable_layers"))
    is_tuned = layers or (adapter and adapter.value != "none")
    for path in parts_of(framework).jobs.untuned if is_tuned else ():
        if path in kept and kept[path].value is True:
            own = kept.pop(path)
            foreign.append(Untaken.of(replace(own, written=own.written or path), _UNTUNED))
    return replace(read, values=kept, untaken=(*read.untaken, *foreign))


def _refusal(path: str, found: ReadValue, framework: str) -> str:
    """Why a framework's jobs have no such option; empty where they may have."""
    part, _, name = path.partition(".")
    types = field_types(JobConfig)
    if part != "job" or name not in types:
        return ""
    sizes = dict.fromkeys(("seq_length", "micro_batch_size", "global_batch_size"), 1)
    try:
        job = JobConfig(**sizes | {name: parse(_text(found.value), types[name], path)})
    except UserError:
        return ""
    try:
        refuse_options(job, framework, parts_of(framework).jobs.own_options)
    except UserError as error:
        return error.relation
    return ""


def blamed(error: UserError, read: ReadConfiguration | None, request: Request) -> UserError:
    """The same error; of a field that the file has set by the option there, and its place. Of those
    that it names and nothing states it says so, where they may be in what was not read."""
    found = read.values.get(error.field) if read is not None else None
    field, nearest = error.field, error.nearest
    if found is not None and not found.omitted:
        field = f"{found.written} in line {found.place.line} of {found.place.file}"
    missing = ", ".join(_unstated(f"{error.field} {error.relation} {nearest}", request))
    if read is not None and missing and (unread := (*read.unread, *read.notes)):
        parts = ", ".join(dict.fromkeys(note.text.partition(": the ")[0] for note in unread))
        lacks = f"{read.place.file} does not state {missing}, but holds unread parts ({parts})"
        nearest = f"{nearest}; {lacks}: give it as KEY=VALUE".removeprefix("; ")
    return UserError(field, error.value, error.relation, nearest)


def _unstated(text: str, request: Request) -> Iterator[str]:
    """Fields that a text names, and that neither the file nor the command line states."""
    given = asdict(request)
    for name in dict.fromkeys(re.findall(r"[a-z0-9]+(?:_[a-z0-9]+)+", text)):
        for group, cls in (("layout", ParallelLayout), ("job", JobConfig)):
            path = f"{group}.{name}"
            stated = is_given(path, given) and path not in request.omitted
            if name in cls.__struct_fields__ and not stated:
                yield path


def _is_settled(
    one: UnknownValue, configuration: ReadConfiguration, given: Mapping[str, Any]
) -> bool:
    """Whether the command line, or another document, says what one leaves open."""
    named = one.path.startswith("model.") and given.get("model")
    counted_out = one.path == "job.global_batch_size" and configuration.num_microbatches
    said = one.path in configuration.values or is_given(one.path, given)
    return bool(named or counted_out or (one.path and said))


def request_from(
    configuration: ReadConfiguration, given: Mapping[str, Any], *, whole: bool = True
) -> Request:
    """The Request of a configuration; what `given` says wins, `--model` over the whole shape."""
    flags = set(Request.__struct_fields__)
    values: dict[str, Any] = {"framework": str(configuration.hands_to or configuration.framework)}
    if configuration.version:
        values["framework_version"] = configuration.version
    overrides, omitted = [], []
    named = given.get("model") or configuration.model
    shape = {} if given.get("model") else configuration.shape
    for path, found in {**shape, **configuration.values}.items():
        field = path.partition(".")[2]
        if is_given(path, given):
            continue
        if found.omitted:
            omitted.append(path)
        if field in flags and not path.startswith("model."):
            values[field] = found.value
        elif field != "data_parallel_size":  # the GPUs decide it
            overrides.append(f"{path}={_text(found.value)}")
    values["takes_recipe"] = not configuration.whole
    if values.get("tensor_model_parallel_size", 1) == 1:
        values.pop("sequence_parallel", None)
    values |= {name: value for name, value in given.items() if value not in (None, ())}
    values["overrides"] = (*overrides, *given.get("overrides", ()))
    values["model"] = named or _spelled_out(configuration, given)
    values["gpus"] = gpus = given.get("gpus") or ""
    if gpus and configuration.num_gpus and not re.match(r"\d+x", gpus):
        values["gpus"] = f"{configuration.num_gpus}x{gpus}"  # `--gpus H100` leaves it to the file
    count = configuration.num_gpus
    for name, example in (("model", "llama3_8b"), ("gpus", "H100" if count else "8xH100")):
        if whole and not values[name]:
            stated = "the type of its GPUs" if name == "gpus" and count else f"the {name}"
            relation, nearest = f"does not state {stated}", f"add --{name} {example}"
            raise UserError(_FLAG, configuration.place.file, relation, nearest)
    deep = configuration.layers_per_chunk if values["model"] else None
    if deep and not is_given(f"layout.{_CHUNKS}", given):
        values[_CHUNKS] = _num_chunks(deep, values)
    if configuration.num_microbatches and gpus:
        batch = _batch(configuration.num_microbatches, values)
        values |= batch
        omitted += [f"job.{name}" for name in batch]
    return Request(**values, omitted=tuple(omitted))


def is_given(path: str, given: Mapping[str, Any]) -> bool:
    """Whether the command line says a field, by its flag or as KEY=VALUE."""
    taken = map(key_of, given.get("overrides", ()))
    field = path.partition(".")[2] or path
    return path in taken or given.get(SAMPLES.get(field, field)) not in (None, ())


def _spelled_out(configuration: ReadConfiguration, given: Mapping[str, Any]) -> Any:
    """The fields of a model that is no preset, with those given as KEY=VALUE; empty where the file
    does not spell them out, UserError where the vocabulary alone is missing."""
    fields: dict[str, Any] = {
        path.removeprefix("model."): found.value for path, found in configuration.shape.items()
    }
    if "hidden_size" not in fields:
        return ""
    for key, text in split_key_values(given.get("overrides", ())).items():
        if key.startswith("model."):
            number = whole_number(text)
            fields[key.removeprefix("model.")] = text if number is None else number
    sequence = configuration.values.get("job.seq_length")
    if "max_position_embeddings" not in fields and sequence is not None:
        fields["max_position_embeddings"] = sequence.value
    needed = [one.name for one in struct_fields(ModelSpec) if one.required and one.name != "name"]
    missing = [name for name in needed if name not in fields]
    if missing == ["vocab_size"]:
        relation = "does not state the vocabulary size of its model, which is not a preset"
        nearest = "add model.vocab_size=N, or --model"
        raise UserError(_FLAG, configuration.place.file, relation, nearest)
    return "" if missing else {"name": Path(configuration.place.file).stem, **fields}


def _num_chunks(layers_per_chunk: int, values: Mapping[str, Any]) -> int:
    """Model chunks of a pipeline stage; UserError where they do not hold the layers evenly."""
    num_layers = load_model(values["model"], values.get("config_dir")).num_layers
    stages = values.get("pipeline_model_parallel_size") or 1
    chunks, left = divmod(num_layers, stages * layers_per_chunk)
    if left or not chunks:
        of_model = f"must divide num_layers / PP = {num_layers} / {stages}"
        nearest = nearest_divisors(num_layers // stages, layers_per_chunk)
        raise UserError("layers of a virtual pipeline stage", layers_per_chunk, of_model, nearest)
    return chunks


def _batch(num_microbatches: int, values: Mapping[str, Any]) -> dict[str, int]:
    """The global batch of so many microbatches on every data-parallel rank, or the micro batch."""
    names = ("tensor_model", "pipeline_model", "context")
    degrees = [values.get(f"{name}_parallel_size") or 1 for name in names]
    micro, whole = values.get("micro_batch_size"), values.get("global_batch_size")
    in_one_pass = num_microbatches * (parse_gpus(values["gpus"])[0] // prod(degrees))
    if micro and in_one_pass and not whole:
        return {"global_batch_size": micro * in_one_pass}
    if whole and in_one_pass and not micro and whole % in_one_pass == 0:
        return {"micro_batch_size": whole // in_one_pass}
    return {}


def _text(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def _jobs(found: Sequence[tuple[Reader, ReadConfiguration]]) -> list[ReadConfiguration]:
    """Configurations that differ; documents that complete each other are one, and a file is part of
    every command that names it."""
    jobs: list[ReadConfiguration] = []
    owners = {one.framework for _, one in found if one.names_files is not None}
    own_first = sorted(found, key=lambda pair: bool(owners) and pair[1].framework not in owners)
    for reader, configuration in own_first:
        named = replace(configuration, model=reader.model(configuration))
        parts = [_merged(other, named, reader) for other in jobs]
        merged = [number for number, one in enumerate(parts) if one is not None]
        for number in merged if named.names_files is None else merged[:1]:
            jobs[number] = parts[number] or jobs[number]
        if not merged:
            jobs.append(named)
    return jobs


def _merged(
    one: ReadConfiguration, other: ReadConfiguration, reader: Reader
) -> ReadConfiguration | None:
    """Both as one job, unless a value differs, or neither framework takes the other's jobs over. A
    command goes before the files that it names."""
    pairs = ((one, other), (other, one))
    takes = (own for own, its in pairs if its.framework in (own.framework, *own.takes_over))
    owner = next(takes, None)
    swapped = one.names_files is None and other.names_files is not None
    first, second = (other, one) if swapped else (one, other)
    over = first.names_files is not None and second.names_files is None
    differ = not over and one.model and other.model and one.model != other.model
    if owner is None or differ:
        return None
    if over and not reads(first.names_files or (), first.place.file, second.place.file):
        return None
    alike = all(its.framework in (own.framework, *own.takes_over) for own, its in pairs)
    joined = reader.merged(first, second) if over and alike else None
    if joined is not None:
        exported = {k: v for k, v in first.values.items() if k == EXPANDABLE_SEGMENTS}
        return replace(joined, model=reader.model(joined), values={**exported, **joined.values})
    if not over and not _agree(first, second):
        return None
    return replace(
        first,
        framework=owner.framework,
        takes_over=owner.takes_over,
        values=_said_first(first.values, second.values),
        shape=_said_first(first.shape, second.shape),
        unknown=tuple(dict.fromkeys((*first.unknown, *second.unknown))),
        **{name: getattr(first, name) or getattr(second, name) for name in _EITHER},
        **{n: tuple(dict.fromkeys((*getattr(first, n), *getattr(second, n)))) for n in _BOTH},
    )


_EITHER: Final = ("hands_to", "recompute", "recompute_at", "model", "num_gpus", "num_microbatches")
_BOTH: Final = ("partial_training", "untaken", "unread")


def _agree(one: ReadConfiguration, other: ReadConfiguration) -> bool:
    """Whether two documents say nothing that differs; of two commands, whether they say the same,
    for what one does not say is its default."""
    if other.names_files is not None:
        said = ({**part.values, **part.shape}.items() for part in (one, other))
        mine, theirs = ({path: found.value for path, found in part} for part in said)
        return mine == theirs and one.recompute == other.recompute
    both = ((one.values[path], other.values[path]) for path in one.values if path in other.values)
    same = all(a.value == b.value or a.omitted or b.omitted for a, b in both)
    return same and len({one.recompute, other.recompute} - {None}) < 2


def _said_first(
    first: Mapping[str, ReadValue], second: Mapping[str, ReadValue]
) -> dict[str, ReadValue]:
    """Values of both: what somebody has said before defaults, the first before the second."""
    said = {path: value for path, value in second.items() if not value.omitted}
    said |= {path: value for path, value in first.items() if not value.omitted}
    return {**second, **first, **said}


def _described(jobs: Sequence[ReadConfiguration]) -> list[str]:
    """Number and line of each, with its conditions, or else the values that tell them apart."""
    paths = dict.fromkeys(path for job in jobs for path in job.values)
    texts = {
        path: [_text(j.values[path].value) if path in j.values else "not given" for j in jobs]
        for path in paths
    }
    differing = [path for path in paths if len(set(texts[path])) > 1]
    described = []
    for number, job in enumerate(jobs):
        text = f"{number + 1} in line {job.place.line}"
        own = [one for one in job.branch if any(one not in other.branch for other in jobs)]
        if own:
            text += f" where {own[-1]}"
        elif differing:
            text += f" with {differing[0]} {texts[differing[0]][number]}"
        elif len({other.recompute for other in jobs}) > 1:
            text += f" with {job.recompute or 'an unknown recompute setting'}"
        described.append(text)
    return described
