"""Rules on single recompute labels: what is refused, what does or buys nothing, what is promoted.

A new label is a row in labels.py, its first release in revisions.py, and its rules here.
"""

from functools import partial
from typing import Final

from advisor.base.rule import Match, Verdict
from advisor.frameworks.megatron.labels import inside
from advisor.frameworks.megatron.raw import RawSettings, graphs_of
from advisor.frameworks.megatron.revisions import Revision
from advisor.frameworks.megatron.rules.conditions import lists, replayed, selects
from advisor.frameworks.megatron.rules.stated import (
    Authority,
    Rule,
    clash,
    config,
    ignored,
    names,
    noted,
    replaced,
)


def _fp8_layernorm(raw: RawSettings, revision: Revision) -> Match | None:
    labels = [m for m in ("moe_act", "layernorm") if lists(raw, m)]
    if not raw.fp8 or not labels or not revision.at_least(0, 13):
        return None
    if not revision.at_least(0, 14):
        return Match(
            f"megatron-core 0.13 cannot recompute {names(labels)} with fp8",
            f"drop {names(labels)}, or use megatron-core 0.14 with a recipe other than delayed",
        )
    if not raw.delayed_scaling:
        return None
    return Match(
        f"recompute of {names(labels)} cannot be combined with fp8_recipe = delayed",
        f"drop {names(labels)}, or use fp8_recipe tensorwise, blockwise or mxfp8",
    )


CONFIG_RULES: Final[dict[str, Rule]] = {
    "moe_act_needs_grouped_gemm": Rule(
        when=lambda raw, _: lists(raw, "moe_act") and not raw.moe_grouped_gemm,
        reason="recompute of moe_act needs moe_grouped_gemm, which is off",
        fix="drop moe_act, or set moe_grouped_gemm in a mixture-of-experts model",
        source=config(825, 884, 963, 1213, 1393, 1603, 1784),
        example="recompute_granularity=selective recompute_modules=moe_act",
    ),
    "mla_up_proj_needs_mla": Rule(
        when=lambda raw, _: lists(raw, "mla_up_proj") and not raw.multi_latent_attention,
        reason="recompute of mla_up_proj needs a model with multi-latent attention",
        fix="drop mla_up_proj",
        source=config(830, 889, 968, 1218, 1398, 1608, 1789),
        example="recompute_granularity=selective recompute_modules=mla_up_proj",
    ),
    "gdn_norm_out_needs_gdn": Rule(
        summary="gdn_norm_out needs gated-delta-net attention.",
        when=lambda raw, revision: (
            lists(raw, "gdn_norm_out")
            and raw.experimental_attention_variant
            not in (("gdn", "gdn2") if revision.at_least(0, 20) else ("gated_delta_net",))
        ),
        reason="recompute_modules has gdn_norm_out, but experimental_attention_variant is "
        "{raw.experimental_attention_variant}",
        fix="drop gdn_norm_out",
        source=config(0, 0, 0, 0, 0, 0, 1795),
        example="recompute_granularity=selective recompute_modules=gdn_norm_out",
    ),
    "shared_experts_overlap": Rule(
        given=lambda raw, _: raw.moe_shared_expert_intermediate_size is not None,
        when=lambda raw, _: lists(raw, "shared_experts") and raw.moe_shared_expert_overlap,
        reason="recompute of shared_experts cannot be combined with moe_shared_expert_overlap",
        fix="[moe_shared_expert_overlap], or drop shared_experts",
        source=config(0, 903, 982, 1232, 1412, 1622, 1812),
        example="recompute_granularity=selective recompute_modules=shared_experts "
        "moe_shared_expert_overlap=true moe_shared_expert_intermediate_size=64",
    ),
    "fp8_layernorm_recompute": Rule(
        summary="layernorm and moe_act recompute refuse delayed scaling (0.13: any fp8; 0.12: no "
        "check).",
        when=_fp8_layernorm,
        source=config(846, 914, 993, 1243, 1423, 1633, 1823),
        example="recompute_granularity=selective recompute_modules=layernorm fp8=hybrid",
    ),
    "moe_layer_recompute_with_full": clash(
        "moe_layer_recompute",
        "recompute_granularity=full",
        "drop moe_layer_recompute: full recompute covers the MoE layers",
        since=(0, 12),
        source=config(853, 931, 1010, 1260, 1440, 1650, 1840),
        example="recompute_granularity=full moe_layer_recompute=true",
    ),
}

# Lines 2028-2160 there.
_MAIN: Final = "Megatron-LM main d98e8a6 transformer_config.py"
_on_main = partial(Rule, since=(0, 20), source=_MAIN)

