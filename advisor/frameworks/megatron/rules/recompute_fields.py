"""Rules of TransformerConfig on the recompute fields and on single recompute modules."""

from functools import partial
from typing import Final

from advisor.frameworks.megatron.raw import RawSettings
from advisor.frameworks.megatron.revisions import Revision, versions_with_recompute_module
from advisor.frameworks.megatron.rules.conditions import Unknown, lists, replayed, unknown
from advisor.frameworks.megatron.rules.rule import Guard, Problem, Rule, config, function, names


def _unknown_modules(raw: RawSettings, revision: Revision) -> Unknown | None:
    """Labels that the release does not accept, with the releases that do."""
    if not raw.selective or not revision.recompute_modules:
        return None
    found = unknown(raw.effective_modules, revision.recompute_modules)
    if found is None:
        return None
    if "," in found.first:
        return Unknown(found.names, "separate the modules by spaces")
    versions = versions_with_recompute_module(found.first, revision.framework)
    return found.with_versions(versions)


def _fp8_layernorm(raw: RawSettings, revision: Revision) -> Problem | None:
    """layernorm and moe_act recompute exclude delayed scaling; in 0.13 any fp8 (0.12: no check)."""
    labels = [m for m in ("moe_act", "layernorm") if lists(raw, m)]
    if not raw.fp8 or not labels or not revision.at_least(0, 13):
        return None
    if not revision.at_least(0, 14):
        return Problem(
            f"recompute of {names(labels)} with fp8, which megatron-core 0.13 cannot do",
            f"drop {names(labels)}, or use megatron-core 0.14 with another recipe than delayed",
            "ValueError: moe_act and layernorm recompute cannot work with fp8.",
        )
    if not raw.delayed_scaling:
        return None
    return Problem(
        f"recompute of {names(labels)} with fp8_recipe = delayed",
        f"drop {names(labels)}, or use fp8_recipe tensorwise, blockwise or mxfp8",
        "ValueError: Delayed scaling does not support moe_act and layernorm recompute for fp8.",
    )


