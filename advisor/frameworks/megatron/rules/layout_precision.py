"""Rules of TransformerConfig on layout and precision that decide what recompute may follow."""

from typing import Final

from advisor.base.rule import Match
from advisor.frameworks.megatron.raw import RawSettings
from advisor.frameworks.megatron.revisions import Revision
from advisor.frameworks.megatron.rules.stated import Lines, Rule, clash, config


def _is_multiple(number: int | None, raw: RawSettings) -> bool:
    """Of the tensor-parallel size, which may be 0 in a file."""
    tp = raw.tensor_model_parallel_size
    return not number or (tp != 0 and number % tp == 0)


def _unmatched_groups(raw: RawSettings, revision: Revision) -> str:
    """What the query groups are not of the tensor-parallel size."""
    groups, tp = raw.num_query_groups, raw.tensor_model_parallel_size
    divisor_allowed = revision.at_least(0, 16)
    if _is_multiple(groups, raw) or (divisor_allowed and groups and tp and tp % groups == 0):
        return ""
    return "a multiple or divisor" if divisor_allowed else "a multiple"


def _bf16_layer_counts(raw: RawSettings, revision: Revision) -> Match | None:
    if not (raw.fp8 and raw.first_last_layers_bf16) or raw.num_layers is None:
        return None
    most = raw.num_layers // (raw.pipeline_model_parallel_size or 1)
    for field in ("num_layers_at_start_in_bf16", "num_layers_at_end_in_bf16"):
        count: int = getattr(raw, field)
        if not 0 <= count <= most:
            return Match(
                f"{field} = {count} must be between 0 and {most}, the layers of a pipeline stage",
                f"use at most {most}",
            )
    return None


def _fp8_output_proj(raw: RawSettings, _: Revision) -> Match | None:
    if not raw.fp8_output_proj:
        return None
    if not raw.fp8:
        return Match("fp8_output_proj needs fp8, which is off", "[fp8_output_proj], or set fp8")
    if raw.fp8_recipe == "mxfp8":
        return None
    return Match(
        f"fp8_output_proj cannot be combined with fp8_recipe = {raw.fp8_recipe or 'delayed'}",
        "[fp8_recipe=mxfp8], or [fp8_output_proj]",
    )


