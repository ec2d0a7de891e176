"""Rules of TransformerConfig on activation offloading, of whole layers and of modules."""

from functools import partial
from typing import Final

from advisor.base.rule import Match
from advisor.frameworks.megatron.raw import RawSettings
from advisor.frameworks.megatron.revisions import Revision
from advisor.frameworks.megatron.rules.conditions import INSIDE_MOE, offloaded, replayed, unknown_to
from advisor.frameworks.megatron.rules.stated import Rule, clash, config, names

_layers = partial(Rule, given=lambda raw, _: raw.cpu_offloading)

LAYER_RULES: Final[dict[str, Rule]] = {
    "cpu_offloading_num_layers": _layers(
        summary="cpu_offloading_num_layers must be less than num_layers.",
        when=lambda raw, _: (
            raw.num_layers is not None
            and not 0 <= raw.cpu_offloading_num_layers < raw.num_layers
            and f"{raw.num_layers - 1}"
        ),
        reason="cpu_offloading_num_layers = {raw.cpu_offloading_num_layers} must be between 0 and "
        "{found}",
        fix="use at most {found}",
        source=config(757, 808, 887, 1137, 1317, 1527, 1707),
        example="num_layers=8 cpu_offloading=true cpu_offloading_num_layers=8",
    ),
    "cpu_offloading_pipeline": clash(
        "cpu_offloading",
        "pipeline_model_parallel_size>1",
        "drop cpu_offloading, or use pipeline_model_parallel_size 1",
        source=config(764, 815, 894, 1144, 1324, 1534, 1714),
    ),
    "cpu_offloading_recompute": clash(
        "cpu_offloading",
        "recompute_granularity",
        "[cpu_offloading], or [recompute_granularity]",
        source=config(769, 820, 899, 1149, 1329, 1539, 1719),
        example="recompute_granularity=full cpu_offloading=true",
    ),
}
"""Offload of whole layers: Megatron checks it before the recompute fields."""


def _fused_group_mlp(raw: RawSettings, _: Revision) -> Match | None:
    if not raw.fine_grained_activation_offloading or not offloaded(raw, "fused_group_mlp"):
        return None
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
    if not raw.moe_paged_stash:
        return None
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


_modules = partial(Rule, given=lambda raw, _: raw.fine_grained_activation_offloading)

MODULE_RULES: Final[dict[str, Rule]] = {
    "offload_with_cpu_offloading": clash(
        "fine_grained_activation_offloading",
        "cpu_offloading",
        "[cpu_offloading], or [fine_grained_activation_offloading]",
        source=config(0, 0, 0, 1269, 1449, 1659, 1849),
    ),
    "offload_needs_modules": _modules(
        when=lambda raw, revision: not raw.offload_modules and revision.offload_modules,
        reason="fine_grained_activation_offloading needs offload_modules",
        fix="name one or more of {found}",
        source=config(0, 0, 0, 1272, 1452, 1662, 1852),
        example="fine_grained_activation_offloading=true",
    ),
    "offload_modules": _modules(
        summary="Every offload module must be known to the release.",
        when=lambda raw, revision: unknown_to(revision, "offload_modules", raw.offload_modules),
        reason="offload_modules {found}: not accepted by {revision.label}",
        fix="{found.advice}",
        source=config(0, 0, 0, 1282, 1462, 1672, 1863),
        example="offload_modules=mlp fine_grained_activation_offloading=true",
    ),
    "offload_attn_proj": _modules(
        when=lambda raw, _: offloaded(raw, "attn_proj") and not offloaded(raw, "core_attn"),
        reason="offload of attn_proj needs offload of core_attn, whose backward reads the same "
        "tensor",
        fix="add core_attn to offload_modules",
        source=config(0, 0, 0, 1287, 1467, 1677, 1868),
        example="offload_modules=attn_proj fine_grained_activation_offloading=true",
    ),
    "offload_inside_moe": _modules(
        summary="Modules inside a recomputed MoE layer cannot be offloaded (since 0.19).",
        when=lambda raw, _: replayed(raw, "moe") and offloaded(raw, *INSIDE_MOE),
        reason="offload of {found} cannot be combined with recompute of moe",
        fix="drop moe from recompute_modules, or {found} from offload_modules",
        source=config(0, 0, 0, 0, 0, 0, 1874),
        example="fine_grained_activation_offloading=true offload_modules=moe_act "
        "recompute_granularity=selective recompute_modules=moe",
    ),
    "offload_fused_group_mlp": Rule(
        summary="Offload of fused_group_mlp needs TE's operation fuser and excludes offload of its "
        "parts.",
        when=_fused_group_mlp,
        source=config(0, 0, 0, 0, 0, 0, 1895),
        example="offload_modules=fused_group_mlp fine_grained_activation_offloading=true",
    ),
    "paged_stash": Rule(
        summary="moe_paged_stash cannot be combined with cpu_offloading or with offload in the "
        "experts.",
        when=_paged_stash,
        source=config(0, 0, 0, 0, 0, 1684, 1905),
        example="moe_paged_stash=true cpu_offloading=true",
    ),
}
"""Offload of modules: Megatron checks it after the recompute fields."""
