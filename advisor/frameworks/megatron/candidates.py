"""Which recompute settings are worth evaluating for a job, and which are listed as rejected."""

from collections.abc import Iterator
from functools import lru_cache
from itertools import chain, combinations
from typing import Final

from msgspec import json
from msgspec.structs import replace

from advisor.answer.answer import Rejection
from advisor.base.configuration import packaged_configs
from advisor.frameworks.framework_parts import RecomputeSettings
from advisor.frameworks.megatron import revisions
from advisor.frameworks.megatron.labels import CHEAPEST_FIRST, ORDER
from advisor.frameworks.megatron.plan import has_effect, reads_full_recompute
from advisor.frameworks.megatron.rules.engine import (
    check,
    notes,
    remarks,
    rules_in_force,
    without_effect,
)
from advisor.frameworks.megatron.setting import (
    NONE,
    Granularity,
    Method,
    RecomputeSetting,
    as_megatron,
    full,
    parse_setting,
    selective,
)
from advisor.frameworks.part_types import RulesOverview
from advisor.job.job import Job
from advisor.job.pipeline_split import most_layers_of_chunk, pipeline_stages
from advisor.models.spec import ModelSpec
from advisor.plan.recompute_plan import Setting

_ALL_SUBSETS: Final = 3
"""Labels up to which every set of them is tried."""

_FILE: Final = packaged_configs() / "rules" / "published_sets.json"
_PUBLISHED: Final[list[list[str]]] = json.decode(_FILE.read_bytes())["sets"]
"""Sets that published recipes and guides use."""


def enumerate_settings(job: Job, revision: revisions.Revision) -> tuple[RecomputeSetting, ...]:
    """Those of settings_to_try that are legal."""
    tried = settings_to_try(job, revision)
    return tuple(setting for setting in tried if not check(setting, job, revision))


def settings_to_try(job: Job, revision: revisions.Revision) -> tuple[RecomputeSetting, ...]:
    """Every setting that differs from the others in what it keeps or replays; rules may refuse it.

    No recompute; selective with sets of the modules that act on some layer of the model (see
    label_sets); uniform by every number of checkpoints (the smallest N that gives it: a larger N
    replays more at once and keeps as much); block by every number of layers short of the whole
    chunk, which is uniform 1; full settings also with distribute_saved_activations where tensor
    parallelism leaves the layer input whole. A chunk is num_layers / PP / VPP.
    """
    layout = job.layout
    shardable = layout.tensor_model_parallel_size > 1 and not layout.sequence_parallel
    layers = most_layers_of_chunk(job.model, layout)
    settings = _settings(layers, acting_labels(job.model), shardable, revision.uniform_must_divide)
    if not reads_full_recompute(job.model.hybrid_layer_pattern, revision):
        settings = tuple(s for s in settings if s.granularity is not Granularity.FULL)
    if revision.uniform_must_divide:
        settings = tuple(s for s in settings if _divides_all_chunks(s, job))
    return settings


def _divides_all_chunks(setting: RecomputeSetting, job: Job) -> bool:
    """Whether uniform N divides the layers of every chunk of an uneven pipeline as well."""
    if setting.method is not Method.UNIFORM or job.layout.splits_evenly:
        return True
    chunks = {chunk for held in pipeline_stages(job.model, job.layout) for chunk in held}
    return all(chunk.num_layers % (setting.num_layers or 1) == 0 for chunk in chunks)


@lru_cache(maxsize=256)
def acting_labels(model: ModelSpec) -> tuple[str, ...]:
    """Labels that replay anything in some layer of `model`, whatever the release."""
    return tuple(label for label in ORDER if has_effect(selective(label), model))


def label_sets(labels: tuple[str, ...]) -> tuple[tuple[str, ...], ...]:
    """Sets of `labels` that are worth a try: all of up to three labels; of more, each alone, the
    published ones, and the cheap ones added one after the other.

    >>> label_sets(("core_attn", "mlp"))
    (('core_attn',), ('mlp',), ('core_attn', 'mlp'))
    """
    if len(labels) <= _ALL_SUBSETS:
        return tuple(subsets(labels))
    single = ((label,) for label in labels)
    published = (tuple(names) for names in _PUBLISHED if set(names) <= set(labels))
    cheap = [label for label in CHEAPEST_FIRST if label in labels]
    added = (tuple(sorted(cheap[:count], key=ORDER.index)) for count in range(2, len(cheap) + 1))
    return tuple(dict.fromkeys((*single, *published, *added)))


