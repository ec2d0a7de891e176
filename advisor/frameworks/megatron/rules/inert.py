"""Settings that are accepted and do nothing, less than they seem to, or something else."""

from typing import Final

from advisor.frameworks.megatron.raw import RawSettings
from advisor.frameworks.megatron.revisions import Revision
from advisor.frameworks.megatron.rules.finding import Authority, Problem, Rule, Verdict, names
from advisor.job import Framework

_MOE_LABELS: Final = ("moe_act", "moe", "shared_experts")
_PROMOTED: Final = ("core_attn",)


def modules_without_selective(raw: RawSettings, revision: Revision) -> Problem | None:
    """recompute_modules is read under granularity selective only."""
    modules = raw.recompute_modules
    # A dumped configuration shows the promoted default even where nothing is recomputed.
    if raw.selective or not modules or modules == _PROMOTED:
        return None
    granularity = raw.recompute_granularity or "unset"
    return Problem(
        f"recompute_modules {names(modules)} is ignored: recompute_granularity is {granularity}",
        "set recompute_granularity selective, or drop recompute_modules",
    )


def method_without_full(raw: RawSettings, revision: Revision) -> Problem | None:
    """recompute_method and recompute_num_layers are read under a granularity only."""
    given = [
        f"{field} = {value}"
        for field, value in (
            ("recompute_method", raw.recompute_method),
            ("recompute_num_layers", raw.recompute_num_layers),
        )
        if value is not None
    ]
    if raw.recompute_granularity is not None or not given or raw.moe_layer_recompute:
        return None
    return Problem(
        f"{' and '.join(given)} without recompute_granularity: nothing is recomputed",
        "set recompute_granularity full, or drop them",
    )


def method_with_selective(raw: RawSettings, revision: Revision) -> Problem | None:
    """TransformerConfig ignores recompute_method under selective; Megatron-LM refuses it."""
    refused = revision.framework is Framework.MEGATRON_LM
    if refused or not raw.selective or raw.recompute_method is None:
        return None
    return Problem(
        f"recompute_method = {raw.recompute_method} is ignored by selective recompute",
        "drop recompute_method",
    )


def selective_without_modules(raw: RawSettings, revision: Revision) -> Problem | None:
    """selective with an empty list recomputes nothing (Megatron-LM's arguments have none)."""
    if revision.framework is Framework.MEGATRON_LM and revision.at_least(0, 16):
        return None
    if not raw.selective or raw.recompute_modules != () or raw.moe_layer_recompute:
        return None
    return Problem(
        "selective recompute with an empty recompute_modules recomputes nothing",
        "name modules, or drop recompute_granularity",
    )


def promoted_core_attn(raw: RawSettings, revision: Revision) -> Problem | None:
    """selective with recompute_modules unset means core_attn."""
    if not raw.selective or raw.recompute_modules is not None:
        return None
    return Problem(
        "recompute_modules is unset, which Megatron promotes to core_attn",
        "name the modules that you mean",
    )


def core_attn_under_flash(raw: RawSettings, revision: Revision) -> Problem | None:
    """core_attn frees next to nothing where flash or fused attention keeps no scores."""
    if not raw.selective or "core_attn" not in raw.effective_modules:
        return None
    backend = raw.attention_backend
    local_scores = raw.transformer_impl == "local" and backend == "auto"
    if backend in ("unfused", "local") or local_scores:
        return None
    return Problem(
        f"core_attn with attention_backend = {backend} frees only the softmax statistics and "
        "costs a second forward of attention",
        "drop core_attn",
    )


def layernorm_on_te(raw: RawSettings, revision: Revision) -> Problem | None:
    """layernorm does nothing on Transformer Engine's dense layer, whose norms are fused."""
    dense = raw.num_moe_experts is None and not raw.multi_latent_attention
    if not raw.selective or "layernorm" not in raw.effective_modules or not dense:
        return None
    if raw.transformer_impl != "transformer_engine":
        return None
    return Problem(
        "layernorm does nothing with transformer_impl = transformer_engine: both norms of a dense "
        "layer are fused into the linear layers that follow",
        "drop layernorm",
    )


def moe_labels_on_dense(raw: RawSettings, revision: Revision) -> Problem | None:
    """moe, shared_experts and moe_act do nothing in a dense model."""
    if not raw.selective or raw.num_moe_experts is not None:
        return None
    labels = [m for m in _MOE_LABELS if m in raw.effective_modules]
    if not labels:
        return None
    verb = "does" if len(labels) == 1 else "do"
    return Problem(f"{names(labels)} {verb} nothing in a dense model", f"drop {names(labels)}")


def gdp_labels_without_gdp(raw: RawSettings, revision: Revision) -> Problem | None:
    """gdp_in_proj and gdp_qkv do nothing in a model without that attention."""
    labels = [m for m in ("gdp_in_proj", "gdp_qkv") if m in raw.effective_modules]
    if not raw.selective or not labels or raw.experimental_attention_variant:
        return None
    return Problem(f"{names(labels)}: the model has no such attention", f"drop {names(labels)}")


