"""Settings that are accepted and do nothing, less than they seem to, or more than was written."""

from functools import partial
from typing import Final

from advisor.frameworks.megatron.raw import RawSettings, graphs_of
from advisor.frameworks.megatron.revisions import Revision
from advisor.frameworks.megatron.rules.conditions import replayed, selects
from advisor.frameworks.megatron.rules.rule import (
    Authority,
    Guard,
    Problem,
    Rule,
    Verdict,
    arguments,
    function,
    names,
)
from advisor.job import Framework

_ignored = partial(Guard, authority=Authority.TRAINING, verdict=Verdict.NO_EFFECT)
_noted = partial(Guard, authority=Authority.TRAINING, verdict=Verdict.NOTE)
_promoted = partial(Guard, authority=Authority.TRAINING, verdict=Verdict.PROMOTED)
_FULL: Final = "megatron-core 0.19.2 recompute.py:160-190"
_CONFIG: Final = "megatron-core 0.16.1 transformer_config.py:1193-1196"
_OFFLOAD: Final = "megatron-core 0.16.1 transformer_config.py:1268-1292"
_BLOCK: Final = "megatron-core 0.16.1 transformer_block.py"


def _modules_without_selective(raw: RawSettings, _: Revision) -> Problem | None:
    """recompute_modules is read under granularity selective only."""
    modules = raw.recompute_modules
    # A dumped configuration shows the promoted default even where nothing is recomputed.
    if raw.selective or not modules or modules == ("core_attn",):
        return None
    granularity = raw.recompute_granularity or "unset"
    return Problem(
        f"recompute_modules {names(modules)} is ignored: recompute_granularity is {granularity}",
        "set recompute_granularity selective, or drop recompute_modules",
    )


def _unread_method(raw: RawSettings, _: Revision) -> str:
    """The fields of full recompute that are set."""
    fields = {
        "recompute_method": raw.recompute_method,
        "recompute_num_layers": raw.recompute_num_layers,
    }
    return " and ".join(f"{name} = {value}" for name, value in fields.items() if value is not None)


def _reads_method(raw: RawSettings, revision: Revision) -> bool:
    """Megatron-LM's arguments refuse a method, and NeMo 1's own transformer demands it."""
    return revision.framework is Framework.MEGATRON_LM or revision.version == "1"


def _takes_no_empty_list(raw: RawSettings, revision: Revision) -> bool:
    return revision.framework is Framework.MEGATRON_LM and revision.at_least(0, 16)


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