def subsets(names: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """All except the empty one, small ones first."""
    return chain.from_iterable(combinations(names, size) for size in range(1, len(names) + 1))


@lru_cache(maxsize=1024)
def _settings(
    layers: int, labels: tuple[str, ...], shardable: bool, must_divide: bool
) -> tuple[RecomputeSetting, ...]:
    uniform = [(Method.UNIFORM, number) for number in uniform_numbers(layers, must_divide)]
    block = [(Method.BLOCK, number) for number in range(1, layers)]
    return (
        NONE,
        *(selective(*names) for names in label_sets(labels)),
        *(
            full(method, number, distribute=distribute)
            for distribute in ((False, True) if shardable else (False,))
            for method, number in (*uniform, *block)
        ),
    )


def uniform_numbers(layers: int, must_divide: bool) -> tuple[int, ...]:
    """The smallest recompute_num_layers for every number of checkpoints, ascending.

    must_divide: only divisors of `layers` (megatron-core up to 0.16).

    >>> uniform_numbers(8, must_divide=False)
    (1, 2, 3, 4, 8)
    """
    numbers = {-(-layers // checkpoints) for checkpoints in range(1, layers + 1)}
    return tuple(sorted(n for n in numbers if not must_divide or layers % n == 0))


def settings_in_vain(job: Job) -> tuple[RecomputeSetting, ...]:
    """What a user might try that comes to nothing, among what does not.

    Every recompute module of every release alone, selective with an empty list, uniform numbers
    that do not divide the chunk, and distribute_saved_activations where it is refused.
    """
    layers = most_layers_of_chunk(job.model, job.layout)
    tried = (
        *_settings(layers, acting_labels(job.model), shardable=False, must_divide=False),
        selective(),
        *(selective(module) for module in revisions.known_recompute_modules()),
        full(Method.UNIFORM, 1, distribute=True),
        full(Method.BLOCK, max(1, layers // 2), distribute=True),
        replace(selective("mlp"), distribute_saved_activations=True),
    )
    return tuple(dict.fromkeys(tried))


def rejected_settings(job: Job, revision: revisions.Revision) -> tuple[Rejection, ...]:
    """Why each of settings_in_vain that is no candidate is none, one rejection a setting."""
    tried, candidates = settings_in_vain(job), frozenset(enumerate_settings(job, revision))
    rejected: list[Rejection] = []
    for setting in tried:
        if setting not in candidates:
            reasons = check(setting, job, revision) or without_effect(setting, job, revision)
            rejected += reasons[:1]
    return tuple(rejected)


class MegatronSettings(revisions.MegatronPart, RecomputeSettings):
    """What one of the three takes; its family takes the same settings."""

    none: Setting = NONE

    def parse(self, text: str) -> Setting:
        """A SPEC of Megatron."""
        return parse_setting(text)

    def tried(self, job: Job) -> tuple[Setting, ...]:
        """See settings_to_try."""
        return settings_to_try(job, self.revision(job.config))

    def rejected(self, job: Job) -> tuple[Rejection, ...]:
        """See rejected_settings."""
        return rejected_settings(job, self.revision(job.config))

    def check(self, setting: Setting, job: Job) -> tuple[Rejection, ...]:
        """The rules that refuse it."""
        return check(as_megatron(setting), job, self.revision(job.config))

    def notes(self, setting: Setting, job: Job) -> tuple[str, ...]:
        """The rules that say something of it."""
        return notes(as_megatron(setting), job, self.revision(job.config))

    def remarks(self, job: Job) -> tuple[str, ...]:
        """Options that have no effect together with others, or that no prediction counts."""
        return remarks(job, self.revision(job.config))

    def rules_overview(self, version: str) -> RulesOverview:
        """See `overview`."""
        return overview(revisions.resolve_revision(self.framework, version))


def overview(revision: revisions.Revision) -> RulesOverview:
    """Every rule in force in `revision`, by verdict and authority, and those about the GPU."""
    from advisor.frameworks.megatron.rules.hardware import HARDWARE_RULES

    rules = rules_in_force(revision).items()
    hardware = (("GPU: refused", name, r.says) for name, r in HARDWARE_RULES.items())
    by_verdict = ((f"{r.authority}: {r.verdict}", name, r.says) for name, r in rules)
    facts = tuple(_facts(revision).items())
    return RulesOverview(label=revision.label, facts=facts, rules=(*by_verdict, *hardware))


def _facts(revision: revisions.Revision) -> dict[str, str]:
    kinds: dict[str, str] = {}
    for module in revision.recompute_modules:
        kind = revisions.checkpoint_kind(module).replace("_", "-")
        kinds[kind] = f"{kinds.get(kind, f'{kind}:')} {module}"
    impls = " ".join(revision.cuda_graph_impls) or "enable_cuda_graph, external_cuda_graph"
    captured = " ".join(revision.cuda_graph_modules) or "none"
    return {
        "recompute modules": "; ".join(kinds.values())
        or "none: selective recomputes core attention",
        "offload modules": " ".join(revision.offload_modules) or "none",
        "CUDA graphs": f"{impls}; {revision.cuda_graph_field}: {captured}",
        "replacements": "; ".join(revision.promotions),
    }
