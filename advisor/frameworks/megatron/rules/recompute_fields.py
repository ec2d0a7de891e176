"""Rules on the recompute and offload fields: what TransformerConfig refuses of them, and what it
accepts and does not read.
"""

from typing import Final

from advisor.frameworks.megatron.raw import RawSettings
from advisor.frameworks.megatron.revisions import Revision
from advisor.frameworks.megatron.rules.conditions import Unknown, selects, unknown, unknown_to
from advisor.frameworks.megatron.rules.stated import Rule, clash, config, ignored, noted
from advisor.frameworks.names import Framework


def _unknown_modules(raw: RawSettings, revision: Revision) -> Unknown | None:
    """Labels that the release does not accept, with the releases that do."""
    if not raw.selective or not revision.recompute_modules:
        return None
    found = unknown_to(revision, "recompute_modules", raw.effective_modules)
    if found is not None and "," in found.first:
        return Unknown(found.names, instead="separate the modules by spaces")
    return found


CONFIG_RULES: Final[dict[str, Rule]] = {
    "recompute_granularity": Rule(
        summary="recompute_granularity must be full or selective.",
        when=lambda raw, _: unknown((raw.recompute_granularity,), ("full", "selective")),
        reason="recompute_granularity = {found} is neither full nor selective",
        fix="{found.advice}",  # their spelling
        source=config(775, 826, 905, 1155, 1335, 1545, 1725),
        example="recompute_granularity=layers",
    ),
    "recompute_method": Rule(
        summary="recompute_method must be block or uniform, also with selective recompute.",
        given=lambda raw, _: raw.recompute_granularity is not None,
        when=lambda raw, _: unknown((raw.recompute_method,), ("block", "uniform")),
        reason="recompute_method = {found} is neither uniform nor block",
        fix="{found.advice}",
        source=config(782, 833, 912, 1162, 1342, 1552, 1732),
        example="recompute_method=all recompute_granularity=full",
    ),
    "full_needs_method": Rule(
        when=lambda raw, _: raw.full and raw.recompute_method is None,
        reason="recompute_granularity = full needs recompute_method",
        fix="add recompute_method uniform (every layer) or block (the first N layers of a chunk)",
        source=config(786, 837, 916, 1166, 1346, 1556, 1736),
        example="recompute_granularity=full",
    ),
    "full_needs_num_layers": Rule(
        summary="Full recompute needs recompute_num_layers (except in NeMo 1's own transformer).",
        when=lambda raw, _: raw.full and raw.recompute_num_layers is None and raw.mcore_gpt,
        reason="recompute_granularity = full needs recompute_num_layers",
        fix="add recompute_num_layers 1",
        source=config(792, 843, 922, 1172, 1352, 1562, 1742),
        example="recompute_granularity=full",
    ),
    "selective_num_layers": clash(
        "recompute_granularity=selective",
        "recompute_num_layers",
        "drop recompute_num_layers: selective recompute acts on every layer",
        source=config(799, 850, 929, 1179, 1359, 1569, 1749),
        example="recompute_granularity=selective recompute_num_layers=2",
    ),
    "distribute_with_sequence_parallel": Rule(
        given=lambda raw, _: raw.recompute_granularity is not None,
        when=lambda raw, _: raw.distribute_saved_activations and raw.sequence_parallel,
        reason="distribute_saved_activations cannot be combined with sequence_parallel, which "
        "already splits the activations",
        fix="drop distribute_saved_activations",
        source=config(807, 858, 937, 1187, 1367, 1577, 1757),
        example="recompute_granularity=full distribute_saved_activations=true "
        "sequence_parallel=true",
    ),
    "recompute_modules": Rule(
        summary="The release must know every recompute module.",
        when=_unknown_modules,
        reason="recompute_modules {found}: not accepted by {revision.label}",
        fix="{found.advice}",
        source=config(819, 878, 957, 1207, 1387, 1597, 1778),
        example="recompute_granularity=selective recompute_modules=attention",
    ),
}


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


_FULL: Final = "megatron-core 0.19.2 recompute.py:160-190"
_CONFIG: Final = "megatron-core 0.16.1 transformer_config.py:1193-1196"
_OFFLOAD: Final = "megatron-core 0.16.1 transformer_config.py:1268-1292"
_BLOCK: Final = "megatron-core 0.16.1 transformer_block.py"