FIELD_RULES: Final[dict[str, Rule]] = {
    "recompute_activations": _noted(
        summary="--recompute-activations is short for selective, whatever granularity is given "
        "beside it.",
        when=lambda raw, _: raw.recompute_activations,
        reason="--recompute-activations means recompute_granularity selective and overrides the "
        "one given",
        fix="write --recompute-granularity selective --recompute-modules with the modules you mean",
        source=arguments(498, 605, 589),
    ),
    "modules_without_selective": function(
        _modules_without_selective, _CONFIG, Verdict.NO_EFFECT, Authority.TRAINING
    ),
    "method_without_full": _ignored(
        summary="recompute_method and recompute_num_layers are read under a granularity only.",
        given=lambda raw, _: raw.recompute_granularity is None and not raw.moe_layer_recompute,
        when=_unread_method,
        reason="{found} without recompute_granularity: nothing is recomputed",
        fix="set recompute_granularity full, or drop them",
        source="megatron-core 0.16.1 transformer_config.py:1154",
    ),
    "method_with_selective": _ignored(
        summary="TransformerConfig ignores recompute_method under selective recompute.",
        given=lambda raw, revision: not _reads_method(raw, revision),
        when=lambda raw, _: raw.selective and raw.recompute_method is not None,
        reason="recompute_method = {raw.recompute_method} is ignored by selective recompute",
        fix="drop recompute_method",
        source=_BLOCK,
    ),
    "selective_without_modules": _ignored(
        summary="selective with an empty list recomputes nothing (Megatron-LM's arguments have "
        "none).",
        given=lambda raw, revision: not _takes_no_empty_list(raw, revision),
        when=lambda raw, _: (
            raw.selective and raw.recompute_modules == () and not raw.moe_layer_recompute
        ),
        reason="selective recompute with an empty recompute_modules recomputes nothing",
        fix="name modules, or drop recompute_granularity",
        source=_CONFIG,
    ),
    "distribute_ignored": _ignored(
        summary="TransformerConfig reads distribute_saved_activations under full recompute with TP "
        "only.",
        given=lambda raw, revision: (
            raw.distribute_saved_activations and revision.framework is not Framework.MEGATRON_LM
        ),
        when=_why_not_distributed,
        reason="distribute_saved_activations is ignored: {found}",
        fix="drop distribute_saved_activations",
        source=_BLOCK,
    ),
    "block_without_layers": _ignored(
        summary="block with recompute_num_layers below 1 recomputes nothing.",
        given=lambda raw, _: raw.full and raw.recompute_method == "block",
        when=lambda raw, _: raw.recompute_num_layers is not None and raw.recompute_num_layers <= 0,
        reason="block recompute with recompute_num_layers = {raw.recompute_num_layers} recomputes "
        "nothing",
        fix="use recompute_num_layers 1 or more, or drop recompute_granularity",
        source=_FULL,
    ),
    "more_layers_than_chunk": _noted(
        summary="recompute_num_layers beyond the model chunk means all of its layers.",
        when=_more_layers_than_chunk,
        reason="recompute_num_layers = {raw.recompute_num_layers} is more than the {found} layers "
        "of a model chunk, and means {found}",
        fix="use recompute_num_layers {found}",
        source=_FULL,
    ),
    "offload_without_switch": _ignored(
        summary="offload_modules is read under fine_grained_activation_offloading only.",
        given=lambda raw, _: not raw.fine_grained_activation_offloading,
        when=lambda raw, _: raw.offload_modules,
        reason="offload_modules {found} is ignored: fine_grained_activation_offloading is off",
        fix="set fine_grained_activation_offloading, or drop offload_modules",
        source=_OFFLOAD,
    ),
    "offload_of_recomputed": _noted(
        summary="Offloading what is recomputed anyway is accepted silently.",
        given=lambda raw, _: raw.fine_grained_activation_offloading,
        when=_recomputed_and_offloaded,
        reason="{found} is both recomputed and offloaded",
        fix="choose one of the two for each module",
        source=_OFFLOAD,
    ),
}
"""Fields first, then whole layers and offloading."""


def _keeps_no_scores(raw: RawSettings, _: Revision) -> bool:
    """Whether flash or fused attention runs."""
    local_scores = raw.transformer_impl == "local" and raw.attention_backend == "auto"
    return raw.attention_backend not in ("unfused", "local") and not local_scores


def _moe_labels_on_dense(raw: RawSettings, _: Revision) -> Problem | None:
    """moe, shared_experts and moe_act do nothing in a dense model."""
    labels = replayed(raw, "moe_act", "moe", "shared_experts")
    if raw.num_moe_experts is not None or not labels:
        return None
    said, verb = names(labels), "does" if len(labels) == 1 else "do"
    return Problem(f"{said} {verb} nothing in a dense model", f"drop {said}")


def _norm_outside_router_graph(raw: RawSettings, revision: Revision) -> bool:
    """Whether Transformer Engine's graph of moe_router holds the norm before it."""
    graphs = graphs_of(raw, revision)
    if graphs.impl != "transformer_engine" or "moe_router" not in graphs.modules:
        return False
    preprocess = "moe_preprocess" in graphs.modules and raw.moe_token_dispatcher_type == "alltoall"
    return raw.moe_shared_expert_overlap or not preprocess


_LAYER: Final = "megatron-core 0.16.1 transformer_layer.py:382-447"
_EXPERTS: Final = "megatron-core 0.16.1 moe/moe_layer.py"

