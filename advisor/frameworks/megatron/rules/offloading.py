"""Rules of TransformerConfig on activation offloading, of whole layers and of modules."""

from typing import Final

from advisor.base.rule import Match
from advisor.frameworks.megatron.raw import RawSettings
from advisor.frameworks.megatron.revisions import Revision
from advisor.frameworks.megatron.rules.conditions import INSIDE_MOE, offloaded, unknown_to
from advisor.frameworks.megatron.rules.stated import names, stated

LAYER_RULES: Final = stated(
    "offloading.layers",
    cpu_offloading_num_layers=lambda raw, _: (
        raw.num_layers is not None
        and not 0 <= raw.cpu_offloading_num_layers < raw.num_layers
        and f"{raw.num_layers - 1}"
    ),
)
"""Offload of whole layers: Megatron checks it before the recompute fields."""


def _fused_group_mlp(raw: RawSettings, _: Revision) -> Match | None:
    if not raw.use_transformer_engine_op_fuser:
        return Match(
            "offload of fused_group_mlp needs use_transformer_engine_op_fuser, which is off",
            "drop fused_group_mlp",
        )
    parts = offloaded(raw, "expert_fc1", "moe_act")
    if not parts:
        return None
    return Match(
        f"offload of fused_group_mlp cannot be combined with offload of its parts {names(parts)}",
        f"drop {names(parts)}",
    )


def _paged_stash(raw: RawSettings, _: Revision) -> Match | None:
    if raw.cpu_offloading:
        return Match(
            "moe_paged_stash cannot be combined with cpu_offloading", "drop cpu_offloading"
        )
    inside = offloaded(raw, *INSIDE_MOE)
    if not inside:
        return None
    return Match(
        f"moe_paged_stash cannot be combined with offload of {names(inside)}, which the stash "
        "covers",
        f"drop {names(inside)} from offload_modules",
    )


MODULE_RULES: Final = stated(
    "offloading.modules",
    offload_needs_modules=lambda _, revision: revision.offload_modules,
    offload_modules=lambda raw, revision: unknown_to(
        revision, "offload_modules", raw.offload_modules
    ),
    offload_inside_moe=lambda raw, _: offloaded(raw, *INSIDE_MOE),
    offload_fused_group_mlp=_fused_group_mlp,
    paged_stash=_paged_stash,
)
"""Offload of modules: Megatron checks it after the recompute fields."""
