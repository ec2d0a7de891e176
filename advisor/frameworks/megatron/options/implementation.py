"""Options of how layers are run (whose modules and kernels, which steps are fused), of number types
(of compute, of gradients, of the optimizer's states), of the batch and of the training loop; and of
inference, which training never reads."""

from typing import Any, Final

from msgspec.structs import replace

from advisor.base.dtypes import Precision as Types
from advisor.frameworks.megatron.options.section import Section
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
    Status,
    When,
    checked,
    option,
)
from advisor.models.options import Activation, CrossEntropyFusion

_GELU: Final = Emitted(line=When(only_if=lambda job: job.model.activation is Activation.GELU))
_SWIGLU: Final = Emitted(line=When(only_if=lambda job: job.model.activation is Activation.SWIGLU))
_OWN_SOFTMAX: Final = Emitted(line=When(only_if=runs_own_softmax))
_ALWAYS: Final = Emitted(line=ALWAYS, recipe=ALWAYS, nemo_1="")
_FUSED: Final = "steps are modelled with the fusions that the model.* keys select"


class Implementation(Section, title="Kernels and fusions"):
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
    use_transformer_engine_op_fuser: bool = checked(False, _FUSED, Status.UNPRICED, since="0.18")
    deterministic_mode: bool = option(False, "job", EMITTED, nemo_1="")


class Dropout(Section, title="Dropout"):
    """Options of dropout, of which Megatron-LM has some unless a command line says none."""

    hidden_dropout: float = option(0.1, "model", ON_LINE, format=Format.SHORT)
    attention_dropout: float = option(0.1, "model", ON_LINE, format=Format.SHORT)


class Loss(Section, title="Loss"):
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


class Batch(Section, title="Batch", home="train"):
    """Options of the batch."""

    seq_length: int | None = option(None, "job", line=WITH_LAYOUT)
    micro_batch_size: int | None = option(None, "job", _BATCH)
    global_batch_size: int | None = option(None, "job", _BATCH)


class Loop(Section, title="Training loop", home="train"):
    """Options of the training loop that change its memory or time."""

    create_attention_mask_in_dataloader: bool = option(
        True,
        "job.create_attention_mask",
        ON_LINE,
        value=lambda job, _: job.config.loads_attention_mask,
        means=bool,
        bridge="",
    )


class Inference(Section, title="Inference"):
    """Options of inference."""


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


class Precision(Section, title="Precision"):
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
    fp8_output_proj: bool = checked(
        False, "the output layer is modelled in 16 bits", Status.UNPRICED, since="0.18"
    )
    fp8_quantizer_factory: str | None = checked(None, _CUSTOM, Status.UNPRICED, since="0.16")
    fp8_dot_product_attention: bool = option(False, "model", flag="")
