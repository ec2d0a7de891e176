"""Options of how layers are run (whose modules and kernels, which steps are fused), of number types
(of compute, of gradients, of the optimizer's states), of the batch and of the training loop; and of
inference, which training never reads."""

from typing import Any, Final

from msgspec.structs import replace

from advisor.base.dtypes import Precision as Types
from advisor.frameworks.megatron.options.values import (
    accumulates_in_fp32,
    element_type,
    ends_in_16_bits,
    fp4_recipe,
    fp8_format,
    fp8_recipe,
    is_16_bit,
    is_quantized,
    loss_fusion,
    mixed_precision,
    offloads_optimizer,
    optimizer_type,
    reads_recipe,
    reduces_in_bf16,
    reduces_in_fp32,
    runs_own_softmax,
    torch_type,
)
from advisor.frameworks.option import (
    ALWAYS,
    DIFFERENT,
    EMITTED,
    ON_LINE,
    SET_IN_RECIPES,
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
from advisor.models.options import Activation, CrossEntropyFusion

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
    use_transformer_engine_op_fuser: bool = unpriced(False, _FUSED, since="0.18")
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
        False,
        "model.cross_entropy_fusion",
        SET_IN_RECIPES,
        value=lambda job, _: job.model.cross_entropy_fusion is not CrossEntropyFusion.NONE,
        nemo_1="",
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
        True,
        "job.create_attention_mask",
        ON_LINE,
        value=lambda job, _: job.config.loads_attention_mask,
        means=bool,
        bridge="",
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


_SCALING: Final = "a parameter of the scaling recipe"
_KITCHEN: Final = "kernels of another library are not modelled"
_TRANSPOSED: Final = "transposed 8-bit weights are modelled as the recipe keeps them"
_PER_LAYER: Final = "a precision recipe per layer is not modelled"
_CUSTOM: Final = "a custom recipe is not modelled"
_STATE: Final = Emitted(line=DIFFERENT, recipe=DIFFERENT, in_nemo=False, bridge="optimizer")
_ON_HOST: Final = When(only_if=offloads_optimizer)
_HOST: Final = replace(_STATE, line=_ON_HOST, recipe=_ON_HOST)
_SHARE: Final = When(always=True, only_if=offloads_optimizer)


def _typed(field: str) -> dict[str, Any]:
    """A type of the optimizer's tensors, by the names of Megatron-LM and of torch."""
    return {
        "value": optimizer_type(field),
        "recipe_value": torch_type(field),
        "emitted": _STATE,
        "means": element_type,
    }


_END: Final = Emitted(line=When(always=True, only_if=ends_in_16_bits))


class Precision(Options, title="Precision"):
    """Options of number types."""

    fp16: bool = option(False, "job.precision", ON_LINE, value=is_16_bit(Types.FP16))
    accumulate_allreduce_grads_in_fp32: bool = option(
        False, "job.main_grads_dtype", ON_LINE, value=accumulates_in_fp32, bridge=""
    )
    bf16: bool = option(False, "job.precision", ON_LINE, value=is_16_bit(Types.BF16))
    grad_reduce_in_bf16: bool = option(
        False, "job.main_grads_dtype", ON_LINE, value=reduces_in_bf16, bridge=""
    )
    grad_reduce_in_fp32: bool = option(
        False, "job.main_grads_dtype", value=reduces_in_fp32, flag="", bridge="ddp"
    )
    mixed_precision: str = option(
        "bf16_mixed", "job.precision", value=mixed_precision, flag="", bridge="mixed_precision"
    )
    fp8: str | None = option(None, "job.precision", ON_LINE, value=fp8_format, flag="--fp8-format")
    fp8_recipe: str | None = option(
        None,
        "job.precision",
        config="delayed",
        launcher="delayed",
        value=fp8_recipe,
        strict=True,
        line=When(always=True, only_if=reads_recipe),
        since="0.12",
    )
    fp4: str | None = option(
        None,
        "job.precision",
        ON_LINE,
        value=lambda job, _: "e2m1" if job.config.precision is Types.NVFP4 else None,
        strict=True,
        flag="--fp4-format",
        since="0.15",
    )
    fp4_recipe: str = option("nvfp4", "job.precision", value=fp4_recipe, line=ALWAYS, since="0.15")
    fp8_param: bool = option(
        False,
        "job.fp8_param_gather",
        ON_LINE,
        flag="--fp8-param-gather",
        also=("fp8_param_gather",),
        since="0.12",
    )
    first_last_layers_bf16: bool = option(
        False, "model", line=When(only_if=is_quantized), since="0.12"
    )
    num_layers_at_start_in_bf16: int = option(1, "model", _END, since="0.12")
    num_layers_at_end_in_bf16: int = option(1, "model", _END, since="0.12")
    use_precision_aware_optimizer: bool = option(False, "job", _STATE)
    main_grads_dtype: str = harmless(
        "fp32", "follows from the gradient buffer's type", bridge="optimizer"
    )
    main_params_dtype: str = option("fp32", "job", **_typed("main_params_dtype"))
    exp_avg_dtype: str = option("fp32", "job", **_typed("exp_avg_dtype"))
    exp_avg_sq_dtype: str = option("fp32", "job", **_typed("exp_avg_sq_dtype"))
    optimizer_cpu_offload: bool = option(False, "job", _STATE, since="0.12")
    optimizer_offload_fraction: float = option(
        0.0,
        "job",
        replace(_STATE, line=_SHARE, recipe=_SHARE, format=Format.SHORT),
        launcher=1.0,
        since="0.12",
    )
    overlap_cpu_optimizer_d2h_h2d: bool = option(False, "job", _HOST, since="0.12")
    store_param_remainders: bool = unpriced(
        True,
        "fp32 main parameters are modelled as bf16 weights plus 16-bit remainders",
        bridge="optimizer",
        flag="",
        since="0.13",
    )
    params_dtype: str = harmless("fp32", "follows from fp16 and bf16", flag="")
    pipeline_dtype: str | None = harmless(None, "follows from fp16 and bf16", flag="")
    enable_autocast: bool = unpriced(False, "weights are modelled in the compute type", flag="")
    autocast_dtype: str | None = harmless(None, "used only with enable_autocast", flag="")
    fp8_output_proj: bool = unpriced(False, "the output layer is modelled in 16 bits", since="0.18")
    fp8_quantizer_factory: str | None = unpriced(None, _CUSTOM, since="0.16")
    fp4_quantizer_factory: str | None = refused(None, _CUSTOM, since="0.16")
    fp4_param: bool = refused(
        False,
        "weights kept in 4 bits are not modelled",
        flag="--fp4-param-gather",
        also=("fp4_param_gather",),
        since="0.15",
    )
    fp8_dot_product_attention: bool = option(False, "model", flag="")
    fp8_multi_head_attention: bool = refused(
        False, "8-bit attention with its projections is not modelled", flag=""
    )
    fp8_margin: int = harmless(0, _SCALING)
    fp8_interval: int = harmless(1, _SCALING)
    fp8_amax_history_len: int = harmless(1, _SCALING)
    fp8_amax_compute_algo: str = harmless("most_recent", _SCALING)
    fp8_wgrad: bool = unpriced(True, "weight gradients are modelled as computed in 8 bits")
    tp_only_amax_red: bool = harmless(False, _SCALING, flag="")
    keep_fp8_transpose_cache: bool = unpriced(False, _TRANSPOSED, bridge="ddp", since="0.14")
    keep_fp8_transpose_cache_when_using_custom_fsdp: bool = unpriced(
        False, "an old name of keep_fp8_transpose_cache", bridge="ddp", since="0.12", until="0.13"
    )
    disable_parameter_transpose_cache: bool = unpriced(False, _TRANSPOSED, flag="")
    disable_bf16_reduced_precision_matmul: bool = harmless(False, since="0.12")
    reuse_grad_buf_for_mxfp8_param_ag: bool = unpriced(
        False,
        "the gather of MXFP8 weights is modelled with a separate buffer",
        bridge="ddp",
        since="0.13",
    )
    quant_recipe: str | None = refused(None, _PER_LAYER, flag="", since="0.13")
    te_precision_config_file: str | None = refused(None, _PER_LAYER)
    use_kitchen: bool = refused(False, _KITCHEN, flag="", since="0.13")
    use_kitchen_attention: bool = refused(False, _KITCHEN, since="0.16")
    kitchen_attention_backend: str = harmless("sdpa", "used only with use_kitchen", since="0.16")
    kitchen_config_file: str | None = refused(None, _KITCHEN)
    kitchen_recipe_number: int | None = refused(None, _KITCHEN)
    fp16_lm_cross_entropy: bool = unpriced(False, "the loss is modelled in fp32")
