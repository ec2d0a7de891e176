"""What single recompute labels really do in a model: promotions, labels that do or buy nothing."""

from typing import Final

from advisor.frameworks.megatron.raw import RawSettings, graphs_of
from advisor.frameworks.megatron.revisions import Revision
from advisor.frameworks.megatron.rules.finding import Authority, Problem, Rule, Verdict, names

_MOE_LABELS: Final = ("moe_act", "moe", "shared_experts")


def promoted_core_attn(raw: RawSettings, revision: Revision) -> Problem | None:
    """selective with recompute_modules unset means core_attn."""
    listed = raw.recompute_modules is not None or not revision.recompute_modules
    if not raw.selective or listed:
        return None
    return Problem(
        "recompute_modules is unset, which Megatron promotes to core_attn",
        "name the modules that you mean",
    )


def promoted_moe_layer(raw: RawSettings, revision: Revision) -> Problem | None:
    """moe_layer_recompute means selective of moe and of the modules that stand there already."""
    if not raw.moe_layer_recompute or raw.full or not revision.at_least(0, 12):
        return None
    return Problem(
        f"moe_layer_recompute is promoted to selective recompute of "
        f"{names(raw.recomputed_modules)}",
        "write recompute_granularity selective and recompute_modules moe",
    )


def core_attn_under_flash(raw: RawSettings, revision: Revision) -> Problem | None:
    """core_attn frees next to nothing where flash or fused attention keeps no scores."""
    if not raw.selective or "core_attn" not in raw.effective_modules:
        return None
    backend = raw.attention_backend
    local_scores = raw.transformer_impl == "local" and backend == "auto"
    if backend in ("unfused", "local") or local_scores:
        return None
    return Problem(
        f"core_attn with attention_backend = {backend} frees only the softmax statistics and "
        "costs a second forward of attention",
        "drop core_attn",
    )


def layernorm_on_te(raw: RawSettings, revision: Revision) -> Problem | None:
    """layernorm does nothing on Transformer Engine's dense layer, whose norms are fused."""
    dense = raw.num_moe_experts is None and not raw.multi_latent_attention
    if not raw.selective or "layernorm" not in raw.effective_modules or not dense:
        return None
    if raw.transformer_impl != "transformer_engine":
        return None
    return Problem(
        "layernorm does nothing with transformer_impl = transformer_engine: both norms of a dense "
        "layer are fused into the linear layers that follow",
        "drop layernorm",
    )


def moe_labels_on_dense(raw: RawSettings, revision: Revision) -> Problem | None:
    """moe, shared_experts and moe_act do nothing in a dense model."""
    if raw.num_moe_experts is not None:
        return None
    labels = [m for m in _MOE_LABELS if m in raw.recomputed_modules]
    if not labels:
        return None
    verb = "does" if len(labels) == 1 else "do"
    return Problem(f"{names(labels)} {verb} nothing in a dense model", f"drop {names(labels)}")


def mlp_without_dense_layers(raw: RawSettings, revision: Revision) -> Problem | None:
    """mlp does nothing where every layer is a mixture of experts."""
    if "mlp" not in raw.recomputed_modules or raw.has_dense_mlp:
        return None
    return Problem(
        "mlp does nothing: every layer is a mixture of experts, and mlp means the dense MLP",
        "drop mlp, or use moe, moe_act or shared_experts",
    )


def shared_experts_without_any(raw: RawSettings, revision: Revision) -> Problem | None:
    """shared_experts does nothing in a model without shared experts."""
    wanted = "shared_experts" in raw.recomputed_modules and raw.has_experts
    if not wanted or raw.moe_shared_expert_intermediate_size is not None:
        return None
    return Problem("shared_experts does nothing: the model has none", "drop shared_experts")


def moe_act_on_local(raw: RawSettings, revision: Revision) -> Problem | None:
    """moe_act acts in Transformer Engine's grouped experts only."""
    wanted = "moe_act" in raw.recomputed_modules and raw.has_experts
    if not wanted or raw.transformer_impl != "local":
        return None
    return Problem(
        "moe_act does nothing with transformer_impl = local, whose experts run one by one",
        "drop moe_act",
    )


