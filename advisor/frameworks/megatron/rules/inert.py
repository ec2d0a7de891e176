"""Settings that are accepted and do nothing, or less than they seem to."""

from typing import Final

from advisor.frameworks.megatron.raw import RawSettings
from advisor.frameworks.megatron.revisions import Revision
from advisor.frameworks.megatron.rules.finding import Authority, Problem, Rule, Verdict, names
from advisor.job.job import Framework

_PROMOTED: Final = ("core_attn",)


def recompute_activations(raw: RawSettings, revision: Revision) -> Problem | None:
    """--recompute-activations is short for selective, whatever granularity is given beside it."""
    if not raw.recompute_activations:
        return None
    return Problem(
        "--recompute-activations means recompute_granularity selective and overrides the one given",
        "write --recompute-granularity selective --recompute-modules with the modules you mean",
    )


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
    """TransformerConfig ignores recompute_method under selective recompute."""
    # Megatron-LM's arguments refuse it, and NeMo 1's own transformer demands it.
    meant = revision.framework is Framework.MEGATRON_LM or revision.version == "1"
    if meant or not raw.selective or raw.recompute_method is None:
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
        (distribute_ignored, Verdict.NO_EFFECT, "megatron-core 0.16.1 transformer_block.py"),
        (block_without_layers, Verdict.NO_EFFECT, _FULL),
        (more_layers_than_chunk, Verdict.NOTE, _FULL),
        (offload_without_switch, Verdict.NO_EFFECT, _OFFLOAD),
        (offload_of_recomputed, Verdict.NOTE, _OFFLOAD),
    )
)
"""Fields first, then whole layers and offloading."""
