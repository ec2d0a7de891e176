"""Rules of TransformerConfig on the recompute fields."""

from typing import Final

from advisor.base.units import nearest_names
from advisor.frameworks.megatron.raw import RawSettings
from advisor.frameworks.megatron.revisions import Revision, versions_with_recompute_module
from advisor.frameworks.megatron.rules.finding import Authority, Problem, Rule, Verdict, names

_GRANULARITIES: Final = ("full", "selective")
_METHODS: Final = ("block", "uniform")


def recompute_granularity(raw: RawSettings, revision: Revision) -> Problem | None:
    """recompute_granularity is full or selective."""
    value = raw.recompute_granularity
    if value is None or value in _GRANULARITIES:
        return None
    return Problem(
        f"recompute_granularity = {value} is neither full nor selective",
        nearest_names(value, _GRANULARITIES),
        f"ValueError: When using recompute_granuarlity: {value} must be",  # Megatron's spelling
    )


def recompute_method(raw: RawSettings, revision: Revision) -> Problem | None:
    """recompute_method is block or uniform, whatever the granularity."""
    value = raw.recompute_method
    if raw.recompute_granularity is None or value is None or value in _METHODS:
        return None
    return Problem(
        f"recompute_method = {value} is neither uniform nor block",
        nearest_names(value, _METHODS),
        f'ValueError: recompute_method: {value} must be "block" or "uniform".',
    )


def full_needs_method(raw: RawSettings, revision: Revision) -> Problem | None:
    """Full recompute needs a recompute_method."""
    if not raw.full or raw.recompute_method is not None:
        return None
    return Problem(
        "recompute_granularity = full without recompute_method",
        "add recompute_method uniform (every layer) or block (the first N layers of a chunk)",
        "ValueError: Using recompute_granularity: full so recompute_method must be",
    )


def full_needs_num_layers(raw: RawSettings, revision: Revision) -> Problem | None:
    """Full recompute needs recompute_num_layers (but in NeMo 1's own transformer)."""
    if not raw.full or raw.recompute_num_layers is not None or not raw.mcore_gpt:
        return None
    return Problem(
        "recompute_granularity = full without recompute_num_layers",
        "add recompute_num_layers 1",
        "ValueError: When using recompute_granularity: full recompute_num_layers must be between",
    )


def selective_num_layers(raw: RawSettings, revision: Revision) -> Problem | None:
    """Selective recompute takes no recompute_num_layers."""
    if not raw.selective or raw.recompute_num_layers is None:
        return None
    return Problem(
        f"recompute_granularity = selective with recompute_num_layers = {raw.recompute_num_layers}",
        "drop recompute_num_layers: selective recompute acts on every layer",
        "ValueError: When using recompute_granularity: selective recompute_num_layers must be None",
    )


def distribute_with_sequence_parallel(raw: RawSettings, revision: Revision) -> Problem | None:
    """distribute_saved_activations and sequence_parallel exclude each other."""
    wanted = raw.distribute_saved_activations and raw.sequence_parallel
    if not wanted or raw.recompute_granularity is None:
        return None
    return Problem(
        "distribute_saved_activations with sequence_parallel, which cuts them already",
        "drop distribute_saved_activations",
        "ValueError: distribute_saved_activations: True must be false when sequence parallel is",
    )


def recompute_modules(raw: RawSettings, revision: Revision) -> Problem | None:
    """Every recompute module must be known to the release."""
    if not raw.selective or not revision.recompute_modules:
        return None
    unknown = [m for m in raw.effective_modules if m not in revision.recompute_modules]
    if not unknown:
        return None
    return Problem(
        f"recompute_modules {names(unknown)}: not accepted by {revision.label}",
        _where_accepted(unknown[0], revision),
        "AssertionError: Invalid choices for recompute_modules: {",
    )


def _where_accepted(module: str, revision: Revision) -> str:
    if "," in module:
        return "separate the modules by spaces"
    versions = versions_with_recompute_module(module, revision.framework)
    if versions:
        return f"{module} needs version {' or '.join(versions)}"
    return nearest_names(module, revision.recompute_modules)


