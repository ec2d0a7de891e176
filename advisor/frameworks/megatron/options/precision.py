"""Options of number types: of compute, of gradients, of the optimizer's states."""

from typing import Any, Final

from msgspec.structs import replace

from advisor.base.dtypes import Precision as Types
from advisor.frameworks.megatron.options.values import (
    accumulates_in_fp32,
    element_type,
    ends_in_16_bits,
    fp4_format,
    fp4_recipe,
    fp8_format,
    fp8_recipe,
    is_16_bit,
    is_quantized,
    mixed_precision,
    offloads_optimizer,
    optimizer_type,
    reads_recipe,
    reduces_in_bf16,
    reduces_in_fp32,
    torch_type,
)
from advisor.frameworks.option import (
    ALWAYS,
    DIFFERENT,
    ON_LINE,
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
        value=fp4_format,
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
    fp8_output_proj: bool = checked(False, "the output layer is modelled in 16 bits", since="0.18")
    fp8_quantizer_factory: str | None = checked(None, _CUSTOM, since="0.16")
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