_NOT_WITH_DSA: Final = (
    ("add_bias_linear", "", "false", config(0, 0, 0, 0, 0, 0, 1385)),
    ("context_parallel_size", ">1", "1", config(0, 0, 0, 1988, 2230, 2543, 0)),
    ("apply_rope_fusion", "", "false", config(0, 0, 0, 1991, 2233, 2546, 2838)),
)
RULES: Final[dict[str, Rule]] = {
    "sequence_parallel_needs_tp": clash(
        "sequence_parallel",
        "tensor_model_parallel_size<=1",
        "[sequence_parallel=false], or use tensor_model_parallel_size >= 2",
        source=Lines("model_parallel_config.py", (356, 359, 359, 411, 408, 417, 504)),
    ),
    "deferred_wgrad_needs_pipeline": clash(
        "defer_embedding_wgrad_compute",
        "pipeline_model_parallel_size<=1",
        "[defer_embedding_wgrad_compute]",
        source=Lines("model_parallel_config.py", (369, 372, 372, 424, 421, 439, 544)),
    ),
    "attention_heads_divide_by_tp": Rule(
        summary="num_attention_heads must be a multiple of tensor_model_parallel_size.",
        when=lambda raw, _: not _is_multiple(raw.num_attention_heads, raw),
        reason="num_attention_heads = {raw.num_attention_heads} is not a multiple of "
        "tensor_model_parallel_size = {raw.tensor_model_parallel_size}",
        fix="use a tensor_model_parallel_size that divides {raw.num_attention_heads}",
        source=config(646, 681, 743, 924, 1056, 1195, 1323),
        example="num_attention_heads=8 tensor_model_parallel_size=3",
    ),
    "query_groups_match_tp": Rule(
        summary="num_query_groups must be a multiple of TP; since 0.16, a divisor works too.",
        when=_unmatched_groups,
        reason="num_query_groups = {raw.num_query_groups} is not {found} of "
        "tensor_model_parallel_size = {raw.tensor_model_parallel_size}",
        fix="use a tensor_model_parallel_size that divides {raw.num_query_groups}",
        source=config(661, 696, 758, 940, 1072, 1211, 1339),
        example="num_query_groups=8 tensor_model_parallel_size=3",
    ),
    "gated_delta_net_context_parallel": Rule(
        summary="Gated-delta-net attention refuses context parallelism in 0.16 and 0.17.",
        when=lambda raw, _: (
            raw.experimental_attention_variant == "gated_delta_net"
            and raw.context_parallel_size != 1
        ),
        reason="gated_delta_net cannot be combined with context_parallel_size = "
        "{raw.context_parallel_size}",
        fix="[context_parallel_size=1], or [>=0.18]",
        source=config(0, 0, 0, 983, 1115, 0, 0),
        example="context_parallel_size=2 experimental_attention_variant=gated_delta_net",
    ),
    **{
        f"sparse_attention_{name}": clash(
            "experimental_attention_variant=dsa", name + above, f"[{name}={legal}]", source=source
        )
        for name, above, legal, source in _NOT_WITH_DSA
    },
    "fp8_delayed_bf16_layers": Rule(
        when=lambda raw, _: raw.delayed_scaling and raw.first_last_layers_bf16,
        reason="first_last_layers_bf16 cannot be combined with fp8_recipe = delayed",
        fix="[fp8_recipe=tensorwise], or [first_last_layers_bf16]",
        source=config(669, 704, 766, 990, 1122, 1260, 1402),
        example="fp8=hybrid first_last_layers_bf16=true",
    ),
    "fp8_bf16_layer_counts": Rule(
        summary="The bf16 layers at the start and at the end must each fit into one pipeline "
        "stage.",
        when=_bf16_layer_counts,
        source=config(680, 715, 777, 1001, 1133, 1271, 1413),
        example="num_layers=8 fp8=hybrid fp8_recipe=tensorwise first_last_layers_bf16=true "
        "num_layers_at_start_in_bf16=9",
    ),
    "fp8_custom_recipe": Rule(
        when=lambda raw, _: (
            raw.fp8 and raw.fp8_recipe == "custom" and not raw.fp8_quantizer_factory
        ),
        reason="fp8_recipe = custom needs fp8_quantizer_factory",
        fix="give --fp8-quantizer-factory package.module.function, or a built-in recipe",
        source=config(0, 0, 0, 1019, 1151, 1289, 1431),
        example="fp8=hybrid fp8_recipe=custom",
    ),
    "fp8_param_needs_fp8": Rule(
        when=lambda raw, _: raw.fp8_param and not raw.fp8,
        reason="fp8_param needs fp8, which is off",
        fix="[fp8_param] (--fp8-param-gather), or set fp8 (--fp8-format hybrid)",
        source=config(698, 733, 795, 1027, 1159, 1297, 1439),
        example="fp8_param=true",
    ),
    "fp8_output_proj": Rule(
        summary="fp8_output_proj needs fp8 with the recipe mxfp8.",
        when=_fp8_output_proj,
        source=config(0, 0, 0, 0, 0, 1300, 1442),
        example="fp8_output_proj=true",
    ),
    "fp4_with_fp8": Rule(
        summary="fp4 and fp8 cannot be combined.",
        when=lambda raw, _: raw.fp4 and raw.fp8,
        reason="fp4 = {raw.fp4} and fp8 = {raw.fp8} cannot be combined",
        fix="[fp4], or [fp8]",
        source=config(0, 0, 802, 1034, 1166, 1312, 1454),
        example="fp8=hybrid fp4=e2m1",
    ),
}
"""In the order in which Megatron checks them."""
