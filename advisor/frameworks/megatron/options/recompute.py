"""Options of activation recompute, of activations kept on the host, and of CUDA graphs."""

from typing import Final

from msgspec.structs import replace

from advisor.frameworks.megatron.options import values
from advisor.frameworks.megatron.options.section import Section
from advisor.frameworks.option import (
    ALWAYS,
    DIFFERENT,
    EMITTED,
    ON_LINE,
    SET_IN_RECIPES,
    Status,
    checked,
    option,
)
from advisor.job.job import CudaGraphImpl

CHECKPOINT: Final = "model.activations_checkpoint_"
"""How NeMo 1's keys of recompute begin."""

_OFFLOAD: Final = replace(EMITTED, nemo="")
_NEMO_1: Final = "used only by NeMo 1"


class Recompute(Section, title="Recompute and activation offload"):
    """Options of recompute and offload: `ours` is a part of a setting as --recompute spells it."""

    recompute_granularity: str | None = option(
        None, "recompute.granularity", SET_IN_RECIPES, nemo_1=CHECKPOINT + "granularity"
    )
    recompute_modules: tuple[str, ...] | None = option(
        None, "recompute.modules", SET_IN_RECIPES, strict=True, nemo_1="", since="0.12"
    )
    recompute_method: str | None = option(
        None, "recompute.method", SET_IN_RECIPES, nemo_1=CHECKPOINT + "method"
    )
    recompute_num_layers: int | None = option(
        None, "recompute.num_layers", SET_IN_RECIPES, nemo_1=CHECKPOINT + "num_layers"
    )
    distribute_saved_activations: bool = option(
        False, "recompute", EMITTED, nemo_1="", older={"0.15": None}
    )
    fine_grained_activation_offloading: bool = option(
        False, "recompute.offload_modules", _OFFLOAD, strict=True, since="0.16"
    )
    offload_modules: tuple[str, ...] = option((), "recompute", _OFFLOAD, strict=True, since="0.16")
    cpu_offloading: bool = option(
        False, "recompute.cpu_offloading_num_layers", flag="", recipe=DIFFERENT
    )
    cpu_offloading_weights: bool = option(
        False, "recompute.cpu_offloading_num_layers", flag="", recipe=ALWAYS, older={"0.14": True}
    )
    cpu_offloading_num_layers: int = option(0, "recompute", EMITTED)
    moe_layer_recompute: bool = checked(False, "an old name of recompute_modules moe")
    recompute_activations: bool = checked(False, "Megatron-LM's shorthand of selective recompute")
    checkpoint_activations: bool = checked(False, "an old name, refused by Megatron-LM")
    num_micro_batches_with_partial_activation_checkpoints: int | None = checked(
        None, _NEMO_1, flag="", bridge=""
    )
    activations_checkpoint_layers_per_pipeline: int | None = checked(
        None, _NEMO_1, flag="", bridge=""
    )
    mcore_gpt: bool = checked(
        True, "selects the transformer of NeMo 1: Megatron Core's or its own", flag="", bridge=""
    )
    fine_grained_offloading_max_inflight_offloads: int | None = checked(
        None,
        "offload copies are modelled as finished before their memory is needed",
        Status.UNPRICED,
        since="0.18",
    )
    activation_offload_fraction: float = option(
        1.0, "recompute.offload_fraction", _OFFLOAD, strict=True, since="0.19"
    )
    moe_paged_stash: bool = checked(
        False, "a stash of the experts' activations is not modelled", Status.UNPRICED, since="0.18"
    )
    expandable_segments: bool = option(False, "job", flag="", bridge="")
    world_size: int | None = checked(None, "the number of GPUs", flag="", bridge="")
    packed_sequences: bool = option(
        False,
        "job.mean_packed_length",
        value=lambda job, _: job.config.is_packed,
        flag="",
        bridge="",
    )
    transformer_engine_version: str = option("", "job", flag="", bridge="")


_OLD: Final = replace(SET_IN_RECIPES, nemo_1="")


class CudaGraphs(Section, title="CUDA graphs"):
    """Options of CUDA graphs."""

    cuda_graph_impl: str = option(
        "none", "job", SET_IN_RECIPES, value=values.graph_impl, strict=True, since="0.15"
    )
    external_cuda_graph: bool = option(
        False,
        "job.cuda_graph_impl",
        _OLD,
        value=values.old_graphs(CudaGraphImpl.TRANSFORMER_ENGINE),
    )
    enable_cuda_graph: bool = option(
        False, "job.cuda_graph_impl", _OLD, value=values.old_graphs(CudaGraphImpl.LOCAL)
    )
    cuda_graph_modules: tuple[str, ...] = option(
        (),
        "job",
        values.emitted_where(
            lambda job: job.config.cuda_graph_impl is not CudaGraphImpl.NONE, nemo_1=""
        ),
        config="full",
        value=values.graph_modules,
        strict=True,
        since="0.12",
        was="cuda_graph_scope",
        renamed="0.18",
        recipe_value=values.graph_modules_of_recipe,
    )
    check_for_nan_in_loss_and_grad: bool = option(
        True, "job.cuda_graph_impl", ON_LINE, value=values.checks_for_nan, bridge=""
    )
    cuda_graph_warmup_steps: int = checked(3, "warm-up steps before the capture are not modelled")
