"""Rules of TransformerConfig on layout and precision that decide what recompute may follow; and
what it accepts and the training step then makes of it: hangs and crashes."""

from typing import Final

from advisor.base.rule import Match
from advisor.frameworks.megatron.plan import reads_full_recompute
from advisor.frameworks.megatron.raw import RawSettings
from advisor.frameworks.megatron.revisions import Revision
from advisor.frameworks.megatron.rules.stated import stated


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
    most = (raw.num_layers or 0) // (raw.pipeline_model_parallel_size or 1)
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


LAYOUT_RULES: Final = stated(
    "layout_precision",
    attention_heads_divide_by_tp=lambda raw, _: not _is_multiple(raw.num_attention_heads, raw),
    query_groups_match_tp=_unmatched_groups,
    fp8_bf16_layer_counts=_bf16_layer_counts,
    fp8_output_proj=_fp8_output_proj,
)


def _uniform_must_divide(raw: RawSettings, _: Revision) -> Match | None:
    number, layers = raw.recompute_num_layers, raw.layers_per_chunk
    if number is None or number < 1 or layers is None or layers % number == 0:
        return None
    divisors = [n for n in range(1, layers + 1) if layers % n == 0]
    near = [n for n in divisors if n < number][-1:] + [n for n in divisors if n > number][:1]
    return Match(
        f"uniform recompute of {number} layers does not divide model chunks of {layers} layers",
        f"use recompute_num_layers {' or '.join(str(n) for n in near)}, or megatron-core 0.17",
    )


# mlp_recompute_with_bias: the MLP returns linear_fc2's bias with its output. As an output of the
# checkpoint's autograd function the parameter itself gets that function as grad_fn, and the
# backward of the replay runs into it, and replays, again.
STEP_RULES: Final = stated("step_faults", uniform_must_divide=_uniform_must_divide)

HYBRID_RULES: Final = stated(
    "step_faults.hybrid",
    hybrid_ignores_full=lambda raw, revision: (
        not reads_full_recompute(raw.hybrid_layer_pattern, revision)
    ),
)
"""Stacks of Mamba, attention and MLP layers: MambaStack and HybridStack of the wheels
megatron-core 0.16.1, 0.17.0, 0.18.0 and 0.19.0."""