UNREAD_RULES: Final[dict[str, Rule]] = {
    "modules_without_selective": ignored(
        summary="recompute_modules is used only with recompute_granularity selective.",
        when=_unread_modules,
        reason="recompute_modules {modules} is ignored: recompute_granularity is {granularity}",
        fix="set recompute_granularity selective, or drop recompute_modules",
        source=_CONFIG,
        example="recompute_modules=mlp",
    ),
    "method_without_full": ignored(
        summary="recompute_method and recompute_num_layers need recompute_granularity.",
        given=lambda raw, _: raw.recompute_granularity is None and not raw.moe_layer_recompute,
        when=_unread_method,
        reason="{found} without recompute_granularity: nothing is recomputed",
        fix="set recompute_granularity full, or drop {found}",
        source="megatron-core 0.16.1 transformer_config.py:1154",
        example="recompute_num_layers=2",
    ),
    "method_with_selective": ignored(
        summary="TransformerConfig ignores recompute_method under selective recompute.",
        # Megatron-LM's arguments refuse a method, and NeMo 1's own transformer demands it.
        given=lambda _, revision: (
            revision.framework != Framework.MEGATRON_LM and revision.version != "1"
        ),
        when=lambda raw, _: raw.selective and raw.recompute_method is not None,
        reason="recompute_method = {raw.recompute_method} is ignored by selective recompute",
        fix="drop recompute_method",
        source=_BLOCK,
        example="recompute_granularity=selective recompute_method=block",
    ),
    "selective_without_modules": ignored(
        given=lambda _, revision: (
            revision.framework != Framework.MEGATRON_LM or not revision.at_least(0, 16)
        ),
        when=lambda raw, _: (
            raw.selective and raw.recompute_modules == () and not raw.moe_layer_recompute
        ),
        reason="selective recompute with an empty recompute_modules recomputes nothing",
        fix="name modules, or drop recompute_granularity",
        source=_CONFIG,
        example="recompute_granularity=selective recompute_modules=",
    ),
    "distribute_ignored": ignored(
        summary="TransformerConfig uses distribute_saved_activations only with full recompute "
        "and TP.",
        given=lambda raw, revision: (
            raw.distribute_saved_activations and revision.framework != Framework.MEGATRON_LM
        ),
        when=_why_not_distributed,
        reason="distribute_saved_activations is ignored: {found}",
        fix="drop distribute_saved_activations",
        source=_BLOCK,
        example="distribute_saved_activations=true",
    ),
    "block_without_layers": ignored(
        summary="block with recompute_num_layers below 1 recomputes nothing.",
        given=lambda raw, _: raw.full and raw.recompute_method == "block",
        when=lambda raw, _: raw.recompute_num_layers is not None and raw.recompute_num_layers <= 0,
        reason="block recompute with recompute_num_layers = {raw.recompute_num_layers} recomputes "
        "nothing",
        fix="use recompute_num_layers 1 or more, or drop recompute_granularity",
        source=_FULL,
        example="recompute_method=block recompute_num_layers=0 recompute_granularity=full",
    ),
    "more_layers_than_chunk": noted(
        summary="recompute_num_layers above the layers of a model chunk means all of them.",
        when=_more_layers_than_chunk,
        reason="recompute_num_layers = {raw.recompute_num_layers} exceeds the {found} layers of "
        "a model chunk, so it means {found}",
        fix="use recompute_num_layers {found}",
        source=_FULL,
        example="recompute_granularity=full recompute_num_layers=9 num_layers=8",
    ),
    "offload_without_switch": ignored(
        summary="offload_modules is used only with fine_grained_activation_offloading.",
        when=lambda raw, _: not raw.fine_grained_activation_offloading and raw.offload_modules,
        reason="offload_modules {found} is ignored: fine_grained_activation_offloading is off",
        fix="set fine_grained_activation_offloading, or drop offload_modules",
        source=_OFFLOAD,
        example="offload_modules=core_attn",
    ),
    "offload_of_recomputed": noted(
        summary="Offloading a recomputed module is accepted silently.",
        given=lambda raw, _: raw.fine_grained_activation_offloading,
        when=_recomputed_and_offloaded,
        reason="both recomputed and offloaded: {found}",
        fix="choose one of the two for each module",
        source=_OFFLOAD,
        example="fine_grained_activation_offloading=true offload_modules=core_attn "
        "recompute_granularity=full",
    ),
}
"""Fields first, then whole layers and offloading."""