LABEL_RULES: Final[dict[str, Rule]] = {
    "promoted_core_attn": _promoted(
        summary="selective with recompute_modules unset means core_attn.",
        given=lambda raw, _: raw.selective and raw.recompute_modules is None,
        when=lambda _, revision: revision.recompute_modules,
        reason="recompute_modules is unset, which Megatron promotes to core_attn",
        fix="name the modules that you mean",
        source=_CONFIG,
    ),
    "promoted_moe_layer": _promoted(
        summary="moe_layer_recompute means selective of moe and of the modules that stand there "
        "already.",
        given=lambda raw, _: raw.moe_layer_recompute and not raw.full,
        when=lambda raw, revision: revision.at_least(0, 12) and raw.recomputed_modules,
        reason="moe_layer_recompute is promoted to selective recompute of {found}",
        fix="write recompute_granularity selective and recompute_modules moe",
        source=_CONFIG,
    ),
    "core_attn_under_flash": Guard(
        summary="core_attn frees next to nothing where flash or fused attention keeps no scores.",
        given=lambda raw, _: selects(raw, "core_attn"),
        when=_keeps_no_scores,
        reason="core_attn with attention_backend = {raw.attention_backend} frees only the softmax "
        "statistics and costs a second forward of attention",
        fix="drop core_attn",
        verdict=Verdict.BUYS_NOTHING,
        authority=Authority.TRAINING,
        source="megatron-core 0.16.1 transformer_config.py:1224",
    ),
    "layernorm_on_te": _ignored(
        summary="layernorm does nothing on Transformer Engine's dense layer, whose norms are "
        "fused.",
        given=lambda raw, _: raw.num_moe_experts is None and not raw.multi_latent_attention,
        when=lambda raw, _: (
            selects(raw, "layernorm") and raw.transformer_impl == "transformer_engine"
        ),
        reason="layernorm does nothing with transformer_impl = transformer_engine: both norms of a "
        "dense layer are fused into the linear layers that follow",
        fix="drop layernorm",
        source=_LAYER,
    ),
    "moe_labels_on_dense": function(
        _moe_labels_on_dense, _EXPERTS, Verdict.NO_EFFECT, Authority.TRAINING
    ),
    "mlp_without_dense_layers": _ignored(
        summary="mlp does nothing where every layer is a mixture of experts.",
        when=lambda raw, _: replayed(raw, "mlp") and not raw.has_dense_mlp,
        reason="mlp does nothing: every layer is a mixture of experts, and mlp means the dense MLP",
        fix="drop mlp, or use moe, moe_act or shared_experts",
        source=_LAYER,
    ),
    "shared_experts_without_any": _ignored(
        summary="shared_experts does nothing in a model without shared experts.",
        given=lambda raw, _: raw.has_experts and raw.moe_shared_expert_intermediate_size is None,
        when=lambda raw, _: replayed(raw, "shared_experts"),
        reason="shared_experts does nothing: the model has none",
        fix="drop shared_experts",
        source=_EXPERTS,
    ),
    "moe_act_on_local": _ignored(
        summary="moe_act acts in Transformer Engine's grouped experts only.",
        given=lambda raw, _: raw.has_experts and raw.transformer_impl == "local",
        when=lambda raw, _: replayed(raw, "moe_act"),
        reason="moe_act does nothing with transformer_impl = local, whose experts run one by one",
        fix="drop moe_act",
        source="megatron-core 0.16.1 moe/experts.py",
    ),
    "parts_of_recomputed_moe": _noted(
        summary="What lies inside a recomputed MoE layer is replayed with it, and again by its own "
        "label.",
        given=lambda raw, _: raw.has_experts and replayed(raw, "moe"),
        when=lambda raw, _: replayed(raw, "moe_act", "shared_experts"),
        reason="{found} inside moe: replayed with it, and once more; only the working set of the "
        "replay shrinks",
        fix="drop {found} unless that working set decides",
        source=_EXPERTS,
    ),
    "layernorm_under_router_graph": _noted(
        summary="A TE graph of moe_router switches recompute of the norm before the MoE layer off.",
        given=lambda raw, revision: revision.at_least(0, 16) and replayed(raw, "layernorm"),
        when=_norm_outside_router_graph,
        reason="layernorm leaves the norm before the MoE layer alone, which the graph of "
        "moe_router holds",
        fix="capture moe_preprocess as well, with the alltoall dispatcher",
        source=_LAYER,
    ),
    "gdp_labels_without_gdp": _ignored(
        summary="gdp_in_proj and gdp_qkv do nothing in a model without that attention.",
        given=lambda raw, _: not raw.experimental_attention_variant,
        when=lambda raw, _: [m for m in ("gdp_in_proj", "gdp_qkv") if selects(raw, m)],
        reason="{found}: the model has no such attention",
        fix="drop {found}",
        source="Megatron-LM main d98e8a6",
    ),
    "output_discarding_extension": _noted(
        summary="From 0.17 on, output-discarding recompute compiles a C++ extension at its first "
        "backward.",
        given=lambda raw, revision: raw.transformer_impl == "local" and revision.at_least(0, 17),
        when=lambda raw, _: selects(raw, "layernorm"),
        reason="layernorm recompute compiles a C++ extension at the first backward and needs "
        "Transformer Engine importable, g++ and ninja",
        fix="install them on every node",
        source="megatron-core 0.17.1 random.py:65-75",
    ),
}
"""What single labels really do in a model. Promotions first."""
