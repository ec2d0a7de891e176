"""Rules of TransformerConfig on activation offloading, of whole layers and of modules."""

from typing import Final

from advisor.base.units import nearest_names
from advisor.frameworks.megatron.raw import RawSettings
from advisor.frameworks.megatron.revisions import Revision, versions_with_offload_module
from advisor.frameworks.megatron.rules.finding import Authority, Problem, Rule, Verdict, names

_INSIDE_MOE: Final = ("moe_act", "expert_fc1", "fused_group_mlp")


def cpu_offloading_num_layers(raw: RawSettings, revision: Revision) -> Problem | None:
    """cpu_offloading_num_layers must be less than num_layers."""
    count = raw.cpu_offloading_num_layers
    if not raw.cpu_offloading or raw.num_layers is None or 0 <= count < raw.num_layers:
        return None
    return Problem(
        f"cpu_offloading_num_layers = {count} is not between 0 and {raw.num_layers - 1}",
        f"use at most {raw.num_layers - 1}",
        f"ValueError: CPU offloading can be done only for layers less than {raw.num_layers}",
    )


def cpu_offloading_pipeline(raw: RawSettings, revision: Revision) -> Problem | None:
    """cpu_offloading excludes pipeline parallelism."""
    if not raw.cpu_offloading or raw.pipeline_model_parallel_size == 1:
        return None
    return Problem(
        f"cpu_offloading with pipeline_model_parallel_size = {raw.pipeline_model_parallel_size}",
        "drop cpu_offloading, or use pipeline_model_parallel_size 1",
        "ValueError: Currently there is no support for Pipeline parallelism with CPU offloading",
    )


def cpu_offloading_recompute(raw: RawSettings, revision: Revision) -> Problem | None:
    """cpu_offloading excludes recompute."""
    if not raw.cpu_offloading or raw.recompute_granularity is None:
        return None
    return Problem(
        f"cpu_offloading with recompute_granularity = {raw.recompute_granularity}",
        "drop one of the two",
        "ValueError: CPU offloading does not work when activation recomputation is enabled",
    )


def offload_with_cpu_offloading(raw: RawSettings, revision: Revision) -> Problem | None:
    """Offload of modules excludes offload of whole layers."""
    if not _offloads(raw, revision) or not raw.cpu_offloading:
        return None
    return Problem(
        "fine_grained_activation_offloading with cpu_offloading",
        "drop one of the two",
        "AssertionError: fine_grained_activation_offloading cannot be enabled with cpu_offloading.",
    )


def offload_needs_modules(raw: RawSettings, revision: Revision) -> Problem | None:
    """fine_grained_activation_offloading needs offload_modules."""
    if not _offloads(raw, revision) or raw.offload_modules:
        return None
    return Problem(
        "fine_grained_activation_offloading without offload_modules",
        f"name some of {names(revision.offload_modules)}",
        "AssertionError: ",
    )


def offload_modules(raw: RawSettings, revision: Revision) -> Problem | None:
    """Every offload module must be known to the release."""
    if not _offloads(raw, revision):
        return None
    unknown = [m for m in raw.offload_modules if m not in revision.offload_modules]
    if not unknown:
        return None
    return Problem(
        f"offload_modules {names(unknown)}: not accepted by {revision.label}",
        where_offloaded(unknown[0], revision),
        "AssertionError: Invalid choices for offload_modules: {",
    )


def where_offloaded(module: str, revision: Revision) -> str:
    """The releases that offload `module`, or the nearest names that this one does."""
    versions = versions_with_offload_module(module, revision.framework)
    if versions:
        return f"{module} needs version {' or '.join(versions)}"
    return nearest_names(module, revision.offload_modules)


def offload_attn_proj(raw: RawSettings, revision: Revision) -> Problem | None:
    """attn_proj is offloaded together with core_attn only."""
    modules = raw.offload_modules
    if not _offloads(raw, revision) or "attn_proj" not in modules or "core_attn" in modules:
        return None
    return Problem(
        "offload_modules has attn_proj without core_attn, whose backward reads the same tensor",
        "add core_attn to offload_modules",
        "ValueError: attn_proj cannot be set to offload_modules alone without core_attn",
    )


def offload_inside_moe(raw: RawSettings, revision: Revision) -> Problem | None:
    """What lies inside a recomputed MoE layer is not offloaded; checked from 0.19 on."""
    if not _offloads(raw, revision) or not revision.at_least(0, 19):
        return None
    inside = [m for m in _INSIDE_MOE if m in raw.offload_modules]
    if not inside or "moe" not in raw.recomputed_modules:
        return None
    return Problem(
        f"offload_modules has {names(inside)} inside the MoE layer that is recomputed",
        f"drop moe from recompute_modules, or {names(inside)} from offload_modules",
        "AssertionError: Cannot offload {",
    )


def offload_fused_group_mlp(raw: RawSettings, revision: Revision) -> Problem | None:
    """fused_group_mlp needs the operation fuser and excludes its parts."""
    known = "fused_group_mlp" in revision.offload_modules
    if not _offloads(raw, revision) or not known or "fused_group_mlp" not in raw.offload_modules:
        return None
    if not raw.use_transformer_engine_op_fuser:
        return Problem(
            "offload_modules has fused_group_mlp and use_transformer_engine_op_fuser is off",
            "drop fused_group_mlp",
            "ValueError: fused_group_mlp requires use_transformer_engine_op_fuser.",
        )
    parts = [m for m in ("expert_fc1", "moe_act") if m in raw.offload_modules]
    if not parts:
        return None
    return Problem(
        f"offload_modules has fused_group_mlp and its parts {names(parts)}",
        f"drop {names(parts)}",
        "ValueError: fused_group_mlp offloads the whole fused grouped MLP and cannot be",
    )


def paged_stash(raw: RawSettings, revision: Revision) -> Problem | None:
    """moe_paged_stash excludes cpu_offloading and offload inside the experts."""
    if not raw.moe_paged_stash or not revision.at_least(0, 18):
        return None
    if raw.cpu_offloading:
        return Problem(
            "moe_paged_stash with cpu_offloading",
            "drop one of the two",
            "ValueError: moe_paged_stash cannot be enabled with cpu_offloading.",
        )
    inside = [m for m in _INSIDE_MOE if m in raw.offload_modules]
    if not inside:
        return None
    return Problem(
        f"moe_paged_stash covers {names(inside)}, which offload_modules has as well",
        f"drop {names(inside)} from offload_modules",
        "ValueError: When moe_paged_stash is enabled, offload_modules must not include",
    )


def _offloads(raw: RawSettings, revision: Revision) -> bool:
    return raw.fine_grained_activation_offloading and bool(revision.offload_modules)


LAYER_RULES: Final = tuple(
    Rule(check.__name__, Verdict.REFUSED, Authority.CONFIG, check)
    for check in (cpu_offloading_num_layers, cpu_offloading_pipeline, cpu_offloading_recompute)
)
"""Offload of whole layers: Megatron checks it before the recompute fields."""

MODULE_RULES: Final = tuple(
    Rule(check.__name__, Verdict.REFUSED, Authority.CONFIG, check)
    for check in (
        offload_with_cpu_offloading,
        offload_needs_modules,
        offload_modules,
        offload_attn_proj,
        offload_inside_moe,
        offload_fused_group_mlp,
        paged_stash,
    )
)
"""Offload of modules: Megatron checks it after the recompute fields."""
