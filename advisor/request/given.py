"""What a request says, as typed values: flags and KEY=VALUE under the names of the job's fields."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from msgspec import Struct, field
from msgspec.structs import fields

from advisor.base.dtypes import Precision
from advisor.base.errors import UserError, nearest_names
from advisor.base.fields import (
    field_types,
    is_record,
    parse,
    parse_all,
    spelled,
    split_key_value,
    takes,
)
from advisor.base.units import parse_bytes
from advisor.frameworks.registry import known_framework
from advisor.job.job import JobConfig
from advisor.job.layout import ParallelLayout
from advisor.models.presets import ModelSource
from advisor.models.spec import ModelSpec
from advisor.request.recipes import Experiment
from advisor.request.request import Request

RECORDS: Final[dict[str, type[Struct]]] = {
    name: kind for name, kind in field_types(JobConfig).items() if is_record(kind)
}
"""Fields of a job that are groups of keys themselves: ``tuning.KEY=VALUE``."""
GROUPS: Final[dict[str, type[Struct]]] = {
    "model": ModelSpec,
    "layout": ParallelLayout,
    "job": JobConfig,
    **RECORDS,
}
SAMPLES: Final = {k: k for k in ("lengths", "packing")} | {"token_budget": "max_tokens_per_gpu"}
"""Keys of `samples` that have a flag, and the request's field."""
_BUDGET: Final = "memory_budget_bytes"
_JOB_FLAGS: Final = (
    *("seq_length", "micro_batch_size", "global_batch_size"),
    *("framework_version", "certainty"),
)


class Given(Struct, frozen=True, kw_only=True):
    """What somebody has said of a job; all else is looked up, completed or assumed.

    model: preset, YAML file or config.json. gpus: COUNTxTYPE. model_fields, layout_fields,
    job_fields: fields of ModelSpec, ParallelLayout and JobConfig. recipe: the one to build on;
    None leaves the choice to `recipe_choice`, where takes_recipe is set. omitted: ``GROUP.FIELD``
    of those that are the framework's default. recompute: the settings that are asked for, as SPEC.
    keys: ``GROUP.FIELD`` of the fields of a job that are groups of keys themselves.
    """

    model: ModelSource
    gpus: str
    model_fields: Mapping[str, Any] = field(default_factory=dict)
    layout_fields: Mapping[str, Any] = field(default_factory=dict)
    job_fields: Mapping[str, Any] = field(default_factory=dict)
    recipe: Experiment | None = None
    takes_recipe: bool = True
    omitted: frozenset[str] = frozenset()
    recompute: tuple[str, ...] = ()
    config_dir: Path | None = None
    keys: tuple[str, ...] = ()

    @property
    def by_group(self) -> dict[str, Mapping[str, Any]]:
        """What is said of model, layout and job."""
        return {"model": self.model_fields, "layout": self.layout_fields, "job": self.job_fields}


def read_given(request: Request) -> Given:
    """The request's flags and KEY=VALUE pairs, parsed; UserError on a wrong key or value."""
    pairs = _pairs_by_group(request.overrides)
    for key, name in SAMPLES.items():
        if (said := getattr(request, name)) is not None:
            pairs["samples"].setdefault(key, str(said))
    job_fields = _job_fields(request, pairs["job"])
    own = _usual(request, pairs)
    job_fields |= {
        name: kind(**parse_all(kind, own[name] | pairs[name], f"{name}."))
        for name, kind in RECORDS.items()
        if own[name] or pairs[name]
    }
    if lengths := pairs["samples"].get("lengths"):
        from advisor.job.lengths import read_lengths

        job_fields.setdefault("seq_length", read_lengths(lengths).longest)
    return Given(
        model=request.model,
        gpus=request.gpus,
        model_fields=parse_all(ModelSpec, pairs["model"], "model."),
        layout_fields=_layout_fields(request, pairs["layout"]),
        job_fields=job_fields,
        keys=tuple(f"{group}.{key}" for group in RECORDS for key in pairs[group]),
        config_dir=request.config_dir,
        takes_recipe=request.takes_recipe,
        omitted=frozenset(
            (*request.omitted, *(f"{name}.{key}" for name in own for key in own[name]))
        ),
        recompute=request.recompute,
    )


