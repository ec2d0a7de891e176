"""From Megatron's recompute settings to a neutral RecomputePlan of one model chunk.

Source: megatron-core 0.16.1 transformer/transformer_block.py (_checkpointed_forward),
run there through tests/oracles; what single labels replay stands in labels.py.
"""

from collections.abc import Iterator
from functools import lru_cache
from itertools import groupby

from msgspec.structs import replace

from advisor.frameworks.megatron.labels import LABELS
from advisor.frameworks.megatron.offload import EVERYTHING, offloaded_by_layer
from advisor.frameworks.megatron.revisions import Revision
from advisor.frameworks.megatron.setting import Granularity, Method, RecomputeSetting
from advisor.layers.operators import Module
from advisor.layers.shape import RankShape
from advisor.models.layer_kind import DENSE, LayerKind, Role
from advisor.models.options import FlexBackend
from advisor.models.spec import ModelSpec
from advisor.plan.recompute_plan import RecomputePlan, ReplayRun, Segment, merged


@lru_cache(maxsize=4096)
def chunk_plan(
    setting: RecomputeSetting,
    model: ModelSpec,
    layers: tuple[LayerKind, ...],
    sequence_parallel: bool,
    copies_outputs: bool = True,
) -> RecomputePlan:
    """Segments of a chunk of `layers` under `setting`; copies_outputs: see copies_outputs_of.

    uniform N checkpoints every N layers (the last checkpoint may hold fewer); block N checkpoints
    the first min(N, layers) layers of THIS chunk one by one. Selective applies to every layer.
    Layers of multi-token prediction are counted in neither: uniform 1 replays each, block none.
    """
    if setting.granularity is Granularity.FULL:
        shards = setting.distribute_saved_activations and not sequence_parallel
        decoder = tuple(kind for kind in layers if kind.role is Role.LAYER)
        others = (_whole(setting, kind) for kind in layers[len(decoder) :])
        return RecomputePlan(merged((*_full_segments(setting, decoder, shards), *others)))
    return RecomputePlan(tuple(_layer_segments(setting, model, layers, copies_outputs)))


def of_release(shape: RankShape, revision: Revision, *, overlaps_exchange: bool) -> RankShape:
    """`shape` where a release has it otherwise: from 0.17 on permute sorts, process_mtp_loss is a
    function of its own, and the schedule beside another microbatch lets go of the 16-bit tokens
    that HybridEP has sent (models/gpt/fine_grained_callables.py, should_free_input); from 0.18 on
    topk_routing_with_score_function stays in fp32 (transformer/moe/moe_utils.py,
    transformer/multi_token_prediction.py)."""
    return replace(
        shape,
        sorts_routing_map=revision.at_least(0, 17),
        frees_last_depth=revision.at_least(0, 17),
        holds_dispatched=overlaps_exchange
        and not revision.at_least(0, 17)
        and shape.model.moe_flex_dispatcher_backend is FlexBackend.HYBRIDEP,
        scores_in_fp32=revision.at_least(0, 18),
    )


def copies_outputs_of(revision: Revision) -> bool:
    """Whether a checkpoint that drops its output copies the replayed one into the old storage; from
    0.17 on the two share one (tensor_parallel/random.py, share_storage)."""
    return not revision.at_least(0, 17)


def _whole(setting: RecomputeSetting, kind: LayerKind) -> Segment:
    """What stands behind the decoder under full recompute (multi_token_prediction.py): a layer that
    predicts a further token is one checkpoint, around all but its embedding."""
    predicts = kind.role is Role.MULTI_TOKEN_PREDICTION
    if not predicts or setting.method is Method.BLOCK:
        return Segment((kind,))
    return Segment((kind,), runs=(ReplayRun(EVERYTHING - {Module.EMBEDDING}),))


def _layer_segments(
    setting: RecomputeSetting,
    model: ModelSpec,
    layers: tuple[LayerKind, ...],
    copies_outputs: bool,
) -> Iterator[Segment]:
    """Segments of like layers in a row, with their runs and what they offload."""
    whole = setting.cpu_offloading_num_layers
    sent = (EVERYTHING,) * min(whole, len(layers))
    sent += offloaded_by_layer(setting, model, layers)[whole:]
    for (kind, offloaded), alike in groupby(zip(layers, sent, strict=True)):
        runs = tuple(
            replace(run, copies_output=copies_outputs)
            for run in selective_runs(setting, model, kind)
        )
        copies = sum(1 for _ in alike)
        yield Segment((kind,), runs=runs, offloaded=offloaded, copies=copies)


def _full_segments(
    setting: RecomputeSetting, layers: tuple[LayerKind, ...], shards_input: bool
) -> Iterator[Segment]:
    """Segments one by one."""
    wanted = setting.num_layers or 1
    replayed, size = len(layers), wanted
    if setting.method is Method.BLOCK:
        replayed, size = min(wanted, len(layers)), 1
    for start in range(0, replayed, size):
        yield Segment(layers[start : start + size], whole=True, shards_input=shards_input)
    for kind in layers[replayed:]:
        yield Segment((kind,))


@lru_cache(maxsize=1024)
def selective_runs(
    setting: RecomputeSetting, model: ModelSpec, kind: LayerKind = DENSE
) -> tuple[ReplayRun, ...]:
    """Runs of one layer; labels that act on nothing in it give none.

    What lies inside another label's modules is replayed within its replay, not counted apart.
    """
    if kind.role is Role.FINAL_LAYERNORM:
        return ()
    acting = {
        label: runs
        for label in LABELS
        if label.name in setting.effective_modules and (runs := tuple(label.replays(model, kind)))
    }
    names = {label.name for label in acting}
    return tuple(run for label, runs in acting.items() if label.inside not in names for run in runs)


def reads_full_recompute(hybrid_layer_pattern: str | None, revision: Revision) -> bool:
    """Whether full recompute reaches the layers: MambaStack never asks for it, HybridStack, which
    took its place in 0.18, does."""
    return hybrid_layer_pattern is None or revision.at_least(0, 18)


def has_effect(setting: RecomputeSetting, model: ModelSpec) -> bool:
    """Whether `setting` replays anything in this model."""
    kinds = dict.fromkeys(model.layer_kinds)
    return setting.granularity is Granularity.FULL or any(
        selective_runs(setting, model, kind) for kind in kinds
    )
