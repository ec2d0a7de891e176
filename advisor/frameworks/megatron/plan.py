"""From Megatron's recompute settings to a neutral RecomputePlan of one model chunk.

Source: megatron-core 0.16.1 transformer/transformer_block.py (_checkpointed_forward),
run there through tests/oracles; what single labels replay stands in labels.py.

Offload, read and not run: megatron-core 0.16.1 transformer/attention.py, transformer_layer.py,
moe/experts.py, pipeline_parallel/fine_grained_activation_offload.py (0.19.2 for the fraction);
transformer_block.py for cpu_offloading, which offloads everything that the first layers of a chunk
save.
"""

from collections.abc import Iterator
from functools import lru_cache
from itertools import groupby

from msgspec.structs import replace

from advisor.base.sharing import first_equal
from advisor.frameworks.megatron.labels import LABELS
from advisor.frameworks.megatron.revisions import Revision
from advisor.frameworks.megatron.setting import Granularity, Method, RecomputeSetting
from advisor.layers.expert_tokens import runs_grouped
from advisor.layers.operators import Module
from advisor.layers.shape import RankShape
from advisor.models.layer_kind import DENSE, SOFTMAX_MIXERS, FeedForward, LayerKind, Role
from advisor.models.options import FlexBackend, TransformerImpl
from advisor.models.spec import ModelSpec
from advisor.plan.recompute_plan import EVERYTHING, RecomputePlan, ReplayRun, Segment, merged

Layers = tuple[LayerKind, ...]
"""Those of a model chunk, or of all chunks of a stage, in their order."""

REGIONS = {
    "attn_norm": Module.INPUT_LAYERNORM,
    "qkv_linear": Module.LINEAR_QKV,
    "core_attn": Module.CORE_ATTENTION,
    "attn_proj": Module.LINEAR_PROJ,
    "mlp_norm": Module.PRE_MLP_LAYERNORM,
    "expert_fc1": Module.EXPERT_FC1,
    "moe_act": Module.EXPERT_ACTIVATION,
}
"""What offload_modules names in a layer, in the order of its forward."""

EXPERT_REGIONS = frozenset({"expert_fc1", "moe_act"})
_OF_ATTENTION = frozenset({"attn_norm", "qkv_linear", "core_attn", "attn_proj"})
_LATENT_QKV = frozenset({Module.QKV_DOWN_PROJ, Module.QK_LAYERNORM, Module.QKV_UP_PROJ})


@lru_cache(maxsize=1024)
def offloaded_modules(
    setting: RecomputeSetting, model: ModelSpec, kind: LayerKind
) -> frozenset[Module]:
    """Modules of a layer whose saved tensors leave the device under fine-grained offloading.

    Transformer Engine fuses the norms of dense layers into the linear layers that follow: there is
    no norm of its own to offload, and qkv_linear takes the input norm along. Multi-latent attention
    has an input norm of its own, and its region qkv_linear ends with the up-projections. The
    regions of experts are TEGroupedMLP's; left out: that expert_fc1 saves 16 bits under FP8, too.
    """
    if kind.role is Role.FINAL_LAYERNORM:
        return frozenset()
    grouped = kind.feed_forward is FeedForward.MOE and runs_grouped(model)
    regions = {
        name: frozenset({REGIONS[name]}) for name in setting.offload_modules if name in REGIONS
    }
    if model.multi_latent_attention and "qkv_linear" in regions:
        regions["qkv_linear"] = _LATENT_QKV
    if model.transformer_impl is TransformerImpl.TRANSFORMER_ENGINE:
        if not model.multi_latent_attention:
            regions.pop("attn_norm", None)
        if kind.feed_forward is FeedForward.DENSE:
            regions.pop("mlp_norm", None)
        if "qkv_linear" in regions and not model.multi_latent_attention:
            regions["qkv_linear"] |= {REGIONS["attn_norm"]}
    if not grouped or model.transformer_impl is not TransformerImpl.TRANSFORMER_ENGINE:
        regions = {name: regions[name] for name in regions if name not in EXPERT_REGIONS}
    if kind.mixer not in SOFTMAX_MIXERS:  # the regions of attention are SelfAttention's
        regions = {name: regions[name] for name in regions if name not in _OF_ATTENTION}
    if model.has_sparse_attention:  # AbsorbedMLASelfAttention offloads nothing
        regions = {n: regions[n] for n in regions if n == "attn_norm" or n not in _OF_ATTENTION}
    return frozenset().union(*regions.values())