MAIN_RULES: Final[dict[str, Rule]] = {
    "mhc_needs_connections": _on_main(
        when=lambda raw, _: replayed(raw, "mhc") and not raw.enable_mhc_connections,
        reason="recompute of mhc needs enable_mhc_connections, which is off",
        fix="drop mhc",
        example="recompute_granularity=selective recompute_modules=mhc",
    ),
    "mhc_with_mlp": _on_main(
        when=lambda raw, _: replayed(raw, "mhc") and replayed(raw, "mlp"),
        reason="recompute of mhc cannot be combined with recompute of mlp",
        fix="drop one of the two",
        example="recompute_granularity=selective recompute_modules=mhc,mlp",
    ),
    "mhc_layer_number": _on_main(
        summary="mhc_recompute_layer_num must be at least 1.",
        given=lambda raw, _: replayed(raw, "mhc"),
        when=lambda raw, _: (
            raw.mhc_recompute_layer_num is not None and raw.mhc_recompute_layer_num < 1
        ),
        reason="mhc_recompute_layer_num = {raw.mhc_recompute_layer_num} must be at least 1",
        fix="use 1 or more, or leave it unset",
        example="recompute_granularity=selective recompute_modules=mhc mhc_recompute_layer_num=0",
    ),
    "mhc_with_offload": _on_main(
        when=lambda raw, _: replayed(raw, "mhc") and raw.fine_grained_activation_offloading,
        reason="recompute of mhc cannot be combined with fine_grained_activation_offloading",
        fix="drop one of the two",
        example="recompute_granularity=selective recompute_modules=mhc "
        "fine_grained_activation_offloading=true",
    ),
    "mhc_with_full": _on_main(
        when=lambda raw, _: raw.enable_mhc_connections and raw.full,
        reason="full recompute cannot be combined with enable_mhc_connections",
        fix="use selective recompute with mhc",
        example="recompute_granularity=full enable_mhc_connections=true",
    ),
    "mhc_with_pipeline": clash(
        "enable_mhc_connections",
        "pipeline_model_parallel_size>1",
        "use pipeline_model_parallel_size 1",
        since=(0, 20),
        source=_MAIN,
    ),
    "gdp_offload_and_recompute": _on_main(
        given=lambda raw, _: raw.fine_grained_activation_offloading,
        when=lambda raw, _: replayed(raw, "gdp_in_proj") and "gdp_qkv" in raw.offload_modules,
        reason="offload of gdp_qkv cannot be combined with recompute of gdp_in_proj",
        fix="drop one of the two",
        example="recompute_granularity=selective recompute_modules=gdp_in_proj "
        "offload_modules=gdp_qkv fine_grained_activation_offloading=true",
    ),
}
"""On what main has and no release: mhc, gdp_in_proj, gdp_qkv."""


def _keeps_no_scores(raw: RawSettings, _: Revision) -> bool:
    """Whether flash or fused attention runs."""
    local_scores = raw.transformer_impl == "local" and raw.attention_backend == "auto"
    local_scores |= raw.experimental_attention_variant == "dsa"
    return raw.attention_backend not in ("unfused", "local") and not local_scores


def _labels_of_experts(raw: RawSettings, _: Revision) -> dict[str, str] | None:
    found = replayed(raw, "moe_act", "moe", "shared_experts")
    return {"labels": names(found), "verb": "do" if found[1:] else "does"} if found else None


def _norm_outside_router_graph(raw: RawSettings, revision: Revision) -> bool:
    """Whether Transformer Engine's graph of moe_router holds the norm before it."""
    graphs = graphs_of(raw, revision)
    if graphs.impl != "transformer_engine" or "moe_router" not in graphs.modules:
        return False
    preprocess = "moe_preprocess" in graphs.modules and raw.moe_token_dispatcher_type == "alltoall"
    return raw.moe_shared_expert_overlap or not preprocess


_CONFIG: Final = "megatron-core 0.16.1 transformer_config.py:1193-1196"
_LAYER: Final = "megatron-core 0.16.1 transformer_layer.py:382-447"
_EXPERTS: Final = "megatron-core 0.16.1 moe/moe_layer.py"