FIELD_RULES: Final[dict[str, Rule]] = {
    "recompute_granularity": Guard(
        summary="recompute_granularity is full or selective.",
        when=lambda raw, _: unknown((raw.recompute_granularity,), ("full", "selective")),
        reason="recompute_granularity = {found} is neither full nor selective",
        fix="{found.advice}",
        raises="ValueError: When using recompute_granuarlity: {found} must be",  # their spelling
        source=config(775, 826, 905, 1155, 1335, 1545, 1725),
    ),
    "recompute_method": Guard(
        summary="recompute_method is block or uniform, whatever the granularity.",
        given=lambda raw, _: raw.recompute_granularity is not None,
        when=lambda raw, _: unknown((raw.recompute_method,), ("block", "uniform")),
        reason="recompute_method = {found} is neither uniform nor block",
        fix="{found.advice}",
        raises='ValueError: recompute_method: {found} must be "block" or "uniform".',
        source=config(782, 833, 912, 1162, 1342, 1552, 1732),
    ),
    "full_needs_method": Guard(
        summary="Full recompute needs a recompute_method.",
        when=lambda raw, _: raw.full and raw.recompute_method is None,
        reason="recompute_granularity = full without recompute_method",
        fix="add recompute_method uniform (every layer) or block (the first N layers of a chunk)",
        raises="ValueError: Using recompute_granularity: full so recompute_method must be",
        source=config(786, 837, 916, 1166, 1346, 1556, 1736),
    ),
    "full_needs_num_layers": Guard(
        summary="Full recompute needs recompute_num_layers (but in NeMo 1's own transformer).",
        when=lambda raw, _: raw.full and raw.recompute_num_layers is None and raw.mcore_gpt,
        reason="recompute_granularity = full without recompute_num_layers",
        fix="add recompute_num_layers 1",
        raises="ValueError: When using recompute_granularity: full recompute_num_layers must be "
        "between",
        source=config(792, 843, 922, 1172, 1352, 1562, 1742),
    ),
    "selective_num_layers": Guard(
        summary="Selective recompute takes no recompute_num_layers.",
        when=lambda raw, _: raw.selective and raw.recompute_num_layers is not None,
        reason="recompute_granularity = selective with recompute_num_layers = "
        "{raw.recompute_num_layers}",
        fix="drop recompute_num_layers: selective recompute acts on every layer",
        raises="ValueError: When using recompute_granularity: selective recompute_num_layers must "
        "be None",
        source=config(799, 850, 929, 1179, 1359, 1569, 1749),
    ),
    "distribute_with_sequence_parallel": Guard(
        summary="distribute_saved_activations and sequence_parallel exclude each other.",
        given=lambda raw, _: raw.recompute_granularity is not None,
        when=lambda raw, _: raw.distribute_saved_activations and raw.sequence_parallel,
        reason="distribute_saved_activations with sequence_parallel, which cuts them already",
        fix="drop distribute_saved_activations",
        raises="ValueError: distribute_saved_activations: True must be false when sequence "
        "parallel is",
        source=config(807, 858, 937, 1187, 1367, 1577, 1757),
    ),
    "recompute_modules": Guard(
        summary="Every recompute module must be known to the release.",
        when=_unknown_modules,
        reason="recompute_modules {found}: not accepted by {revision.label}",
        fix="{found.advice}",
        raises="AssertionError: Invalid choices for recompute_modules: {{",
        source=config(819, 878, 957, 1207, 1387, 1597, 1778),
    ),
    "moe_act_needs_grouped_gemm": Guard(
        summary="moe_act needs moe_grouped_gemm.",
        when=lambda raw, _: lists(raw, "moe_act") and not raw.moe_grouped_gemm,
        reason="recompute_modules has moe_act and moe_grouped_gemm is off",
        fix="drop moe_act, or set moe_grouped_gemm in a mixture-of-experts model",
        raises="ValueError: moe_act in recompute_modules is only supported with moe_grouped_gemm.",
        source=config(825, 884, 963, 1213, 1393, 1603, 1784),
    ),
    "mla_up_proj_needs_mla": Guard(
        summary="mla_up_proj needs multi-latent attention.",
        when=lambda raw, _: lists(raw, "mla_up_proj") and not raw.multi_latent_attention,
        reason="recompute_modules has mla_up_proj and the model has no multi-latent attention",
        fix="drop mla_up_proj",
        raises="ValueError: mla_up_proj in recompute_modules is only supported with",
        source=config(830, 889, 968, 1218, 1398, 1608, 1789),
    ),
    "gdn_norm_out_needs_gdn": Guard(
        summary="gdn_norm_out needs gated-delta-net attention.",
        when=lambda raw, revision: (
            lists(raw, "gdn_norm_out")
            and raw.experimental_attention_variant
            not in (("gdn", "gdn2") if revision.at_least(0, 20) else ("gated_delta_net",))
        ),
        reason="recompute_modules has gdn_norm_out and experimental_attention_variant is "
        "{raw.experimental_attention_variant}",
        fix="drop gdn_norm_out",
        raises="ValueError: gdn_norm_out in recompute_modules is only supported with",
        source=config(0, 0, 0, 0, 0, 0, 1795),
    ),
    "shared_experts_overlap": Guard(
        summary="shared_experts recompute excludes moe_shared_expert_overlap.",
        given=lambda raw, _: raw.moe_shared_expert_intermediate_size is not None,
        when=lambda raw, _: lists(raw, "shared_experts") and raw.moe_shared_expert_overlap,
        reason="recompute_modules has shared_experts and moe_shared_expert_overlap is on",
        fix="drop one of the two",
        raises="ValueError: shared_experts recompute cannot work with --moe-shared-expert-overlap.",
        source=config(0, 903, 982, 1232, 1412, 1622, 1812),
    ),
    "fp8_layernorm_recompute": function(
        _fp8_layernorm, config(846, 914, 993, 1243, 1423, 1633, 1823)
    ),
    "moe_layer_recompute_with_full": Guard(
        summary="The deprecated moe_layer_recompute excludes full recompute (from 0.12 on).",
        given=lambda _, revision: revision.at_least(0, 12),
        when=lambda raw, _: raw.moe_layer_recompute and raw.full,
        reason="moe_layer_recompute with recompute_granularity = full",
        fix="drop moe_layer_recompute: full recompute covers the MoE layers",
        raises="ValueError: Do not set --moe-layer-recompute with full recompute granularity.",
        source=config(853, 931, 1010, 1260, 1440, 1650, 1840),
    ),
}