def distribute_ignored(raw: RawSettings, revision: Revision) -> Problem | None:
    """TransformerConfig reads distribute_saved_activations under full recompute with TP only."""
    wanted = raw.distribute_saved_activations
    if revision.framework is Framework.MEGATRON_LM or not wanted:
        return None
    if raw.full and raw.tensor_model_parallel_size > 1:
        return None
    why = (
        f"recompute_granularity is {raw.recompute_granularity or 'unset'}, not full"
        if not raw.full
        else "tensor_model_parallel_size is 1"
    )
    return Problem(
        f"distribute_saved_activations is ignored: {why}", "drop distribute_saved_activations"
    )


def block_without_layers(raw: RawSettings, revision: Revision) -> Problem | None:
    """block with recompute_num_layers below 1 recomputes nothing."""
    number = raw.recompute_num_layers
    if not raw.full or raw.recompute_method != "block" or number is None or number > 0:
        return None
    return Problem(
        f"block recompute with recompute_num_layers = {number} recomputes nothing",
        "use recompute_num_layers 1 or more, or drop recompute_granularity",
    )


def more_layers_than_chunk(raw: RawSettings, revision: Revision) -> Problem | None:
    """recompute_num_layers beyond the model chunk means all of its layers."""
    number, layers = raw.recompute_num_layers, raw.layers_per_chunk
    if not raw.full or number is None or layers is None or number <= layers:
        return None
    if raw.recompute_method == "uniform" and revision.uniform_must_divide:
        return None
    return Problem(
        f"recompute_num_layers = {number} is more than the {layers} layers of a model chunk, and "
        f"means {layers}",
        f"use recompute_num_layers {layers}",
    )


def offload_without_switch(raw: RawSettings, revision: Revision) -> Problem | None:
    """offload_modules is read under fine_grained_activation_offloading only."""
    if raw.fine_grained_activation_offloading or not raw.offload_modules:
        return None
    return Problem(
        f"offload_modules {names(raw.offload_modules)} is ignored: "
        "fine_grained_activation_offloading is off",
        "set fine_grained_activation_offloading, or drop offload_modules",
    )


def offload_of_recomputed(raw: RawSettings, revision: Revision) -> Problem | None:
    """Offloading what is recomputed anyway is accepted silently."""
    if not raw.fine_grained_activation_offloading or not raw.offload_modules:
        return None
    both = [m for m in raw.offload_modules if raw.selective and m in raw.effective_modules]
    if not raw.full and not both:
        return None
    what = names(both) if both else "every layer"
    return Problem(
        f"{what} is both recomputed and offloaded", "choose one of the two for each module"
    )


def recompute_activations(raw: RawSettings, revision: Revision) -> Problem | None:
    """--recompute-activations is short for selective, whatever granularity is given beside it."""
    if not raw.recompute_activations:
        return None
    return Problem(
        "--recompute-activations means recompute_granularity selective and overrides the one given",
        "write --recompute-granularity selective --recompute-modules with the modules you mean",
    )


def output_discarding_extension(raw: RawSettings, revision: Revision) -> Problem | None:
    """From 0.17 on, output-discarding recompute compiles a C++ extension at its first backward."""
    acts = raw.selective and "layernorm" in raw.effective_modules
    if not acts or raw.transformer_impl != "local" or not revision.at_least(0, 17):
        return None
    return Problem(
        "layernorm recompute compiles a C++ extension at the first backward and needs Transformer "
        "Engine importable, g++ and ninja",
        "install them on every node",
    )


_LAYER: Final = "megatron-core 0.16.1 transformer_layer.py:382-447"
_FULL: Final = "megatron-core 0.19.2 recompute.py:160-190"
_CONFIG: Final = "megatron-core 0.16.1 transformer_config.py:1193-1196"
_OFFLOAD: Final = "megatron-core 0.16.1 transformer_config.py:1268-1292"

RULES: Final = tuple(
    Rule(check.__name__, verdict, Authority.TRAINING, check, source)
    for check, verdict, source in (
        (recompute_activations, Verdict.NOTE, ""),
        (modules_without_selective, Verdict.NO_EFFECT, _CONFIG),
        (method_without_full, Verdict.NO_EFFECT, "megatron-core 0.16.1 transformer_config.py:1154"),
        (method_with_selective, Verdict.NO_EFFECT, "megatron-core 0.16.1 transformer_block.py"),
        (selective_without_modules, Verdict.NO_EFFECT, _CONFIG),
        (promoted_core_attn, Verdict.NOTE, _CONFIG),
        (
            core_attn_under_flash,
            Verdict.BUYS_NOTHING,
            "megatron-core 0.16.1 transformer_config.py:1224",
        ),
        (layernorm_on_te, Verdict.NO_EFFECT, _LAYER),
        (moe_labels_on_dense, Verdict.NO_EFFECT, "megatron-core 0.16.1 moe/moe_layer.py"),
        (gdp_labels_without_gdp, Verdict.NO_EFFECT, "Megatron-LM main d98e8a6"),
        (distribute_ignored, Verdict.NO_EFFECT, "megatron-core 0.16.1 transformer_block.py"),
        (block_without_layers, Verdict.NO_EFFECT, _FULL),
        (more_layers_than_chunk, Verdict.NOTE, _FULL),
        (offload_without_switch, Verdict.NO_EFFECT, _OFFLOAD),
        (offload_of_recomputed, Verdict.NOTE, _OFFLOAD),
        (output_discarding_extension, Verdict.NOTE, "megatron-core 0.17.1 random.py:65-75"),
    )
)
"""Fields first, then modules, then whole layers and offloading."""
