"""Megatron's recompute modules: what each label replays in a layer, and what it is tried with.

A new label is a row here, its first release in revisions.py, and a row of what stands against it in
rules/recompute_fields.py; settings, plans, candidates and pages follow.

Source: megatron-core 0.16.1 transformer_layer.py, attention.py, moe_layer.py, experts.py and 0.19.0
ssm/gated_delta_net/gdn.py; run there through tests/oracles. Under Transformer Engine the norms of
dense layers are fused into the linear layers: a checkpoint around those replays their norms too.
"""

from collections.abc import Callable, Iterator
from typing import Final

from msgspec import Struct

from advisor.layers.operators import MOE_MODULES, SHARED_MODULES, Module
from advisor.models.layer_kind import SOFTMAX_MIXERS, FeedForward, LayerKind, Mixer
from advisor.models.options import TransformerImpl
from advisor.models.spec import ModelSpec
from advisor.plan.recompute_plan import ReplayRun

Replays = Callable[[ModelSpec, LayerKind], Iterator[ReplayRun]]

_MLP_MODULES: Final = frozenset({Module.LINEAR_FC1, Module.ACTIVATION, Module.LINEAR_FC2})
_ATTENTION_MASK_TYPE_BYTES: Final = 4  # one int32 tensor among the checkpoint's arguments


class Label(Struct, frozen=True, kw_only=True):
    """One of recompute_modules.

    replays: its runs in a layer, none where it acts on nothing. inside: the label around it, whose
    replay is not counted apart from its own. cost: rank by what a byte that it frees costs, norms
    and activations first, GEMMs and all-to-alls last; None for what is not added to others.
    """

    name: str
    replays: Replays
    inside: str = ""
    cost: int | None = None


def _discarding(module: Module, *more: Module, before: Module) -> ReplayRun:
    """Modules whose output is dropped; a hook on a later output writes it again."""
    return ReplayRun(frozenset({module, *more}), discards_output=True, replayed_before=before)


def _is_local(model: ModelSpec) -> bool:
    return model.transformer_impl is TransformerImpl.LOCAL


def _is_latent(model: ModelSpec, kind: LayerKind) -> bool:
    return model.multi_latent_attention and kind.mixer in SOFTMAX_MIXERS


def _has_experts(kind: LayerKind) -> bool:
    return kind.feed_forward is FeedForward.MOE


def _core_attention(model: ModelSpec, kind: LayerKind) -> Iterator[ReplayRun]:
    if kind.mixer in SOFTMAX_MIXERS:
        yield ReplayRun(
            frozenset({Module.CORE_ATTENTION}), extra_kept_bytes=_ATTENTION_MASK_TYPE_BYTES
        )


def _dense_mlp(model: ModelSpec, kind: LayerKind) -> Iterator[ReplayRun]:
    if kind.feed_forward is FeedForward.DENSE:
        norms = frozenset() if _is_local(model) else frozenset({Module.PRE_MLP_LAYERNORM})
        if model.norm_placement.after:
            norms |= {Module.POST_MLP_LAYERNORM}
        yield ReplayRun(_MLP_MODULES | norms)


def _norms(model: ModelSpec, kind: LayerKind) -> Iterator[ReplayRun]:
    """Under Transformer Engine the input norm of latent attention and the norm before experts."""
    after, local = model.norm_placement.after, _is_local(model)
    if local or _is_latent(model, kind):
        last = Module.POST_ATTENTION_LAYERNORM if after else Module.LINEAR_PROJ
        yield _discarding(Module.INPUT_LAYERNORM, before=last)
    if local or _has_experts(kind):
        last = Module.COMBINE if _has_experts(kind) else Module.LINEAR_FC2
        last = Module.POST_MLP_LAYERNORM if after else last
        yield _discarding(Module.PRE_MLP_LAYERNORM, before=last)


def _up_projections(model: ModelSpec, kind: LayerKind) -> Iterator[ReplayRun]:
    if _is_latent(model, kind):
        fused = () if _is_local(model) or model.has_sparse_attention else (Module.QK_LAYERNORM,)
        yield _discarding(Module.QKV_UP_PROJ, *fused, before=Module.CORE_ATTENTION)


def _expert_activation(model: ModelSpec, kind: LayerKind) -> Iterator[ReplayRun]:
    """In a grouped MLP, Transformer Engine's or the older one; else the local spec runs experts one
    by one, and takes the label for nothing."""
    grouped = model.moe_grouped_gemm and (not _is_local(model) or model.moe_use_legacy_grouped_gemm)
    if _has_experts(kind) and grouped:
        yield _discarding(Module.EXPERT_ACTIVATION, before=Module.EXPERT_FC2)


def _shared_experts(model: ModelSpec, kind: LayerKind) -> Iterator[ReplayRun]:
    if _has_experts(kind) and model.moe_shared_expert_intermediate_size:
        yield ReplayRun(SHARED_MODULES)


def _experts(model: ModelSpec, kind: LayerKind) -> Iterator[ReplayRun]:
    if _has_experts(kind):
        yield ReplayRun(MOE_MODULES)


def _gated_delta_norm(model: ModelSpec, kind: LayerKind) -> Iterator[ReplayRun]:
    if kind.mixer is Mixer.GATED_DELTA_NET:
        yield _discarding(Module.GDN_NORM_OUT, before=Module.GDN_OUT_PROJ)


def _not_modelled(model: ModelSpec, kind: LayerKind) -> Iterator[ReplayRun]:
    """No layer here has what the label replays."""
    yield from ()


LABELS: Final = (
    Label(name="core_attn", replays=_core_attention),
    Label(name="mlp", replays=_dense_mlp, cost=6),
    Label(name="layernorm", replays=_norms, cost=1),
    Label(name="mla_up_proj", replays=_up_projections, cost=3),
    Label(name="moe_act", replays=_expert_activation, inside="moe", cost=2),
    Label(name="shared_experts", replays=_shared_experts, inside="moe", cost=5),
    Label(name="moe", replays=_experts),
    Label(name="gdn_norm_out", replays=_gated_delta_norm, cost=4),
    Label(name="gdp_in_proj", replays=_not_modelled),
    Label(name="gdp_qkv", replays=_not_modelled),
    Label(name="mhc", replays=_not_modelled),
)
"""In the order in which settings list them."""

ORDER: Final = tuple(label.name for label in LABELS)
CHEAPEST_FIRST: Final = tuple(
    label.name for label in sorted(LABELS, key=lambda label: label.cost or 0) if label.cost
)


def inside(name: str) -> tuple[str, ...]:
    """Labels whose modules lie inside those of label `name`."""
    return tuple(label.name for label in LABELS if label.inside == name)
