"""Degrees of parallelism, and the split of the layers over pipeline stages."""

from typing import Final

from advisor.frameworks.megatron.options.values import (
    cp_comm_types,
    has_chunks_by_number,
    hierarchical_sizes,
    layers_of_virtual_stage,
    overlaps_tensor_parallel,
    split_text,
    virtual_stages,
)
from advisor.frameworks.option import (
    ALWAYS,
    DIFFERENT,
    EMITTED,
    ON_LINE,
    WITH_LAYOUT,
    Emitted,
    Format,
    Options,
    When,
    harmless,
    option,
    refused,
    unpriced,
)

STRATEGY: Final = "trainer.strategy"
"""Where NeMo 2 keeps degrees of parallelism: its MegatronStrategy."""

DEGREE: Final = Emitted(line=WITH_LAYOUT, recipe=ALWAYS, nemo=STRATEGY)
_SWITCH: Final = Emitted(line=DIFFERENT, recipe=ALWAYS, nemo=STRATEGY)
_SPLIT: Final = Emitted(line=DIFFERENT, recipe=DIFFERENT, nemo=STRATEGY, order=1)
_SHARDS: Final = "weights sharded over an additional group of ranks are not modelled"


class Parallelism(Options, title="Degrees of parallelism"):
    """Options of degrees of parallelism and of the pipeline's split."""

    tensor_model_parallel_size: int = option(1, "layout", DEGREE)
    sequence_parallel: bool = option(False, "layout", _SWITCH)
    tp_comm_overlap: bool = option(
        False,
        "layout",
        value=overlaps_tensor_parallel,
        emitted=EMITTED,
        bridge="comm_overlap.tp_comm_overlap",
        nemo_1="model.ub_tp_comm_overlap",
        order=2,
    )
    context_parallel_size: int = option(1, "layout", DEGREE)
    cp_comm_type: tuple[str, ...] = option(
        (),
        "layout",
        value=cp_comm_types,
        launcher=("p2p",),
        emitted=EMITTED,
        nemo_1="",
        format=Format.SINGLE,
    )
    hierarchical_context_parallel_sizes: tuple[str, ...] = option(
        (), "layout", EMITTED, value=hierarchical_sizes, in_nemo=False
    )
    pipeline_model_parallel_size: int = option(1, "layout", DEGREE)
    num_layers_per_virtual_pipeline_stage: int | None = option(
        None,
        "layout.virtual_pipeline_model_parallel_size",
        value=layers_of_virtual_stage,
        emitted=ON_LINE,
        bridge="",
    )
    virtual_pipeline_model_parallel_size: int | None = option(
        None,
        "layout",
        value=virtual_stages,
        flag="--num-virtual-stages-per-pipeline-rank",
        emitted=_SWITCH,
        line=When(only_if=has_chunks_by_number),
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
        None, "layout", _SPLIT, value=split_text, strict=True, format=Format.QUOTED, since="0.13"
    )
    pipeline_model_parallel_split_rank: int | None = refused(
        None, "encoder and decoder on separate stages are not modelled", until="0.13"
    )
    pipeline_model_parallel_comm_backend: str | None = unpriced(
        None, "pipeline messages are modelled with NCCL's bandwidth", since="0.12"
    )
    microbatch_group_size_per_vp_stage: int | None = unpriced(
        None,
        "the interleaved schedule is modelled with groups of PP microbatches",
        flag="--microbatch-group-size-per-virtual-pipeline-stage",
    )
    mtp_standalone: bool = unpriced(
        False, "multi-token prediction is modelled on the last stage", flag="", since="0.16"
    )
    hybrid_context_parallel: bool = refused(
        False, "a context-parallel degree per sample is not modelled", since="0.16"
    )
    max_seqlen_per_dp_cp_rank: int | None = refused(
        None, "a context-parallel degree per sample is not modelled", since="0.16"
    )
    variable_seq_lengths: bool = unpriced(
        False, "every microbatch is modelled with seq_length tokens", flag=""
    )
    tensor_parallel_num_weight_shards: int | None = refused(None, _SHARDS, since="0.19")
    gtp_weight_remat_size: int = refused(1, _SHARDS, flag="", since="0.19")
    expert_tensor_parallel_num_weight_shards: int | None = refused(None, _SHARDS, since="0.19")
    expert_gtp_weight_remat_size: int = refused(1, _SHARDS, flag="", since="0.19")
    moe_extended_tp: bool = harmless(
        False, "Megatron Core ignores the option since 0.10", until="0.16"
    )
    use_tp_pp_dp_mapping: bool = unpriced(False, "ranks are modelled in the order TP, CP, DP, PP")
    model_parallel_size: int | None = harmless(
        None, "an old name of tensor_model_parallel_size, refused by Megatron-LM"
    )
