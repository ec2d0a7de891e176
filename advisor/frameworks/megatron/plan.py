"""From Megatron's recompute settings to a neutral RecomputePlan of one model chunk.

Source: megatron-core 0.16.1 transformer/transformer_block.py (_checkpointed_forward),
transformer_layer.py, attention.py; run there through tests/oracles.
"""

from collections.abc import Iterator
from functools import lru_cache

from advisor.frameworks.megatron.offload import EVERYTHING, offloaded_modules
from advisor.frameworks.megatron.setting import Granularity, Method, RecomputeSetting
from advisor.layers.megatron.moe.layer import MOE_MODULES
from advisor.layers.megatron.moe.shared import SHARED_MODULES
from advisor.layers.operators import Module
from advisor.models.layer_kind import DENSE, SOFTMAX_MIXERS, FeedForward, LayerKind, Mixer, Role
from advisor.models.spec import ModelSpec, TransformerImpl
from advisor.plan.recompute_plan import RecomputePlan, ReplayRun, Segment, merged

_MLP_MODULES = frozenset({Module.LINEAR_FC1, Module.ACTIVATION, Module.LINEAR_FC2})
_ATTENTION_MASK_TYPE_BYTES = 4  # one int32 tensor among the checkpoint's arguments (attention.py)


@lru_cache(maxsize=4096)
def chunk_plan(
    setting: RecomputeSetting,
    model: ModelSpec,
    layers: tuple[LayerKind, ...],
    sequence_parallel: bool,
) -> RecomputePlan:
    """Segments of a chunk of `layers` under `setting`.

    uniform N checkpoints every N layers (the last checkpoint may hold fewer); block N checkpoints
    the first min(N, layers) layers of THIS chunk one by one. Selective applies to every layer.
    Layers of multi-token prediction are counted in neither: uniform 1 replays each, block none.
    """
    if setting.granularity is Granularity.FULL:
        shards = setting.distribute_saved_activations and not sequence_parallel
        decoder = tuple(kind for kind in layers if kind.role is Role.LAYER)
        others = (_whole(setting, kind) for kind in layers[len(decoder) :])
        return RecomputePlan(merged((*_full_segments(setting, decoder, shards), *others)))
    return RecomputePlan(merged(_layer_segments(setting, model, layers)))


def _whole(setting: RecomputeSetting, kind: LayerKind) -> Segment:
    """What stands behind the decoder under full recompute (multi_token_prediction.py): a layer that
    predicts a further token is one checkpoint, around all but its embedding."""
    predicts = kind.role is Role.MULTI_TOKEN_PREDICTION
    if not predicts or setting.method is Method.BLOCK:
        return Segment((kind,))
    return Segment((kind,), runs=(ReplayRun(EVERYTHING - {Module.EMBEDDING}),))


def _layer_segments(
    setting: RecomputeSetting, model: ModelSpec, layers: tuple[LayerKind, ...]
) -> Iterator[Segment]:
    """One segment a layer, with its runs and what it offloads."""
    for number, kind in enumerate(layers):
        offloaded = offloaded_modules(setting, model, kind)
        if number < setting.cpu_offloading_num_layers:
            offloaded = EVERYTHING
        yield Segment((kind,), runs=selective_runs(setting, model, kind), offloaded=offloaded)


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

    core_attn, mlp, moe and shared_experts are plain checkpoints; layernorm, mla_up_proj, moe_act
    and gdn_norm_out (0.19.0 ssm/gated_delta_net/gdn.py) discard their outputs. Mamba has no label.
    Under Transformer Engine the norms of dense layers are fused into the linear layers, so that
    layernorm finds but the input norm of multi-latent attention and the norm before experts, and a
    checkpoint around the MLP or the up-projections replays their norms too.
    """
    if kind.role is Role.FINAL_LAYERNORM:
        return ()
    runs: list[ReplayRun] = []
    modules = setting.effective_modules
    has_scores = kind.mixer in SOFTMAX_MIXERS
    if "core_attn" in modules and has_scores:
        runs.append(
            ReplayRun(
                frozenset({Module.CORE_ATTENTION}), extra_kept_bytes=_ATTENTION_MASK_TYPE_BYTES
            )
        )
    local = model.transformer_impl is TransformerImpl.LOCAL
    has_experts = kind.feed_forward is FeedForward.MOE
    if has_experts:
        runs += _expert_runs(modules, model)
    elif "mlp" in modules and kind.feed_forward is FeedForward.DENSE:
        norms = frozenset() if local else frozenset({Module.PRE_MLP_LAYERNORM})
        if model.norm_placement.behind:
            norms |= {Module.POST_MLP_LAYERNORM}
        runs.append(ReplayRun(_MLP_MODULES | norms))
    if "gdn_norm_out" in modules and kind.mixer is Mixer.GATED_DELTA_NET:
        norm = frozenset({Module.GDN_NORM_OUT})
        runs.append(_discarding(norm, replayed_before=Module.GDN_OUT_PROJ))
    latent = model.multi_latent_attention and has_scores
    if "mla_up_proj" in modules and latent:
        fused_norm = frozenset() if local else frozenset({Module.QK_LAYERNORM})
        up_projections = fused_norm | {Module.QKV_UP_PROJ}
        runs.append(_discarding(up_projections, replayed_before=Module.CORE_ATTENTION))
    if "layernorm" in modules and (local or latent):
        norm = frozenset({Module.INPUT_LAYERNORM})
        behind = model.norm_placement.behind
        last = Module.POST_ATTENTION_LAYERNORM if behind else Module.LINEAR_PROJ
        runs.append(_discarding(norm, replayed_before=last))
    if "layernorm" in modules and (local or has_experts):
        norm = frozenset({Module.PRE_MLP_LAYERNORM})
        last = Module.COMBINE if has_experts else Module.LINEAR_FC2
        if model.norm_placement.behind:
            last = Module.POST_MLP_LAYERNORM
        runs.append(_discarding(norm, replayed_before=last))
    return tuple(runs)


def _expert_runs(modules: tuple[str, ...], model: ModelSpec) -> Iterator[ReplayRun]:
    """Runs inside a MoE layer (moe_layer.py, experts.py). A checkpoint around the whole of it holds
    the others' modules too; they are replayed within its replay, which is not counted apart."""
    if "moe" in modules:
        yield ReplayRun(MOE_MODULES)
        return
    if "shared_experts" in modules and model.moe_shared_expert_intermediate_size:
        yield ReplayRun(SHARED_MODULES)
    if "moe_act" in modules and model.moe_grouped_gemm:
        activation = frozenset({Module.EXPERT_ACTIVATION})
        yield _discarding(activation, replayed_before=Module.EXPERT_FC2)


def _discarding(modules: frozenset[Module], *, replayed_before: Module) -> ReplayRun:
    """Modules whose output is dropped; a hook on a later output writes it again."""
    return ReplayRun(modules, discards_output=True, replayed_before=replayed_before)


def has_effect(setting: RecomputeSetting, model: ModelSpec) -> bool:
    """Whether `setting` replays anything in this model."""
    kinds = dict.fromkeys(model.layer_kinds)
    return setting.granularity is Granularity.FULL or any(
        selective_runs(setting, model, kind) for kind in kinds
    )
