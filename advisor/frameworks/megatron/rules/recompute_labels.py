"""Rules on single recompute labels: what is refused, what does or buys nothing, what is promoted.

A new label is a row in labels.py, its first release in revisions.py, and its rules: rows of
configs/rules/megatron.json, with conditions here where these are code.
"""

from typing import Final

from advisor.base.rule import Match
from advisor.frameworks.megatron.labels import inside
from advisor.frameworks.megatron.raw import RawSettings, graphs_of
from advisor.frameworks.megatron.revisions import Revision
from advisor.frameworks.megatron.rules.conditions import lists, replayed, selects
from advisor.frameworks.megatron.rules.stated import names, stated


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


CONFIG_RULES: Final = stated(
    "recompute_labels",
    gdn_norm_out_needs_gdn=lambda raw, revision: (
        lists(raw, "gdn_norm_out")
        and raw.experimental_attention_variant
        not in (("gdn", "gdn2") if revision.at_least(0, 20) else ("gated_delta_net",))
    ),
    fp8_layernorm_recompute=_fp8_layernorm,
)

MAIN_RULES: Final = stated("recompute_labels.main")
"""On what main has and no release: mhc, gdp_in_proj, gdp_qkv; lines 2028-2160 there."""


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


EFFECT_RULES: Final = stated(
    "recompute_labels.effect",
    promoted_core_attn=lambda raw, revision: (
        raw.selective and raw.recompute_modules is None and revision.recompute_modules
    ),
    promoted_moe_layer=lambda raw, revision: (
        raw.moe_layer_recompute
        and not raw.full
        and revision.at_least(0, 12)
        and raw.recomputed_modules
    ),
    core_attn_under_flash=lambda raw, revision: (
        selects(raw, "core_attn") and _keeps_no_scores(raw, revision)
    ),
    moe_labels_on_dense=lambda raw, revision: (
        raw.num_moe_experts is None and _labels_of_experts(raw, revision)
    ),
    parts_of_recomputed_moe=lambda raw, _: (
        raw.has_experts and replayed(raw, "moe") and replayed(raw, *inside("moe"))
    ),
    layernorm_under_router_graph=lambda raw, revision: (
        revision.at_least(0, 16)
        and replayed(raw, "layernorm")
        and _norm_outside_router_graph(raw, revision)
    ),
    gdp_labels_without_gdp=lambda raw, _: (
        not raw.experimental_attention_variant
        and [m for m in ("gdp_in_proj", "gdp_qkv") if selects(raw, m)]
    ),
    output_discarding_extension=lambda raw, revision: (
        raw.transformer_impl == "local" and revision.at_least(0, 17) and selects(raw, "layernorm")
    ),
)
"""What single labels really do in a model. Promotions first."""
