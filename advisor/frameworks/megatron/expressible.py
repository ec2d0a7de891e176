"""Every setting that a release can be told and that differs from the others in what it keeps,
replays or sends to the host; in groups that differ in what is offloaded alone."""

from collections.abc import Iterator
from itertools import combinations

from msgspec.structs import replace

from advisor.frameworks.megatron.candidates import acting_labels, enumerate_settings
from advisor.frameworks.megatron.offload import REGIONS, offloaded_modules
from advisor.frameworks.megatron.plan import selective_runs
from advisor.frameworks.megatron.revisions import Revision
from advisor.frameworks.megatron.rules import check
from advisor.frameworks.megatron.setting import (
    NONE,
    Granularity,
    Method,
    RecomputeSetting,
    selective,
)
from advisor.frameworks.protocols import Decisions, SettingGroup
from advisor.job.job import Job
from advisor.models.spec import ModelSpec


def decisions_of(job: Job, revision: Revision) -> Decisions:
    """Sets of all recompute modules that act, each with all sets of offloaded modules that act;
    whole layers offloaded; full recompute by every number of layers.

    A group is one set of recompute modules: without offload it is fastest, with all of it it keeps
    least (an offloaded tensor is one that nothing else needs on the device: more modules, more of
    them; its copies only take time).
    """
    groups = tuple(group for group in _groups(job, revision) if group.settings)
    modules, regions = len(acting_labels(job.model)), len(_acting_regions(job.model, revision))
    numbers = sum(len(group.settings) for group in groups)
    space = f"{numbers:,} settings: sets of {modules} recompute modules"
    if regions:
        space += f" x sets of {regions} offloaded modules"
    return Decisions(
        groups=groups,
        space=f"{space}, whole layers offloaded, block and uniform N",
        one_for_all="no release of Megatron can say it",
    )


def _groups(job: Job, revision: Revision) -> Iterator[SettingGroup]:
    regions = _acting_regions(job.model, revision)
    for base in _selective(job.model):
        most = replace(base, offload_modules=regions)
        sent = (replace(base, offload_modules=chosen) for chosen in _offloads(job.model, regions))
        yield SettingGroup(_legal((base, *sent), job, revision), base, most)
    layers = range(1, job.model.num_layers)
    whole = tuple(replace(NONE, cpu_offloading_num_layers=number) for number in layers)
    if whole:
        yield SettingGroup(_legal(whole, job, revision), NONE, whole[-1])
    for setting in enumerate_settings(job, revision):
        if isinstance(setting, RecomputeSetting) and setting.granularity is Granularity.FULL:
            divides = revision.uniform_must_divide and setting.method is Method.UNIFORM
            yield SettingGroup((setting,), setting, setting, any_split=not divides)


def _legal(
    settings: tuple[RecomputeSetting, ...], job: Job, revision: Revision
) -> tuple[RecomputeSetting, ...]:
    return tuple(setting for setting in settings if not check(setting, job, revision))


def _selective(model: ModelSpec) -> Iterator[RecomputeSetting]:
    """None, and the first of those sets of modules that replay the same."""
    labels, kinds = acting_labels(model), tuple(dict.fromkeys(model.layer_kinds))
    seen = set()
    for size in range(len(labels) + 1):
        for names in combinations(labels, size):
            setting = selective(*names) if names else NONE
            runs = tuple(selective_runs(setting, model, kind) for kind in kinds)
            if runs not in seen:
                seen.add(runs)
                yield setting


def _acting_regions(model: ModelSpec, revision: Revision) -> tuple[str, ...]:
    """Modules that send anything to the host in some layer of `model`."""
    kinds = tuple(dict.fromkeys(model.layer_kinds))
    return tuple(
        name
        for name in revision.offload_modules
        if name in REGIONS
        and any(offloaded_modules(replace(NONE, offload_modules=(name,)), model, k) for k in kinds)
    )


def _offloads(model: ModelSpec, regions: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Sets of modules, the first of those that send the same."""
    kinds = tuple(dict.fromkeys(model.layer_kinds))
    seen = set()
    for size in range(1, len(regions) + 1):
        for names in combinations(regions, size):
            setting = replace(NONE, offload_modules=names)
            sent = tuple(offloaded_modules(setting, model, kind) for kind in kinds)
            if sent not in seen:
                seen.add(sent)
                yield names