EFFECT_RULES: Final[dict[str, Rule]] = {
    "promoted_core_attn": noted(
        given=lambda raw, _: raw.selective and raw.recompute_modules is None,
        when=lambda _, revision: revision.recompute_modules,
        reason="recompute_modules is unset: Megatron then recomputes core_attn",
        fix="name the modules that you mean",
        source=_CONFIG,
        example="recompute_granularity=selective",
    ),
    "promoted_moe_layer": replaced(
        summary="moe_layer_recompute means selective recompute of moe and of the modules already "
        "listed.",
        given=lambda raw, _: raw.moe_layer_recompute and not raw.full,
        when=lambda raw, revision: revision.at_least(0, 12) and raw.recomputed_modules,
        reason="moe_layer_recompute is set: Megatron then recomputes {found} (selective)",
        fix="write recompute_granularity selective and recompute_modules moe",
        source=_CONFIG,
        example="moe_layer_recompute=true",
    ),
    "core_attn_under_flash": Rule(
        summary="core_attn saves almost nothing with flash or fused attention, which keep no "
        "scores.",
        given=lambda raw, _: selects(raw, "core_attn"),
        when=_keeps_no_scores,
        reason="core_attn with attention_backend = {raw.attention_backend} frees only the softmax "
        "statistics and costs a second forward of attention",
        fix="drop core_attn",
        verdict=Verdict.SAVES_NOTHING,
        authority=Authority.TRAINING,
        source="megatron-core 0.16.1 transformer_config.py:1224",
        example="recompute_granularity=selective",
    ),
    "layernorm_on_te": ignored(
        given=lambda raw, _: raw.num_moe_experts is None and not raw.multi_latent_attention,
        when=lambda raw, _: (
            selects(raw, "layernorm") and raw.transformer_impl == "transformer_engine"
        ),
        reason="layernorm does nothing with transformer_impl = transformer_engine: both norms of a "
        "dense layer are fused into the linear layers that follow",
        fix="drop layernorm",
        source=_LAYER,
        example="recompute_granularity=selective recompute_modules=layernorm",
    ),
    "moe_labels_on_dense": ignored(
        summary="moe, shared_experts and moe_act do nothing in a dense model.",
        given=lambda raw, _: raw.num_moe_experts is None,
        when=_labels_of_experts,
        reason="{labels} {verb} nothing in a dense model",
        fix="drop {labels}",
        source=_EXPERTS,
        example="recompute_granularity=selective recompute_modules=moe",
    ),
    "mlp_without_dense_layers": ignored(
        when=lambda raw, _: replayed(raw, "mlp") and not raw.has_dense_mlp,
        reason="mlp does nothing: every layer is a mixture of experts, and mlp means the dense MLP",
        fix="drop mlp, or use moe, moe_act or shared_experts",
        source=_LAYER,
        example="recompute_granularity=selective recompute_modules=mlp num_moe_experts=8",
    ),
    "shared_experts_without_any": ignored(
        given=lambda raw, _: raw.has_experts and raw.moe_shared_expert_intermediate_size is None,
        when=lambda raw, _: replayed(raw, "shared_experts"),
        reason="shared_experts does nothing: the model has no shared experts",
        fix="drop shared_experts",
        source=_EXPERTS,
        example="recompute_granularity=selective recompute_modules=shared_experts "
        "num_moe_experts=8",
    ),
    "moe_act_on_local": ignored(
        given=lambda raw, _: raw.has_experts and raw.transformer_impl == "local",
        when=lambda raw, _: replayed(raw, "moe_act"),
        reason="moe_act does nothing with transformer_impl = local, whose experts run one by one",
        fix="drop moe_act",
        source="megatron-core 0.16.1 moe/experts.py",
        example="recompute_granularity=selective recompute_modules=moe_act num_moe_experts=8 "
        "transformer_impl=local",
    ),
    "parts_of_recomputed_moe": noted(
        summary="A module inside a recomputed MoE layer is replayed twice: with the layer, and "
        "by itself.",
        given=lambda raw, _: raw.has_experts and replayed(raw, "moe"),
        when=lambda raw, _: replayed(raw, *inside("moe")),
        reason="replayed twice, with moe and by itself: {found}; the extra replay frees memory "
        "only during the replay of moe",
        fix="drop {found} unless the peak lies in the replay of moe",
        source=_EXPERTS,
        example="recompute_granularity=selective recompute_modules=moe,moe_act num_moe_experts=8",
    ),
    "layernorm_under_router_graph": noted(
        summary="A TE graph of moe_router turns off recompute of the norm before the MoE layer.",
        given=lambda raw, revision: revision.at_least(0, 16) and replayed(raw, "layernorm"),
        when=_norm_outside_router_graph,
        reason="layernorm does not recompute the norm before the MoE layer: the graph of "
        "moe_router contains that norm",
        fix="capture moe_preprocess as well, with the alltoall dispatcher",
        source=_LAYER,
        example="recompute_granularity=selective recompute_modules=layernorm "
        "cuda_graph_impl=transformer_engine cuda_graph_modules=moe_router",
    ),
    "gdp_labels_without_gdp": ignored(
        summary="gdp_in_proj and gdp_qkv do nothing without experimental_attention_variant.",
        given=lambda raw, _: not raw.experimental_attention_variant,
        when=lambda raw, _: [m for m in ("gdp_in_proj", "gdp_qkv") if selects(raw, m)],
        reason="no effect without experimental_attention_variant: {found}",
        fix="drop {found}",
        source="Megatron-LM main d98e8a6",
        example="recompute_granularity=selective recompute_modules=gdp_qkv",
    ),
    "output_discarding_extension": noted(
        summary="Since 0.17, output-discarding recompute compiles a C++ extension at its first "
        "backward.",
        given=lambda raw, revision: raw.transformer_impl == "local" and revision.at_least(0, 17),
        when=lambda raw, _: selects(raw, "layernorm"),
        reason="layernorm recompute compiles a C++ extension at the first backward: it needs an "
        "importable Transformer Engine, g++ and ninja",
        fix="install them on every node",
        source="megatron-core 0.17.1 random.py:65-75",
        example="recompute_granularity=selective recompute_modules=layernorm "
        "transformer_impl=local",
    ),
}
"""What single labels really do in a model. Promotions first."""