def _usual(request: Request, pairs: Mapping[str, dict[str, str]]) -> dict[str, dict[str, str]]:
    """What a dialect that is named has by default, by group; nothing of a file, which says it."""
    found: dict[str, dict[str, str]] = {name: {} for name in RECORDS}
    if request.framework and not request.source:
        from advisor.frameworks.dialect_rows import usual

        said = {f"{name}.{key}": text for name in RECORDS for key, text in pairs[name].items()}
        for path, text in usual(request.framework, said).items():
            group, _, key = path.partition(".")
            found[group][key] = text
    return found


def _pairs_by_group(pairs: tuple[str, ...]) -> dict[str, dict[str, str]]:
    """KEY=VALUE pairs by their group: model, layout or job."""
    groups: dict[str, dict[str, str]] = {group: {} for group in GROUPS}
    for pair in pairs:
        path, text = split_key_value(pair, "overrides")
        group, _, key = path.partition(".")
        if "nvme" in pair.lower():
            reason = "offload to NVMe (ZeRO-Infinity) is not modelled; offload to the host is"
            fix = "job.optimizer_cpu_offload=true job.param_cpu_offload=true"
            raise UserError(path, text, reason, fix)
        if group not in groups or not key:
            near = nearest_names(path, {known.key for known in known_keys()})
            meant = _namesake(path.rpartition(".")[2])
            hint = f"did you mean {meant}?" if meant else f"{near} (advise keys lists all)"
            known = ", ".join(f"{name}.KEY" for name in GROUPS)
            fix = f"write {known}, or --from 'COMMAND' in a framework's own words; {hint}"
            raise UserError(path, text, "is not a known key", fix)
        if key not in field_types(GROUPS[group]) and (meant := _namesake(key)):
            raise UserError(path, text, "is not a known key", f"did you mean {meant}?")
        groups[group][key] = text
    return groups


class KnownKey(NamedTuple):
    """A KEY of KEY=VALUE, what it takes, and the value where nothing says it."""

    key: str
    takes: str
    default: str


def known_keys() -> Iterator[KnownKey]:
    """Every KEY, in the order of the records that hold them."""
    for group, cls in GROUPS.items():
        types = field_types(cls)
        for known in fields(cls):
            if known.name in RECORDS:
                continue
            default = "" if known.required else spelled(known.default)
            yield KnownKey(f"{group}.{known.name}", takes(types[known.name]), default)


def _namesake(name: str) -> str:
    """The KEY of any group that has this name; empty if none has."""
    return min((known.key for known in known_keys() if known.key.endswith(f".{name}")), default="")


def _layout_fields(request: Request, texts: Mapping[str, str]) -> dict[str, Any]:
    """Fields of ParallelLayout that the request gives; a flag and a KEY=VALUE may not differ."""
    hints = field_types(ParallelLayout)
    given = {
        name: getattr(request, name) for name in hints if getattr(request, name, None) is not None
    }
    for key, text in texts.items():
        if key not in hints:
            raise UserError(f"layout.{key}", text, "is not a known key", nearest_names(key, hints))
        value = parse(text, hints[key], f"layout.{key}")
        if given.setdefault(key, value) != value:
            raise UserError(f"layout.{key}", text, f"is given as {given[key]} too", "give one")
    return given


def _job_fields(request: Request, texts: Mapping[str, str]) -> dict[str, Any]:
    """Fields of JobConfig that the request gives; a KEY=VALUE goes before a flag."""
    given: dict[str, Any] = {
        name: getattr(request, name) for name in _JOB_FLAGS if getattr(request, name) is not None
    }
    if request.precision:
        given["precision"] = parse(request.precision, Precision, "--precision")
    if request.framework:
        given["framework"] = known_framework(request.framework, "--framework")
    if request.memory_budget is not None:
        given[_BUDGET] = parse_bytes(request.memory_budget, "--memory-budget")
    texts = dict(texts)
    budget = texts.get(_BUDGET, "0")
    if not budget.isdigit():
        texts[_BUDGET] = str(parse_bytes(budget, f"job.{_BUDGET}"))
    given |= parse_all(JobConfig, texts, "job.")
    if "framework" in given:
        given["framework"] = known_framework(given["framework"])
    return given
