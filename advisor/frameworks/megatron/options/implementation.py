"""Options of how layers are run (whose modules and kernels, which steps are fused), of the batch
and of the training loop; and of inference, which training never reads."""

from typing import Final

from advisor.frameworks.megatron.options.values import (
    fuses_loss,
    loads_mask,
    loss_fusion,
    runs_own_softmax,
)
from advisor.frameworks.option import (
    ALWAYS,
    EMITTED,
    ON_LINE,
    SET_IN_RECIPES,
    WITH_LAYOUT,
    Emitted,
    Format,
    Options,
    When,
    checked,
    harmless,
    option,
    refused,
    unpriced,
)
from advisor.models.options import Activation

_GELU: Final = Emitted(line=When(only_if=lambda job: job.model.activation is Activation.GELU))
_SWIGLU: Final = Emitted(line=When(only_if=lambda job: job.model.activation is Activation.SWIGLU))
_OWN_SOFTMAX: Final = Emitted(line=When(only_if=runs_own_softmax))
_ALWAYS: Final = Emitted(line=ALWAYS, recipe=ALWAYS, nemo_1="")
_FUSED: Final = "steps are modelled with the fusions that the model.* keys select"


class Implementation(Options, title="Kernels and fusions"):
    """Options of modules, kernels and fusions."""

    transformer_impl: str = option("transformer_engine", "model", ON_LINE, since="0.14")
    attention_backend: str = option("auto", "model", line=WITH_LAYOUT)
    attention_softmax_in_fp32: bool = option(
        True, "model", _OWN_SOFTMAX, flag="--attention-softmax-in-fp32", launcher=False
    )
    masked_softmax_fusion: bool = option(
        False, "model", _OWN_SOFTMAX, flag="", off="--no-masked-softmax-fusion", launcher=True
    )
    bias_activation_fusion: bool = option(False, "model", flag="")
    bias_gelu_fusion: bool = option(True, "model.bias_activation_fusion", _GELU)
    bias_swiglu_fusion: bool = option(True, "model.bias_activation_fusion", _SWIGLU)
    bias_dropout_fusion: bool = option(
        False, "model", ON_LINE, flag="", off="--no-bias-dropout-fusion", launcher=True
    )
    apply_rope_fusion: bool = option(
        False, "model", ON_LINE, flag="", off="--no-rope-fusion", launcher=True
    )
    gradient_accumulation_fusion: bool = option(
        False, "model", ON_LINE, flag="", off="--no-gradient-accumulation-fusion", launcher=True
    )
    use_flash_attn: bool = harmless(False, "an old name of attention_backend flash")
    use_mcore_models: bool = harmless(False, "every model is Megatron Core's")
    use_legacy_models: bool = refused(
        False, "the models from before Megatron Core are not modelled"
    )
    enable_experimental: bool = harmless(False)
    use_transformer_engine_op_fuser: bool = checked(False, _FUSED, since="0.18")
    use_te_activation_func: bool = unpriced(False, _FUSED, since="0.15")
    fused_single_qkv_rope: bool = unpriced(False, _FUSED, flag="", since="0.15")
    fused_residual_rmsnorm: bool = unpriced(False, _FUSED, since="0.17")
    persist_layer_norm: bool = harmless(
        False, "another kernel of the same norm", flag="", off="--no-persist-layer-norm"
    )
    memory_efficient_layer_norm: bool = unpriced(
        False, "norms are modelled as keeping their input", flag=""
    )
    mlp_chunks_for_training: int = unpriced(1, "the MLP is modelled in one piece", since="0.18")
    batch_invariant_mode: bool = unpriced(
        False, "kernels are modelled at their usual speed", since="0.16"
    )
    deterministic_mode: bool = option(False, "job", EMITTED, nemo_1="")
    disable_jit_fuser: bool = unpriced(False, _FUSED)
    clone_scatter_output_in_embedding: bool = unpriced(
        True, "the embedding's output is modelled as a copy"
    )
    calculate_per_token_loss: bool = harmless(False)
    test_mode: bool = harmless(False, "used only in tests", flag="")


class Dropout(Options, title="Dropout"):
    """Options of dropout, of which Megatron-LM has some unless a command line says none."""

    hidden_dropout: float = option(0.1, "model", ON_LINE, format=Format.SHORT)
    attention_dropout: float = option(0.1, "model", ON_LINE, format=Format.SHORT)


class Loss(Options, title="Loss"):
    """Options of the loss."""

    cross_entropy_loss_fusion: bool = option(
        False, "model.cross_entropy_fusion", SET_IN_RECIPES, value=fuses_loss, nemo_1=""
    )
    cross_entropy_fusion_impl: str = option(
        "native", "model.cross_entropy_fusion", _ALWAYS, value=loss_fusion, since="0.12"
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
