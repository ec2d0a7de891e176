"""Options of the batch and of the training loop; and of inference, which training never reads."""

from typing import Final

from advisor.frameworks.megatron.options.values import loads_mask
from advisor.frameworks.option import (
    ALWAYS,
    ON_LINE,
    WITH_LAYOUT,
    Emitted,
    Options,
    harmless,
    option,
    refused,
    unpriced,
)

_BATCH: Final = Emitted(line=WITH_LAYOUT, recipe=ALWAYS, nemo="data")
_RAMP: Final = "every step is modelled with the whole global batch"
_DOCUMENTS: Final = "documents of one sample are modelled as attending to each other"


class Batch(Options, title="Batch", home="train"):
    """Options of the batch."""

    seq_length: int | None = option(None, "job", line=WITH_LAYOUT)
    micro_batch_size: int | None = option(None, "job", _BATCH)
    global_batch_size: int | None = option(None, "job", _BATCH)
    rampup_batch_size: tuple[str, ...] = unpriced((), _RAMP)
    step_batch_size_schedule: str | None = unpriced(None, _RAMP)
    decrease_batch_size_if_needed: bool = unpriced(False, _RAMP)
    batch_size: int | None = harmless(
        None, "an old name of micro_batch_size, refused by Megatron-LM", bridge=""
    )


class Loop(Options, title="Training loop", home="train"):
    """Options of the training loop that change its memory or time."""

    create_attention_mask_in_dataloader: bool = option(
        True, "job.create_attention_mask", ON_LINE, value=loads_mask, means=bool, bridge=""
    )
    empty_unused_memory_level: int = unpriced(0, "emptying the allocator's cache is not modelled")
    manual_gc: bool = harmless(False, "Python's garbage collection")
    manual_gc_interval: int = harmless(0, "Python's garbage collection")
    manual_gc_eval: bool = harmless(True, "Python's garbage collection")
    train_sync_interval: int | None = harmless(None)
    check_weight_hash_across_dp_replicas_interval: int | None = harmless(None)
    reset_position_ids: bool = unpriced(False, _DOCUMENTS)
    reset_attention_mask: bool = unpriced(False, _DOCUMENTS)
    dataloader_inter_document_masking: bool = unpriced(False, _DOCUMENTS)
    sft: bool = refused(False, "batches of conversations are not modelled")
    perform_rl_step: bool = refused(False, "reinforcement learning is not modelled")
    freeze_all_layers: bool = refused(False, "frozen weights are not modelled")
    logits_save_dir: str | None = refused(None, "distillation is not modelled")
    logits_load_dir: str | None = refused(None, "distillation is not modelled")
    inprocess_restart: bool = unpriced(False, "memory kept for restarts is not modelled")
    yaml_cfg: str | None = refused(None, "options in another file are not read: lint that file")
    use_checkpoint_args: bool = unpriced(False, "options in a checkpoint are not read")
    fake_process_group: bool = harmless(False, "used only in tests")


_INFERENCE: Final = "used only for inference"


class Inference(Options, title="Inference"):
    """Options of inference."""

    flash_decode: bool = harmless(False, _INFERENCE)
    inference_sampling_seed: int = harmless(42, _INFERENCE, flag="", since="0.15")
    use_inference_optimized_layers: bool = harmless(False, _INFERENCE, flag="", since="0.16")
    inference_fuse_tp_communication: bool = harmless(False, _INFERENCE, since="0.16")
    inference_disable_triton_nvls_kernels: bool = harmless(False, _INFERENCE, since="0.17")
    inference_grouped_gemm_backend: str = harmless(
        "vllm", _INFERENCE, since="0.17", older={"0.17": "auto"}
    )
    inference_moe_disable_fused_quant_kernels: bool = harmless(False, _INFERENCE, since="0.17")
    inference_moe_token_dispatcher_type: str = harmless("nvls", _INFERENCE, since="0.18")
    nccl_all_reduce_for_prefill: bool = harmless(False, _INFERENCE, since="0.17")
    mlp_chunks_for_prefill: int = harmless(1, _INFERENCE, since="0.13")