@lru_cache(maxsize=4096)
def offloaded_by_layer(
    setting: RecomputeSetting, model: ModelSpec, layers: Layers, turns: bool = False
) -> tuple[frozenset[Module], ...]:
    """Of each layer of a chunk, the modules whose saved tensors leave the device.

    Every module of a layer is a group of its own. Where the chunk `turns`, the backward of a
    microbatch following its forward at once, each module's last group stays, so that nobody waits
    for it (should_bulk_offload). Of a fraction below 1 the last groups of the others stay, too
    (post_warmup_callback). Left out: other chunks' last groups of a step's first microbatch.
    """
    if not setting.offload_modules:
        return (frozenset(),) * len(layers)
    groups = [list(_groups(setting, model, kind)) for kind in layers]
    for name in setting.offload_modules if turns else ():
        if its := [names for names in groups if name in names]:
            its[-1].remove(name)
    number = sum(map(len, groups))
    left, found = number - int(number * (1 - setting.offload_fraction)), []
    for kind, names in zip(layers, groups, strict=True):
        chosen = replace(setting, offload_modules=tuple(names[: max(0, left)]))
        found.append(offloaded_modules(chosen, model, kind))
        left -= len(names)
    return tuple(found)


@lru_cache(maxsize=1024)
def _groups(setting: RecomputeSetting, model: ModelSpec, kind: LayerKind) -> tuple[str, ...]:
    """What of offload_modules sends anything in a layer, in the order of its forward."""
    alone = {name: replace(setting, offload_modules=(name,)) for name in REGIONS}
    named = (name for name in REGIONS if name in setting.offload_modules)
    return tuple(name for name in named if offloaded_modules(alone[name], model, kind))


@lru_cache(maxsize=4096)
def chunk_plan(
    setting: RecomputeSetting,
    model: ModelSpec,
    layers: Layers,
    sequence_parallel: bool,
    copies_outputs: bool = True,
    turns: bool = False,
) -> RecomputePlan:
    """Segments of a chunk of `layers` under `setting`; copies_outputs: see copies_outputs_of,
    turns: offloaded_by_layer.

    uniform N checkpoints every N layers (the last checkpoint may hold fewer); block N checkpoints
    the first min(N, layers) layers of THIS chunk one by one. Selective applies to every layer.
    Layers of multi-token prediction are counted in neither: uniform 1 replays each, block none.
    """
    if setting.granularity is Granularity.FULL:
        shards = setting.distribute_saved_activations and not sequence_parallel
        decoder = tuple(kind for kind in layers if kind.role is Role.LAYER)
        others = (_whole(setting, kind) for kind in layers[len(decoder) :])
        return RecomputePlan(merged((*_full_segments(setting, decoder, shards), *others)))
    sent = offloaded_by_layer(setting, model, layers, turns)
    return RecomputePlan(tuple(_layer_segments(setting, model, layers, copies_outputs, sent)))


def of_release(shape: RankShape, revision: Revision, *, overlaps_exchange: bool) -> RankShape:
    """`shape` where a release has it otherwise: from 0.12 on experts get probabilities
    (moe/experts.py of 0.11.0 and 0.12.3); from 0.15 on gated activations have an offset, which is
    added to a copy (transformer/mlp.py, moe/experts.py of 0.14.0 and 0.15.3); from 0.17 on permute
    sorts, process_mtp_loss is a function of its own, and the schedule during another microbatch
    lets go of the 16-bit tokens that HybridEP has sent (models/gpt/fine_grained_callables.py,
    should_free_input); from 0.18 on topk_routing_with_score_function stays in fp32
    (transformer/moe/moe_utils.py, transformer/multi_token_prediction.py)."""
    return replace(
        shape,
        weighs_outputs=not revision.at_least(0, 12),
        copies_glu_value=revision.at_least(0, 15),
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
    """What follows the decoder under full recompute (multi_token_prediction.py): a layer that
    predicts a further token is one checkpoint, around all but its embedding."""
    if kind.role is not Role.MULTI_TOKEN_PREDICTION or setting.method is Method.BLOCK:
        return Segment((kind,))
    return Segment((kind,), runs=(ReplayRun(EVERYTHING - {Module.EMBEDDING}),))


def _layer_segments(
    setting: RecomputeSetting,
    model: ModelSpec,
    layers: Layers,
    copies_outputs: bool,
    sent: tuple[frozenset[Module], ...],
) -> Iterator[Segment]:
    """Segments of like layers in a row, with their runs and what they offload."""
    whole = setting.cpu_offloading_num_layers
    sent = ((EVERYTHING,) * len(layers))[:whole] + sent[whole:]
    runs = {
        kind: tuple(
            replace(run, copies_output=copies_outputs)
            for run in selective_runs(setting, model, kind)
        )
        for kind in dict.fromkeys(layers)
    }
    nothing = frozenset[Module]()
    fetched = tuple(
        nothing if now or last == EVERYTHING else last
        for last, now in zip((nothing, *sent), sent, strict=False)
    )
    for (kind, away, back), alike in groupby(zip(layers, sent, fetched, strict=True)):
        one = Segment((kind,), runs=runs[kind], offloaded=away, fetched=back)
        yield first_equal(replace(one, copies=sum(1 for _ in alike)))


def _full_segments(
    setting: RecomputeSetting, layers: Layers, shards_input: bool
) -> Iterator[Segment]:
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
    return setting.granularity is Granularity.FULL or any(
        selective_runs(setting, model, kind) for kind in dict.fromkeys(model.layer_kinds)
    )
