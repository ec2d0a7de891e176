"""What Megatron's configuration gets to see of a ranked setting and its job."""

from collections.abc import Callable
from enum import Enum
from functools import lru_cache
from operator import attrgetter
from typing import Any, Final

from msgspec import UNSET

from advisor.frameworks.megatron.options.table import SETTINGS
from advisor.frameworks.megatron.options.training import Batch
from advisor.frameworks.megatron.raw import RawSettings
from advisor.frameworks.megatron.revisions import Revision
from advisor.frameworks.megatron.setting import Granularity, RecomputeSetting
from advisor.frameworks.option import Described, Option
from advisor.job.job import Job

_PARTS: Final = {"model": "model", "layout": "layout", "job": "config"}
"""Part of a job by the first word of a KEY=VALUE."""
_SETTING: Final = "recompute"
_OF_JOB: Final = tuple(
    row for row in SETTINGS.values() if row.ours and not row.ours.startswith(_SETTING)
)
_OF_BATCH: Final = frozenset(row.ours for row in Batch.rows)


def _getter(part: str) -> Callable[[Any], tuple[Any, ...]]:
    """All fields of a part of the job that options mean, except the batch."""
    paths = sorted({row.ours for row in _OF_JOB if row.ours.startswith(f"{part}.")} - _OF_BATCH)
    return attrgetter(*(path.removeprefix(f"{part}.") for path in paths))


_layout_facts = _getter("layout")
_config_facts = _getter("job")


class JobFacts:
    """A job, equal to every other one that differs in the batch or in data parallelism alone: rules
    do not read them, and a search finds most of its rejections in a cache keyed by this."""

    __slots__ = ("_hash", "_key", "job")

    def __init__(self, job: Job) -> None:
        self.job = job
        self._key = (job.model, _layout_facts(job.layout), _config_facts(job.config))
        self._hash = hash(self._key)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, JobFacts) and self._key == other._key


def job_facts(job: Job) -> JobFacts:
    """The facts of `job` that decide whether a setting is legal."""
    return JobFacts(job)


@lru_cache(maxsize=16384)
def lower(setting: RecomputeSetting, facts: JobFacts, revision: Revision) -> RawSettings:
    """What `revision`'s configuration gets to see of a setting and its job."""
    return RawSettings(**{**_values_of_facts(facts, revision), **_setting(setting, revision)})


@lru_cache(maxsize=256)
def _values_of_facts(facts: JobFacts, revision: Revision) -> dict[str, Any]:
    return job_values(facts.job, revision)


def job_values(job: Described, revision: Revision) -> dict[str, Any]:
    """Values of Megatron's options that follow from a job, by name; those that do not apply to it
    are left out."""
    found = ((row.name, _value(row, job, revision)) for row in _OF_JOB)
    return {name: value for name, value in found if value is not UNSET}


def _value(row: Option, job: Described, revision: Revision) -> object:
    if row.value is not None:
        return row.value(job, revision)
    part, _, name = row.ours.partition(".")
    value = getattr(getattr(job, _PARTS[part]), name)
    return str(value) if isinstance(value, Enum) else value


def _setting(setting: RecomputeSetting, revision: Revision) -> dict[str, Any]:
    """A setting as it is written; 0.11 has no list of modules: selective is core attention."""
    named = revision.recompute_modules or setting.modules != ("core_attn",)
    return {
        **setting_values(setting),
        "recompute_granularity": _unless_none(setting),
        "recompute_modules": setting.modules if named else None,
    }


def _unless_none(setting: RecomputeSetting) -> str | None:
    granularity = setting.granularity
    return None if granularity is Granularity.NONE else str(granularity)


def setting_values(setting: RecomputeSetting) -> dict[str, Any]:
    """Values of the options that make `setting`, an unset list of modules written out as the
    core_attn that Megatron makes of it, and selective recompute of nothing as no recompute."""
    modules = setting.effective_modules
    acts = setting.granularity is Granularity.FULL or bool(modules)
    layers = setting.cpu_offloading_num_layers
    return {
        "recompute_granularity": _unless_none(setting) if acts else None,
        "recompute_modules": modules,
        "recompute_method": None if setting.method is None else str(setting.method),
        "recompute_num_layers": setting.num_layers,
        "distribute_saved_activations": setting.distribute_saved_activations,
        "fine_grained_activation_offloading": bool(setting.offload_modules),
        "offload_modules": setting.offload_modules,
        "activation_offload_fraction": setting.offload_fraction,
        "cpu_offloading": layers > 0,
        **({"cpu_offloading_weights": False} if layers else {}),
        "cpu_offloading_num_layers": layers,
    }
