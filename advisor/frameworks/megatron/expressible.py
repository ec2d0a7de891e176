"""Every setting that a release can be told and that differs from the others in what it keeps,
replays or sends to the host; in groups that differ in what is offloaded alone."""

from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Final

from msgspec.structs import replace

from advisor.frameworks.megatron.candidates import acting_labels, enumerate_settings, subsets
from advisor.frameworks.megatron.plan import (
    EXPERT_REGIONS,
    REGIONS,
    offloaded_modules,
    selective_runs,
)
from advisor.frameworks.megatron.revisions import Revision
from advisor.frameworks.megatron.rules.engine import check
from advisor.frameworks.megatron.setting import (
    NONE,
    Granularity,
    Method,
    RecomputeSetting,
    full,
    selective,
)
from advisor.frameworks.part_types import Decisions, SettingGroup
from advisor.job.job import Job
from advisor.job.pipeline_split import most_layers_of_chunk
from advisor.models.layer_kind import LayerKind
from advisor.models.spec import ModelSpec
from advisor.plan.recompute_plan import Setting


def decisions_of(job: Job, revision: Revision) -> Decisions:
    """Sets of all recompute modules that act, each with all sets of offloaded modules that act;
    whole layers offloaded; full recompute by every number of layers.

    A group is one set of recompute modules, and in it one set of offloaded ones by its fractions:
    without offload it is fastest, with all of it it keeps least (an offloaded tensor is one that
    nothing else needs on the device: more modules and more layers, more of them; its copies only
    take time).
    """
    groups = tuple(group for group in _groups(job, revision) if group.members)
    modules, regions = len(acting_labels(job.model)), len(_acting_regions(job.model, revision))
    numbers = sum(len(group.settings) for group in groups)
    space = f"{numbers:,} settings: every subset of {modules} recompute modules"
    if regions:
        space += f" with every subset of {regions} offload modules"
    if regions and _reads_fraction(revision):
        space += ", offloaded in any fraction of the layers"
    return Decisions(
        groups=groups,
        space=f"{space}; offload of whole layers; full recompute with block or uniform N",
        one_for_all="no release of Megatron has an option for it",
    )


def _groups(job: Job, revision: Revision) -> Iterator[SettingGroup]:
    regions = _acting_regions(job.model, revision)
    layers = most_layers_of_chunk(job.model, job.layout) if _reads_fraction(revision) else 1
    layers -= job.layout.pipeline_model_parallel_size == 1  # the last one stays: offloaded_by_layer
    for base in _selective(job.model):
        sending = (
            _with_fractions(sent, layers)
            for chosen in _offloads(job.model, regions)
            for sent in _legal((replace(base, offload_modules=chosen),), job, revision)
        )
        parts = (*_legal((base,), job, revision), *sending)
        yield SettingGroup(parts, base, replace(base, offload_modules=regions))
    whole = tuple(
        replace(NONE, cpu_offloading_num_layers=number) for number in range(1, job.model.num_layers)
    )
    if legal := _legal(whole, job, revision):
        its = _halved(legal)
        yield its if isinstance(its, SettingGroup) else SettingGroup(legal, NONE, legal[-1])
    for setting in _full(job, revision):
        divides = revision.uniform_must_divide and setting.method is Method.UNIFORM
        yield SettingGroup((setting,), setting, setting, any_split=not divides)


def _with_fractions(sent: RecomputeSetting, layers: int) -> Setting | SettingGroup:
    """`sent` before its fractions: of those that take the same time the plain one comes first."""
    fractions = tuple(_fractions(sent, layers))
    return sent if not fractions else SettingGroup((sent, _halved(fractions)), fractions[0], sent)


def _halved(settings: tuple[RecomputeSetting, ...]) -> Setting | SettingGroup:
    """Settings of which each offloads all that the one before does, and more: in halves, of which
    the first setting is the fastest and the last one keeps least."""
    if len(settings) == 1:
        return settings[0]
    middle = len(settings) // 2
    halves = _halved(settings[:middle]), _halved(settings[middle:])
    return SettingGroup(halves, settings[0], settings[-1])


def _full(job: Job, revision: Revision) -> Iterator[RecomputeSetting]:
    """Full recompute as candidates have it, and where layers may move by every number of them that
    a chunk twice as large as the largest would have."""
    known = [
        setting
        for setting in enumerate_settings(job, revision)
        if isinstance(setting, RecomputeSetting) and setting.granularity is Granularity.FULL
    ]
    yield from known
    if not revision.splits_by_text or job.layout.pipeline_model_parallel_size == 1:
        return
    numbers = range(1, 2 * most_layers_of_chunk(job.model, job.layout))
    for shares in dict.fromkeys(setting.distribute_saved_activations for setting in known):
        more = (full(method, n, distribute=shares) for method in Method for n in numbers)
        yield from _legal(tuple(one for one in more if one not in known), job, revision)


def _reads_fraction(revision: Revision) -> bool:
    """Whether it has activation_offload_fraction (0.19.2 transformer_config.py)."""
    return revision.at_least(0, 19)


def _fractions(sent: RecomputeSetting, layers: int) -> Iterator[RecomputeSetting]:
    """`sent` in the first layers of a chunk of so many alone: half a module more than stays, so
    that no rounding decides."""
    modules = len(sent.offload_modules)
    for number in range(1, layers):
        yield replace(sent, offload_fraction=round((number - 0.5 / modules) / layers, _DIGITS))


_DIGITS: Final = 4
"""Of a fraction: enough for 5,000 groups of a chunk."""


def _legal(
    settings: tuple[RecomputeSetting, ...], job: Job, revision: Revision
) -> tuple[RecomputeSetting, ...]:
    return tuple(setting for setting in settings if not check(setting, job, revision))


def _first_alike(
    settings: Iterable[RecomputeSetting],
    effect: Callable[[RecomputeSetting, ModelSpec, LayerKind], Hashable],
    model: ModelSpec,
) -> Iterable[RecomputeSetting]:
    """The first of those settings that have the same effect in every kind of layer."""
    found: dict[Hashable, RecomputeSetting] = {}
    kinds = tuple(dict.fromkeys(model.layer_kinds))
    for setting in settings:
        found.setdefault(tuple(effect(setting, model, kind) for kind in kinds), setting)
    return found.values()


def _selective(model: ModelSpec) -> Iterable[RecomputeSetting]:
    """None, and the first of those sets of modules that replay the same."""
    sets = (selective(*names) for names in subsets(acting_labels(model)))
    return _first_alike((NONE, *sets), selective_runs, model)


def _acting_regions(model: ModelSpec, revision: Revision) -> tuple[str, ...]:
    """Modules that send anything to the host in some layer of `model`; those of experts, four times
    as many sets, are not searched."""
    kinds = tuple(dict.fromkeys(model.layer_kinds))
    return tuple(
        name
        for name in revision.offload_modules
        if name in REGIONS.keys() - EXPERT_REGIONS
        and any(offloaded_modules(replace(NONE, offload_modules=(name,)), model, k) for k in kinds)
    )


def _offloads(model: ModelSpec, regions: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Sets of modules, the first of those that send the same."""
    sets = (replace(NONE, offload_modules=names) for names in subsets(regions))
    return (one.offload_modules for one in _first_alike(sets, offloaded_modules, model))
