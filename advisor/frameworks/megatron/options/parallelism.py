"""Degrees of parallelism, the split of the layers over pipeline stages, and communication inside a
model: of tensor, pipeline and expert parallelism."""

from typing import Final

from advisor.frameworks.megatron.options import values
from advisor.frameworks.option import (
    ALWAYS,
    CALLABLE,
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
_OVERLAP: Final = Emitted(line=DIFFERENT, recipe=DIFFERENT, bridge="comm_overlap", nemo_1="")
_SPLIT: Final = Emitted(line=DIFFERENT, recipe=DIFFERENT, nemo=STRATEGY, order=1)
_SHARDS: Final = "weights sharded over an additional group of ranks are not modelled"
_PER_SAMPLE: Final = "a context-parallel degree per sample is not modelled"


class Parallelism(Options, title="Degrees of parallelism"):
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
    hybrid_context_parallel: bool = refused(False, _PER_SAMPLE, since="0.16")
    max_seqlen_per_dp_cp_rank: int | None = refused(None, _PER_SAMPLE, since="0.16")
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


_USER_BUFFERS: Final = "tp_comm_overlap is modelled with Transformer Engine's own choices"
_ORDER: Final = "pipeline messages are modelled as Megatron-LM sends them"
_OVERLAPPED: Final = "used only with overlap_moe_expert_parallel_comm"
_PRIORITIES: Final = "streams are modelled without priorities"


class Communication(Options, title="Communication"):
    """Options of communication; degrees are in Parallelism, data parallelism in DataParallel."""

    tp_comm_bulk_wgrad: bool = unpriced(True, _USER_BUFFERS, off="--disable-tp-comm-bulk-wgrad")
    tp_comm_bulk_dgrad: bool = unpriced(True, _USER_BUFFERS, off="--disable-tp-comm-bulk-dgrad")
    tp_comm_overlap_ag: bool = unpriced(True, _USER_BUFFERS, off="--disable-tp-comm-overlap-ag")
    tp_comm_overlap_rs: bool = unpriced(True, _USER_BUFFERS, off="--disable-tp-comm-overlap-rs")
    tp_comm_overlap_rs_dgrad: bool = unpriced(False, _USER_BUFFERS)
    tp_comm_split_ag: bool = unpriced(True, _USER_BUFFERS, off="--disable-tp-comm-split-ag")
    tp_comm_atomic_ag: bool = unpriced(False, _USER_BUFFERS, flag="")
    tp_comm_split_rs: bool = unpriced(True, _USER_BUFFERS, off="--disable-tp-comm-split-rs")
    tp_comm_atomic_rs: bool = unpriced(False, _USER_BUFFERS, flag="")
    tp_comm_overlap_disable_qkv: bool = unpriced(False, _USER_BUFFERS, flag="")
    tp_comm_overlap_disable_fc1: bool = unpriced(False, _USER_BUFFERS, flag="")
    tp_comm_bootstrap_backend: str = harmless("nccl")
    tp_comm_overlap_cfg: str | None = unpriced(None, _USER_BUFFERS)
    async_tensor_model_parallel_allreduce: bool = unpriced(
        True,
        "input gradients are modelled as reduced while weight gradients are computed",
        until="0.16",
        older={"0.15": False},
    )
    symmetric_ar_type: str | None = harmless(None, "used only for inference", since="0.13")
    high_priority_a2a_comm_stream: bool = unpriced(False, _PRIORITIES, since="0.18")
    overlap_p2p_comm: bool = unpriced(False, _ORDER, flag="", off="--no-overlap-p2p-communication")
    batch_p2p_comm: bool = unpriced(True, _ORDER, flag="")
    batch_p2p_sync: bool = unpriced(True, _ORDER, flag="")
    use_ring_exchange_p2p: bool = unpriced(False, _ORDER)
    overlap_p2p_comm_warmup_flush: bool = unpriced(
        False, _ORDER, flag="--overlap-p2p-communication-warmup-flush"
    )
    deallocate_pipeline_outputs: bool = unpriced(
        False, "outputs are modelled as freed once sent; Megatron-LM always requests this", flag=""
    )
    scatter_gather_tensors_in_pipeline: bool = unpriced(True, _ORDER)
    overlap_moe_expert_parallel_comm: bool = option(
        False, "layout", _OVERLAP, strict=True, since="0.14"
    )
    overlap_dispatch_backward_with_experts_wgrad: bool = unpriced(False, _OVERLAPPED, since="0.18")
    ep_overlap_early_attn_memory_release: bool = unpriced(False, _OVERLAPPED, since="0.16")
    delay_wgrad_compute: bool = option(False, "layout", _OVERLAP, strict=True, since="0.13")
    defer_embedding_wgrad_compute: bool = unpriced(
        False, "the output layer's weight gradient is not modelled as deferred"
    )
    wgrad_deferral_limit: int = unpriced(0, "used only with defer_embedding_wgrad_compute")
    barrier_with_L1_time: bool = unpriced(
        True, "steps are modelled without barriers", off="--no-barrier-with-level-1-timing"
    )
    timers: object = harmless(None, CALLABLE, flag="")
    finalize_model_grads_func: object = harmless(None, CALLABLE, flag="")
    grad_scale_func: object = harmless(None, CALLABLE, flag="")
    moe_grad_scale_func: object = harmless(None, CALLABLE, flag="", since="0.19")
    mtp_grad_scale_func: object = harmless(None, CALLABLE, flag="", since="0.19")
    no_sync_func: object = harmless(None, CALLABLE, flag="")
    grad_sync_func: object = harmless(None, CALLABLE, flag="")
    param_sync_func: object = harmless(None, CALLABLE, flag="")
    use_te_rng_tracker: bool = harmless(False, "", flag="--te-rng-tracker")
    inference_rng_tracker: bool = harmless(False, "used only for inference")
    config_logger_dir: str = harmless("")
    distributed_backend: str = unpriced("nccl", "messages are modelled with NCCL's bandwidth")
    use_sharp: bool = unpriced(False, "reductions are modelled without in-network computing")
    sharp_enabled_group: str | None = harmless(None, "used only with use_sharp")
    high_priority_stream_groups: tuple[str, ...] = unpriced((), _PRIORITIES)
    nccl_communicator_config_path: str | None = unpriced(
        None, "messages are modelled with NCCL's default bandwidth"
    )
    use_gloo_process_groups: bool = harmless(True, "", off="--disable-gloo-process-groups")
