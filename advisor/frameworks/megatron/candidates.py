"""Which recompute settings are worth evaluating for a job, and which are listed as rejected."""

from collections.abc import Iterator
from functools import lru_cache
from itertools import combinations

from advisor.answer import Rejection
from advisor.frameworks.megatron.revisions import Revision, known_recompute_modules
from advisor.frameworks.megatron.rules import check, without_effect
from advisor.frameworks.megatron.setting import (
    NONE,
    Granularity,
    Method,
    RecomputeSetting,
    full,
    selective,
)  # fmt: skip
from advisor.job import Job
from advisor.models.spec import TransformerImpl

_ACTING = ("core_attn", "mlp")


def enumerate_settings(job: Job, revision: Revision) -> tuple[RecomputeSetting, ...]:
    """Every legal setting that differs from the others in what it keeps or replays.

    No recompute; selective with every set of modules that act on a dense layer; uniform by every
    number of checkpoints (the smallest N that gives it: a larger N replays more at once and keeps
    as much); block by every number of layers short of the whole chunk, which is uniform 1; full
    settings also with distribute_saved_activations where tensor parallelism leaves the layer input
    whole. A chunk is num_layers / PP / VPP.
    """
    layout = job.layout
    shardable = layout.tensor_model_parallel_size > 1 and not layout.sequence_parallel
    layers = layout.layers_per_chunk(job.model.num_layers)
    local = job.model.transformer_impl is TransformerImpl.LOCAL
    settings = _settings(layers, local, shardable, revision.uniform_must_divide)
    return tuple(setting for setting in settings if not check(setting, job, revision))


@lru_cache(maxsize=1024)
def _settings(
    layers: int, local: bool, shardable: bool, must_divide: bool
) -> tuple[RecomputeSetting, ...]:
    labels = (*_ACTING, "layernorm") if local else _ACTING
    subsets = (
        selective(*subset)
        for size in range(1, len(labels) + 1)
        for subset in combinations(labels, size)
    )
    whole = tuple(_full_settings(layers, must_divide, distribute=False))
    shared = tuple(_full_settings(layers, must_divide, distribute=True)) if shardable else ()
    return (NONE, *subsets, *whole, *shared)


def _full_settings(
    layers: int, must_divide: bool, *, distribute: bool
) -> Iterator[RecomputeSetting]:
    for number in uniform_numbers(layers, must_divide):
        yield full(Method.UNIFORM, number, distribute=distribute)
    for number in range(1, layers):
        yield full(Method.BLOCK, number, distribute=distribute)


def uniform_numbers(layers: int, must_divide: bool) -> tuple[int, ...]:
    """The smallest recompute_num_layers for every number of checkpoints, ascending.

    must_divide: only divisors of `layers` (megatron-core up to 0.16).

    >>> uniform_numbers(8, must_divide=False)
    (1, 2, 3, 4, 8)
    """
    numbers = {-(-layers // checkpoints) for checkpoints in range(1, layers + 1)}
    return tuple(sorted(n for n in numbers if not must_divide or layers % n == 0))


def all_settings(job: Job, revision: Revision) -> tuple[RecomputeSetting, ...]:
    """The settings of enumerate_settings and those a user might try that come to nothing.

    Every recompute module of every release alone, selective with an empty list, uniform numbers
    that do not divide the chunk, and distribute_saved_activations where it is refused.
    """
    layers = job.layout.layers_per_chunk(job.model.num_layers)
    local = job.model.transformer_impl is TransformerImpl.LOCAL
    regular = _settings(layers, local, shardable=False, must_divide=False)
    tried = (
        *regular,
        selective(),
        *(selective(module) for module in known_recompute_modules()),
        full(Method.UNIFORM, 1, distribute=True),
        full(Method.BLOCK, max(1, layers // 2), distribute=True),
        RecomputeSetting(
            granularity=Granularity.SELECTIVE, modules=("mlp",), distribute_saved_activations=True
        ),
    )
    return tuple(dict.fromkeys((*enumerate_settings(job, revision), *tried)))


def rejected_settings(job: Job, revision: Revision) -> tuple[Rejection, ...]:
    """Why each of all_settings that is no candidate is none, one rejection a setting."""
    candidates = frozenset(enumerate_settings(job, revision))
    rejected: list[Rejection] = []
    for setting in all_settings(job, revision):
        if setting not in candidates:
            reasons = check(setting, job, revision) or without_effect(setting, job, revision)
            rejected += reasons[:1]
    return tuple(rejected)
