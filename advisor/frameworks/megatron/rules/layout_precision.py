"""Rules of TransformerConfig on layout and precision that decide what recompute may follow."""

from typing import Final

from advisor.frameworks.megatron.raw import RawSettings
from advisor.frameworks.megatron.revisions import Revision
from advisor.frameworks.megatron.rules.finding import Authority, Problem, Rule, Verdict


def sequence_parallel_needs_tp(raw: RawSettings, revision: Revision) -> Problem | None:
    """sequence_parallel needs tensor_model_parallel_size > 1."""
    if not raw.sequence_parallel or raw.tensor_model_parallel_size > 1:
        return None
    old = "ValueError: Can not use sequence paralllelism without tensor parallelism"
    new = "ValueError: Cannot use sequence parallelism without tensor parallelism"
    return Problem(
        "sequence_parallel is on and tensor_model_parallel_size = "
        f"{raw.tensor_model_parallel_size}",
        "turn sequence_parallel off, or use tensor_model_parallel_size >= 2",
        new if revision.at_least(0, 15) else old,
    )


def deferred_wgrad_needs_pipeline(raw: RawSettings, revision: Revision) -> Problem | None:
    """defer_embedding_wgrad_compute needs a pipeline."""
    if not raw.defer_embedding_wgrad_compute or raw.pipeline_model_parallel_size > 1:
        return None
    return Problem(
        "defer_embedding_wgrad_compute with pipeline_model_parallel_size = 1",
        "drop defer_embedding_wgrad_compute",
        "ValueError: Cannot defer embedding wgrad compute when pipeline model parallel is not",
    )


def attention_heads_divide_by_tp(raw: RawSettings, revision: Revision) -> Problem | None:
    """num_attention_heads must be a multiple of tensor_model_parallel_size."""
    heads, tp = raw.num_attention_heads, raw.tensor_model_parallel_size
    if heads is None or heads % tp == 0:
        return None
    return Problem(
        f"num_attention_heads = {heads} is no multiple of tensor_model_parallel_size = {tp}",
        f"use a tensor_model_parallel_size that divides {heads}",
        f"ValueError: num_attention_heads ({heads}) must be a multiple of",
    )


def query_groups_match_tp(raw: RawSettings, revision: Revision) -> Problem | None:
    """num_query_groups must be a multiple of TP; from 0.16 on a divisor will do as well."""
    groups, tp = raw.num_query_groups, raw.tensor_model_parallel_size
    if groups is None or groups % tp == 0:
        return None
    divisor_allowed = revision.at_least(0, 16)
    if divisor_allowed and tp % groups == 0:
        return None
    relation = "a multiple or divisor" if divisor_allowed else "a multiple"
    return Problem(
        f"num_query_groups = {groups} is not {relation} of tensor_model_parallel_size = {tp}",
        f"use a tensor_model_parallel_size that divides {groups}",
        f"ValueError: num_query_groups ({groups}) must be {relation} of",
    )


def gated_delta_net_context_parallel(raw: RawSettings, revision: Revision) -> Problem | None:
    """Gated-delta-net attention excludes context parallelism in 0.16 and 0.17."""
    gdn = raw.experimental_attention_variant == "gated_delta_net"
    concerned = revision.number in ((0, 16), (0, 17))
    if not gdn or not concerned or raw.context_parallel_size == 1:
        return None
    return Problem(
        f"gated_delta_net with context_parallel_size = {raw.context_parallel_size}",
        "use context_parallel_size 1, or megatron-core 0.18",
        "AssertionError: Gated delta net does not support context parallel for now",
    )


def fp8_delayed_bf16_layers(raw: RawSettings, revision: Revision) -> Problem | None:
    """Delayed scaling cannot keep the first and last layers in bf16."""
    if not (raw.delayed_scaling and raw.first_last_layers_bf16):
        return None
    return Problem(
        "first_last_layers_bf16 with fp8_recipe = delayed",
        "use fp8_recipe tensorwise, blockwise or mxfp8, or drop first_last_layers_bf16",
        "ValueError: Delayed scaling does not support first / last layer in BF16.",
    )


