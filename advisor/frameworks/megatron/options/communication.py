"""Options of communication inside a model: of tensor, pipeline and expert parallelism."""

from typing import Final

from advisor.frameworks.option import (
    CALLABLE,
    EMITTED,
    Options,
    checked,
    harmless,
    option,
    unpriced,
)

_USER_BUFFERS: Final = "tp_comm_overlap is modelled with Transformer Engine's own choices"
_ORDER: Final = "pipeline messages are modelled as Megatron-LM sends them"


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
        off="--no-async-tensor-model-parallel-allreduce",
        until="0.16",
        older={"0.15": False},
    )
    symmetric_ar_type: str | None = harmless(None, "used only for inference", since="0.13")
    high_priority_a2a_comm_stream: bool = unpriced(
        False, "streams are modelled without priorities", since="0.18"
    )
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
        False,
        "layout",
        strict=True,
        emitted=EMITTED,
        bridge="comm_overlap.overlap_moe_expert_parallel_comm",
        nemo_1="",
        since="0.14",
    )
    overlap_dispatch_backward_with_experts_wgrad: bool = unpriced(
        False, "used only with overlap_moe_expert_parallel_comm", since="0.18"
    )
    ep_overlap_early_attn_memory_release: bool = unpriced(
        False, "used only with overlap_moe_expert_parallel_comm", since="0.16"
    )
    delay_wgrad_compute: bool = option(
        False,
        "layout",
        strict=True,
        emitted=EMITTED,
        bridge="comm_overlap.delay_wgrad_compute",
        nemo_1="",
        since="0.13",
    )
    defer_embedding_wgrad_compute: bool = checked(
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
    high_priority_stream_groups: tuple[str, ...] = unpriced(
        (), "streams are modelled without priorities"
    )
    nccl_communicator_config_path: str | None = unpriced(
        None, "messages are modelled with NCCL's default bandwidth"
    )
    use_gloo_process_groups: bool = harmless(True, "", off="--disable-gloo-process-groups")
