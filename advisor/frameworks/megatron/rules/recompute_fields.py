"""Rules on the recompute and offload fields: what TransformerConfig refuses of them, and what it
accepts and does not read; on single labels: what is refused, what does or buys nothing, what is
promoted; on activation offloading, of whole layers and of modules.

A new label is a row in labels.py, its first release in revisions.py, and its rules: rows of
configs/rules/megatron.json, with conditions here where these are code.
"""

from typing import Final

from advisor.base.rule import Match
from advisor.frameworks.megatron.labels import inside
from advisor.frameworks.megatron.raw import RawSettings
from advisor.frameworks.megatron.revisions import Revision
from advisor.frameworks.megatron.rules.stated import (
    INSIDE_MOE,
    Unknown,
    lists,
    names,
    offloaded,
    replayed,
    selects,
    stated,
    unknown,
    unknown_to,
)


def _unknown_modules(raw: RawSettings, revision: Revision) -> Unknown | None:
    """Labels that the release does not accept, with the releases that do."""
    if not raw.selective or not revision.recompute_modules:
        return None
    found = unknown_to(revision, "recompute_modules", raw.effective_modules)
    if found is not None and "," in found.first:
        return Unknown(found.names, instead="separate the modules by spaces")
    return found


CONFIG_RULES: Final = stated(
    "recompute_fields",
    recompute_granularity=lambda raw, _: unknown(
        (raw.recompute_granularity,), ("full", "selective")
    ),
    recompute_method=lambda raw, _: unknown((raw.recompute_method,), ("block", "uniform")),
    recompute_modules=_unknown_modules,
)


def _unread_modules(raw: RawSettings, _: Revision) -> dict[str, str] | None:
    """Not the promoted default, which a dumped configuration shows even where nothing is
    recomputed."""
    modules = raw.recompute_modules
    if raw.selective or not modules or modules == ("core_attn",):
        return None
    return {"modules": ", ".join(modules), "granularity": raw.recompute_granularity or "unset"}


def _unread_method(raw: RawSettings, _: Revision) -> str:
    """The fields of full recompute that are set."""
    fields = ("recompute_method", "recompute_num_layers")
    given = [name for name in fields if getattr(raw, name) is not None]
    return " and ".join(f"{name} = {getattr(raw, name)}" for name in given)


def _why_not_distributed(raw: RawSettings, _: Revision) -> str:
    if not raw.full:
        return f"recompute_granularity is {raw.recompute_granularity or 'unset'}, not full"
    return "tensor_model_parallel_size is 1" if raw.tensor_model_parallel_size <= 1 else ""


def _more_layers_than_chunk(raw: RawSettings, revision: Revision) -> str:
    """The layers of a model chunk, where more of them are to be recomputed."""
    number, layers = raw.recompute_num_layers, raw.layers_per_chunk
    refused = raw.recompute_method == "uniform" and revision.uniform_must_divide
    if not raw.full or number is None or layers is None or number <= layers or refused:
        return ""
    return f"{layers}"


def _recomputed_and_offloaded(raw: RawSettings, _: Revision) -> list[str]:
    both = [m for m in raw.offload_modules if selects(raw, m)]
    return both or (["every layer"] if raw.full and raw.offload_modules else [])


UNREAD_RULES: Final = stated(
    "recompute_fields.unread",
    modules_without_selective=_unread_modules,
    method_without_full=_unread_method,
    distribute_ignored=_why_not_distributed,
    more_layers_than_chunk=_more_layers_than_chunk,
    offload_without_switch=lambda raw, _: raw.offload_modules,
    offload_of_recomputed=_recomputed_and_offloaded,
)
"""Fields first, then whole layers and offloading. Of selective recompute Megatron-LM's arguments
refuse a method, and NeMo 1's own transformer demands one."""


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


LABEL_RULES: Final = stated("recompute_labels", fp8_layernorm_recompute=_fp8_layernorm)

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


OFFLOAD_RULES: Final = stated(
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