def fp8_bf16_layer_counts(raw: RawSettings, revision: Revision) -> Problem | None:
    """The bf16 layers at start and end must fit into one pipeline stage."""
    if not (raw.fp8 and raw.first_last_layers_bf16) or raw.num_layers is None:
        return None
    most = raw.num_layers // raw.pipeline_model_parallel_size
    for field in ("num_layers_at_start_in_bf16", "num_layers_at_end_in_bf16"):
        count: int = getattr(raw, field)
        if not 0 <= count <= most:
            return Problem(
                f"{field} = {count} is not between 0 and the {most} layers of a pipeline stage",
                f"use at most {most}",
                f"ValueError: {field} ({count}) must be between 0 and",
            )
    return None


def fp8_custom_recipe(raw: RawSettings, revision: Revision) -> Problem | None:
    """fp8_recipe custom needs fp8_quantizer_factory."""
    applies = raw.fp8 and raw.fp8_recipe == "custom" and not raw.fp8_quantizer_factory
    if not applies or not revision.at_least(0, 16):
        return None
    return Problem(
        "fp8_recipe = custom without fp8_quantizer_factory",
        "give --fp8-quantizer-factory package.module.function, or a built-in recipe",
        "ValueError: fp8_quantizer_factory must be provided when fp8_recipe is 'custom'.",
    )


def fp8_param_needs_fp8(raw: RawSettings, revision: Revision) -> Problem | None:
    """fp8_param (--fp8-param-gather) needs fp8."""
    if not raw.fp8_param or raw.fp8:
        return None
    return Problem(
        "fp8_param is on and fp8 is not",
        "set fp8 (--fp8-format hybrid), or drop fp8_param (--fp8-param-gather)",
        "ValueError: fp8_param must be used together with fp8 mode.",
    )


def fp8_output_proj(raw: RawSettings, revision: Revision) -> Problem | None:
    """fp8_output_proj needs fp8 with the recipe mxfp8."""
    if not raw.fp8_output_proj or not revision.at_least(0, 18):
        return None
    if not raw.fp8:
        return Problem(
            "fp8_output_proj is on and fp8 is not",
            "set fp8, or drop fp8_output_proj",
            "ValueError: fp8_output_proj must be used together with fp8 mode.",
        )
    if raw.fp8_recipe == "mxfp8":
        return None
    return Problem(
        f"fp8_output_proj with fp8_recipe = {raw.fp8_recipe or 'delayed'}",
        "use fp8_recipe mxfp8, or drop fp8_output_proj",
        "ValueError: fp8_output_proj requires fp8_recipe='mxfp8'",
    )


def fp4_with_fp8(raw: RawSettings, revision: Revision) -> Problem | None:
    """fp4 and fp8 exclude each other."""
    if not (raw.fp4 and raw.fp8) or not revision.at_least(0, 15):
        return None
    return Problem(
        f"fp4 = {raw.fp4} and fp8 = {raw.fp8} are both set",
        "choose one of them",
        "ValueError: fp4 and fp8 cannot be used simultaneously. Please choose one.",
    )


RULES: Final = tuple(
    Rule(check.__name__, Verdict.REFUSED, Authority.CONFIG, check)
    for check in (
        sequence_parallel_needs_tp,
        deferred_wgrad_needs_pipeline,
        attention_heads_divide_by_tp,
        query_groups_match_tp,
        gated_delta_net_context_parallel,
        fp8_delayed_bf16_layers,
        fp8_bf16_layer_counts,
        fp8_custom_recipe,
        fp8_param_needs_fp8,
        fp8_output_proj,
        fp4_with_fp8,
    )
)
"""In the order in which Megatron checks them."""