def parts_of_recomputed_moe(raw: RawSettings, revision: Revision) -> Problem | None:
    """What lies inside a recomputed MoE layer is replayed with it, and again by its own label."""
    inside = [m for m in ("moe_act", "shared_experts") if m in raw.recomputed_modules]
    if not inside or "moe" not in raw.recomputed_modules or not raw.has_experts:
        return None
    return Problem(
        f"{names(inside)} inside moe: replayed with it, and once more; only the working set of "
        "the replay shrinks",
        f"drop {names(inside)} unless that working set decides",
    )


def layernorm_under_router_graph(raw: RawSettings, revision: Revision) -> Problem | None:
    """A TE graph of moe_router switches recompute of the norm before the MoE layer off."""
    graphs = graphs_of(raw, revision)
    captured = graphs.impl == "transformer_engine" and "moe_router" in graphs.modules
    if not captured or "layernorm" not in raw.recomputed_modules or not revision.at_least(0, 16):
        return None
    preprocess = "moe_preprocess" in graphs.modules and raw.moe_token_dispatcher_type == "alltoall"
    if preprocess and not raw.moe_shared_expert_overlap:
        return None
    return Problem(
        "layernorm leaves the norm before the MoE layer alone, which the graph of moe_router holds",
        "capture moe_preprocess as well, with the alltoall dispatcher",
    )


def gdp_labels_without_gdp(raw: RawSettings, revision: Revision) -> Problem | None:
    """gdp_in_proj and gdp_qkv do nothing in a model without that attention."""
    labels = [m for m in ("gdp_in_proj", "gdp_qkv") if m in raw.effective_modules]
    if not raw.selective or not labels or raw.experimental_attention_variant:
        return None
    return Problem(f"{names(labels)}: the model has no such attention", f"drop {names(labels)}")


def output_discarding_extension(raw: RawSettings, revision: Revision) -> Problem | None:
    """From 0.17 on, output-discarding recompute compiles a C++ extension at its first backward."""
    acts = raw.selective and "layernorm" in raw.effective_modules
    if not acts or raw.transformer_impl != "local" or not revision.at_least(0, 17):
        return None
    return Problem(
        "layernorm recompute compiles a C++ extension at the first backward and needs Transformer "
        "Engine importable, g++ and ninja",
        "install them on every node",
    )


_LAYER: Final = "megatron-core 0.16.1 transformer_layer.py:382-447"
_CONFIG: Final = "megatron-core 0.16.1 transformer_config.py:1193-1196"
_EXPERTS: Final = "megatron-core 0.16.1 moe/moe_layer.py"

RULES: Final = tuple(
    Rule(check.__name__, verdict, Authority.TRAINING, check, source)
    for check, verdict, source in (
        (promoted_core_attn, Verdict.PROMOTED, _CONFIG),
        (promoted_moe_layer, Verdict.PROMOTED, _CONFIG),
        (
            core_attn_under_flash,
            Verdict.BUYS_NOTHING,
            "megatron-core 0.16.1 transformer_config.py:1224",
        ),
        (layernorm_on_te, Verdict.NO_EFFECT, _LAYER),
        (moe_labels_on_dense, Verdict.NO_EFFECT, _EXPERTS),
        (mlp_without_dense_layers, Verdict.NO_EFFECT, _LAYER),
        (shared_experts_without_any, Verdict.NO_EFFECT, _EXPERTS),
        (moe_act_on_local, Verdict.NO_EFFECT, "megatron-core 0.16.1 moe/experts.py"),
        (parts_of_recomputed_moe, Verdict.NOTE, _EXPERTS),
        (layernorm_under_router_graph, Verdict.NOTE, _LAYER),
        (gdp_labels_without_gdp, Verdict.NO_EFFECT, "Megatron-LM main d98e8a6"),
        (output_discarding_extension, Verdict.NOTE, "megatron-core 0.17.1 random.py:65-75"),
    )
)
"""Promotions first."""
