"""Degrees of parallelism, the split of the layers over pipeline stages, and communication inside a
model: of tensor, pipeline and expert parallelism."""

from typing import Final

from advisor.frameworks.megatron.options import values
from advisor.frameworks.megatron.options.section import Section
from advisor.frameworks.option import (
    ALWAYS,
    DIFFERENT,
    EMITTED,
    ON_LINE,
    WITH_LAYOUT,
    Emitted,
    Format,
    Status,
    When,
    checked,
    option,
)

STRATEGY: Final = "trainer.strategy"
"""Where NeMo 2 keeps degrees of parallelism: its MegatronStrategy."""

DEGREE: Final = Emitted(line=WITH_LAYOUT, recipe=ALWAYS, nemo=STRATEGY)
_SWITCH: Final = Emitted(line=DIFFERENT, recipe=ALWAYS, nemo=STRATEGY)
_OVERLAP: Final = Emitted(line=DIFFERENT, recipe=DIFFERENT, bridge="comm_overlap", nemo_1="")
_SPLIT: Final = Emitted(line=DIFFERENT, recipe=DIFFERENT, nemo=STRATEGY, order=1)


class Parallelism(Section, title="Degrees of parallelism"):
    """Options of degrees of parallelism and of the pipeline's split."""

    tensor_model_parallel_size: int = option(1, "layout", DEGREE)
    sequence_parallel: bool = option(False, "layout", _SWITCH)
    tp_comm_overlap: bool = option(
        False,
        "layout",
        _OVERLAP,
        # refused without sequence parallelism (Megatron-LM arguments.py), nothing without TP
        value=lambda job, _: job.layout.tp_comm_overlap and job.layout.sequence_parallel,
        nemo_1="model.ub_tp_comm_overlap",
        order=2,
    )
    context_parallel_size: int = option(1, "layout", DEGREE)
    cp_comm_type: tuple[str, ...] = option(
        (),
        "layout",
        EMITTED,
        value=values.cp_comm_types,
        means=values.one_of_all,
        launcher=("p2p",),
        nemo_1="",
        format=Format.SINGLE,
    )
    hierarchical_context_parallel_sizes: tuple[str, ...] = option(
        (),
        "layout",
        EMITTED,
        value=lambda job, _: tuple(map(str, job.layout.hierarchical_context_parallel_sizes or ())),
        means=",".join,
        in_nemo=False,
    )
    pipeline_model_parallel_size: int = option(1, "layout", DEGREE)
    num_layers_per_virtual_pipeline_stage: int | None = option(
        None,
        "layout.virtual_pipeline_model_parallel_size",
        ON_LINE,
        value=values.layers_of_virtual_stage,
        bridge="",
    )
    virtual_pipeline_model_parallel_size: int | None = option(
        None,
        "layout",
        _SWITCH,
        value=values.virtual_stages,
        flag="--num-virtual-stages-per-pipeline-rank",
        line=When(only_if=values.has_chunks_by_number),
    )
    num_layers_in_first_pipeline_stage: int | None = option(
        None, "layout", _SPLIT, flag="--decoder-first-pipeline-num-layers"
    )
    num_layers_in_last_pipeline_stage: int | None = option(
        None, "layout", _SPLIT, flag="--decoder-last-pipeline-num-layers"
    )
    account_for_embedding_in_pipeline_split: bool = option(False, "layout", _SPLIT)
    account_for_loss_in_pipeline_split: bool = option(False, "layout", _SPLIT)
    pipeline_model_parallel_layout: str | None = option(
        None,
        "layout",
        _SPLIT,
        value=lambda job, _: job.layout.pipeline_model_parallel_layout or None,
        strict=True,
        format=Format.QUOTED,
        since="0.13",
    )


class Communication(Section, title="Communication"):
    """Options of communication; degrees are in Parallelism, data parallelism in DataParallel."""

    overlap_moe_expert_parallel_comm: bool = option(
        False, "layout", _OVERLAP, strict=True, since="0.14"
    )
    delay_wgrad_compute: bool = option(False, "layout", _OVERLAP, strict=True, since="0.13")
    defer_embedding_wgrad_compute: bool = checked(
        False, "the output layer's weight gradient is not modelled as deferred", Status.UNPRICED
    )
