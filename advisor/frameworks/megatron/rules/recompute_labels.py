"""Rules on single recompute labels: what is refused, what does or buys nothing, what is promoted.

A new label is a row in labels.py, its first release in revisions.py, and its rules: rows of
configs/rules/megatron.json, with conditions here where these are code.
"""

from typing import Final

from advisor.base.rule import Match
from advisor.frameworks.megatron.labels import inside
from advisor.frameworks.megatron.raw import RawSettings
from advisor.frameworks.megatron.revisions import Revision
from advisor.frameworks.megatron.rules.conditions import lists, replayed, selects
from advisor.frameworks.megatron.rules.stated import names, stated


def _fp8_layernorm(raw: RawSettings, revision: Revision) -> Match | None:
    labels = [m for m in ("moe_act", "layernorm") if lists(raw, m)]
    if not labels:
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


CONFIG_RULES: Final = stated("recompute_labels", fp8_layernorm_recompute=_fp8_layernorm)

MAIN_RULES: Final = stated("recompute_labels.main")
"""On what main has and no release: mhc, gdp_in_proj, gdp_qkv; lines 2028-2160 there."""


def _labels_of_experts(raw: RawSettings, _: Revision) -> dict[str, str] | None:
    found = replayed(raw, "moe_act", "moe", "shared_experts")
    return {"labels": names(found), "verb": "do" if found[1:] else "does"} if found else None


EFFECT_RULES: Final = stated(
    "recompute_labels.effect",
    promoted_moe_layer=lambda raw, _: raw.recomputed_modules,
    moe_labels_on_dense=_labels_of_experts,
    parts_of_recomputed_moe=lambda raw, _: replayed(raw, *inside("moe")),
    gdp_labels_without_gdp=lambda raw, _: [
        module for module in ("gdp_in_proj", "gdp_qkv") if selects(raw, module)
    ],
)
"""What single labels really do in a model. Promotions first."""