def moe_act_needs_grouped_gemm(raw: RawSettings, revision: Revision) -> Problem | None:
    """moe_act needs moe_grouped_gemm."""
    if not _recomputes(raw, "moe_act") or raw.moe_grouped_gemm:
        return None
    return Problem(
        "recompute_modules has moe_act and moe_grouped_gemm is off",
        "drop moe_act, or set moe_grouped_gemm in a mixture-of-experts model",
        "ValueError: moe_act in recompute_modules is only supported with moe_grouped_gemm.",
    )


def mla_up_proj_needs_mla(raw: RawSettings, revision: Revision) -> Problem | None:
    """mla_up_proj needs multi-latent attention."""
    if not _recomputes(raw, "mla_up_proj") or raw.multi_latent_attention:
        return None
    return Problem(
        "recompute_modules has mla_up_proj and the model has no multi-latent attention",
        "drop mla_up_proj",
        "ValueError: mla_up_proj in recompute_modules is only supported with",
    )


def gdn_norm_out_needs_gdn(raw: RawSettings, revision: Revision) -> Problem | None:
    """gdn_norm_out needs gated-delta-net attention."""
    variants = ("gdn", "gdn2") if revision.at_least(0, 20) else ("gated_delta_net",)
    if not _recomputes(raw, "gdn_norm_out") or raw.experimental_attention_variant in variants:
        return None
    if "gdn_norm_out" not in revision.recompute_modules:
        return None
    return Problem(
        "recompute_modules has gdn_norm_out and experimental_attention_variant is "
        f"{raw.experimental_attention_variant}",
        "drop gdn_norm_out",
        "ValueError: gdn_norm_out in recompute_modules is only supported with",
    )


def shared_experts_overlap(raw: RawSettings, revision: Revision) -> Problem | None:
    """shared_experts recompute excludes moe_shared_expert_overlap."""
    overlap = raw.moe_shared_expert_overlap and raw.moe_shared_expert_intermediate_size is not None
    known = "shared_experts" in revision.recompute_modules
    if not overlap or not known or not _recomputes(raw, "shared_experts"):
        return None
    return Problem(
        "recompute_modules has shared_experts and moe_shared_expert_overlap is on",
        "drop one of the two",
        "ValueError: shared_experts recompute cannot work with --moe-shared-expert-overlap.",
    )


def fp8_layernorm_recompute(raw: RawSettings, revision: Revision) -> Problem | None:
    """layernorm and moe_act recompute exclude delayed scaling; in 0.13 any fp8 (0.12: no check)."""
    labels = [m for m in ("moe_act", "layernorm") if _recomputes(raw, m)]
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


def moe_layer_recompute_with_full(raw: RawSettings, revision: Revision) -> Problem | None:
    """The deprecated moe_layer_recompute excludes full recompute (from 0.12 on)."""
    if not raw.moe_layer_recompute or not raw.full or not revision.at_least(0, 12):
        return None
    return Problem(
        "moe_layer_recompute with recompute_granularity = full",
        "drop moe_layer_recompute: full recompute covers the MoE layers",
        "ValueError: Do not set --moe-layer-recompute with full recompute granularity.",
    )


def _recomputes(raw: RawSettings, module: str) -> bool:
    return raw.selective and raw.recompute_modules is not None and module in raw.recompute_modules


RULES: Final = tuple(
    Rule(check.__name__, Verdict.REFUSED, Authority.CONFIG, check)
    for check in (
        recompute_granularity,
        recompute_method,
        full_needs_method,
        full_needs_num_layers,
        selective_num_layers,
        distribute_with_sequence_parallel,
        recompute_modules,
        moe_act_needs_grouped_gemm,
        mla_up_proj_needs_mla,
        gdn_norm_out_needs_gdn,
        shared_experts_overlap,
        fp8_layernorm_recompute,
        moe_layer_recompute_with_full,
    )
)
"""In the order in which Megatron checks them."""