_on_main = partial(
    Guard, since=(0, 20), source="Megatron-LM main d98e8a6 transformer_config.py"
)  # lines 2028-2160

MAIN_RULES: Final[dict[str, Rule]] = {
    "mhc_needs_connections": _on_main(
        summary="mhc needs enable_mhc_connections.",
        when=lambda raw, _: replayed(raw, "mhc") and not raw.enable_mhc_connections,
        reason="recompute_modules has mhc and enable_mhc_connections is off",
        fix="drop mhc",
        raises="ValueError: 'mhc' in recompute_modules requires enable_mhc_connections=True.",
    ),
    "mhc_with_mlp": _on_main(
        summary="mhc excludes mlp.",
        when=lambda raw, _: replayed(raw, "mhc") and replayed(raw, "mlp"),
        reason="recompute_modules has both mhc and mlp",
        fix="drop one of the two",
        raises="ValueError: ",
    ),
    "mhc_layer_number": _on_main(
        summary="mhc_recompute_layer_num must be at least 1.",
        given=lambda raw, _: replayed(raw, "mhc"),
        when=lambda raw, _: (
            raw.mhc_recompute_layer_num is not None and raw.mhc_recompute_layer_num < 1
        ),
        reason="mhc_recompute_layer_num = {raw.mhc_recompute_layer_num}",
        fix="use 1 or more, or leave it unset",
        raises="ValueError: ",
    ),
    "mhc_with_offload": _on_main(
        summary="mhc excludes offload of modules.",
        when=lambda raw, _: replayed(raw, "mhc") and raw.fine_grained_activation_offloading,
        reason="recompute_modules has mhc with fine_grained_activation_offloading",
        fix="drop one of the two",
        raises="NotImplementedError: 'mhc' in recompute_modules + "
        "fine_grained_activation_offloading is",
    ),
    "mhc_with_full": _on_main(
        summary="enable_mhc_connections excludes full recompute.",
        when=lambda raw, _: raw.enable_mhc_connections and raw.full,
        reason="full recompute with enable_mhc_connections",
        fix="use selective recompute with mhc",
        raises="NotImplementedError: enable_mhc_connections is not yet compatible with full "
        "activation",
    ),
    "mhc_with_pipeline": _on_main(
        summary="enable_mhc_connections excludes pipeline parallelism.",
        when=lambda raw, _: raw.enable_mhc_connections and raw.pipeline_model_parallel_size != 1,
        reason="enable_mhc_connections with pipeline_model_parallel_size = "
        "{raw.pipeline_model_parallel_size}",
        fix="use pipeline_model_parallel_size 1",
        raises="NotImplementedError: enable_mhc_connections does not support "
        "pipeline_model_parallel_size",
    ),
    "gdp_offload_and_recompute": _on_main(
        summary="Offload of gdp_qkv excludes recompute of gdp_in_proj.",
        given=lambda raw, _: raw.fine_grained_activation_offloading,
        when=lambda raw, _: replayed(raw, "gdp_in_proj") and "gdp_qkv" in raw.offload_modules,
        reason="offload_modules has gdp_qkv and recompute_modules gdp_in_proj",
        fix="drop one of the two",
        raises="ValueError: gdp_qkv cannot be set in offload_modules together with gdp_in_proj",
    ),
}
"""On what main has and no release: mhc, gdp_in_proj, gdp_qkv."""
