"""Routed experts of a rank: one grouped MLP, or one MLP after another.

Source: megatron-core 0.16.1 transformer/moe/experts.py. SequentialMLP is run in tests/oracles;
TEGroupedMLP is read there and in Transformer Engine 2.20.2 pytorch/module/grouped_linear.py: its
linear layers keep the rows of all experts, and write one output.
"""

from functools import partial
from math import prod

from msgspec import Struct

from advisor.layers.expert_tokens import MoeTokens, moe_tokens, router_dtype, rows, runs_grouped
from advisor.layers.megatron.mlp import glu_halves
from advisor.layers.megatron.quantization import gradient_copies, saved_input
from advisor.layers.operators import ComputeUnit, Module, Operator, Tensor, Weight
from advisor.layers.shape import RankShape
from advisor.models.options import Activation, FlexBackend


class _Part(Struct, frozen=True):
    """Experts that one MLP computes: rows of its tensors, what ends their names, copies of its
    weights."""

    count: int
    suffix: str
    experts: int


def expert_operators(
    shape: RankShape, tokens: Tensor, probs: Tensor
) -> tuple[tuple[Operator, ...], Tensor]:
    """From the sorted tokens [rows, hidden_size] and their probabilities [rows] to the experts'
    output, with that output."""
    counts = moe_tokens(shape)
    applied: tuple[Operator, ...] = ()
    if shape.model.moe_apply_probs_on_input:
        tokens, probs, apply = _probs_on_input(shape, tokens, probs)
        applied = (apply,)
    if runs_grouped(shape.model) or counts.local_experts == 1:
        operators = _mlp(shape, _Part(counts.computed, "", counts.local_experts), tokens, probs)
    else:
        operators = _one_by_one(shape, counts, tokens, probs)
    return (*applied, *operators), operators[-1].outputs[0]


def _probs_on_input(
    shape: RankShape, tokens: Tensor, probs: Tensor
) -> tuple[Tensor, Tensor, Operator]:
    """Tokens times probabilities; ones take the place of the probabilities after it."""
    scaled = rows(shape, "scaled_tokens", *tokens.shape)
    read, made = (tokens, probs), (scaled, Tensor("ones", probs.shape, probs.dtype))
    return *made, Operator("apply_probs_on_input", Module.EXPERT_FC1, read, made, saved=read)


def _one_by_one(
    shape: RankShape, counts: MoeTokens, tokens: Tensor, probs: Tensor
) -> tuple[Operator, ...]:
    """SequentialMLP: tokens are views of their storage, outputs are put together by a copy."""
    hidden = tokens.shape[-1]
    operators: list[Operator] = []
    views, weights, outputs = [], [], []
    for index in range(counts.local_experts):
        part = _Part(counts.of_expert(index), f"_{index}", 1)
        views.append(tokens.view(f"expert_tokens{part.suffix}", (part.count, hidden)))
        weights.append(probs.view(f"expert_probs{part.suffix}", (part.count,)))
        operators += _mlp(shape, part, views[-1], weights[-1])
        outputs.append(operators[-1].outputs[0])
    split = Operator("split_experts", Module.EXPERT_FC1, (tokens, probs), (*views, *weights))
    concatenate = Operator(
        "concatenate_experts",
        Module.EXPERT_FC2,
        tuple(outputs),
        (rows(shape, "expert_out", counts.computed, hidden),),
        forward_holds=tuple(outputs),
        gradient_passed_to=frozenset(tensor.name for tensor in outputs),
    )
    return (split, *operators, concatenate)


def _mlp(shape: RankShape, part: _Part, tokens: Tensor, probs: Tensor) -> tuple[Operator, ...]:
    ffn = shape.model.expert_ffn_hidden_size // shape.expert_tensor_parallel_size
    hidden = tokens.shape[-1]
    fc1_out = rows(shape, f"expert_fc1_out{part.suffix}", part.count, shape.model.fc1_size_of(ffn))
    activated = rows(shape, f"expert_activation_out{part.suffix}", part.count, ffn)
    output = rows(shape, f"expert_out{part.suffix}", part.count, hidden)
    return (
        _linear(shape, part, Module.EXPERT_FC1, tokens, fc1_out),
        _activation(shape, part, fc1_out, activated, probs),
        _linear(shape, part, Module.EXPERT_FC2, activated, output),
    )


def _linear(
    shape: RankShape, part: _Part, module: Module, source: Tensor, output: Tensor
) -> Operator:
    """A linear layer of the experts; saves its input. No communication: the dispatcher has brought
    the tokens of all ranks of the expert-tensor-parallel group."""
    width, depth = output.shape[-1], source.shape[-1]
    name = f"experts.{module.rpartition('.')[2]}"
    first = module is Module.EXPERT_FC1
    sharded = shape.expert_tensor_parallel_size > 1
    weight = partial(Weight, expert=True, copies=part.experts)
    weights = [weight(f"{name}.weight", (width, depth), sharded, in_linear=True)]
    if shape.model.add_bias_linear:
        weights.append(weight(f"{name}.bias", (width,), sharded and first))
    biased = 0 if first or len(weights) == 1 else _bias_traffic(shape, output)
    padding = _padding_traffic(shape, source if first else output)
    held = first and shape.quantizes and shape.holds_dispatched
    saved = saved_input(shape, source)
    return Operator(
        f"{name}{part.suffix}",
        module,
        (source,),
        (output,),
        unit=ComputeUnit.GEMM,
        saved=(*saved, *((source,) if held else ())),
        saved_for_weights=frozenset(tensor.name for tensor in saved),
        weights=tuple(weights),
        gemm=shape.gemm(part.count, width, depth, part.experts),
        extra_forward_bytes=padding + biased,
        extra_backward_bytes=padding
        + (_bias_gradient_traffic(shape, output) if biased else 0)
        + shape.main_grad_traffic(weights[0].num_elements),
        backward_workspace=gradient_copies(shape, output)
        + shape.weight_gradient_bytes(weights[0].num_elements),
    )


def _bias_traffic(shape: RankShape, output: Tensor) -> int:
    """Bytes of adding the second layer's bias times the probabilities: the product and the sum in
    the router's type, one tensor of all experts, and a copy in 16 bits (experts.py _apply_bias)."""
    wide, narrow = router_dtype(shape).itemsize, shape.dtype.itemsize
    added = wide + (wide + narrow) + wide
    joined = 2 * wide + (wide + narrow if wide != narrow else 0)
    return output.num_elements * (added + joined)


def _bias_gradient_traffic(shape: RankShape, output: Tensor) -> int:
    """The same back: the gradient in the router's type, its products with bias and probabilities
    and their sums, and a 16-bit copy of each expert's part, which are joined."""
    wide, narrow = router_dtype(shape).itemsize, shape.dtype.itemsize
    cast = wide + narrow if wide != narrow else 0
    return output.num_elements * (2 * cast + 2 * 3 * wide + 2 * narrow)


def _padding_traffic(shape: RankShape, rows_of: Tensor) -> int:
    """Bytes of padding each expert's rows to what 8-bit GEMMs take, or of taking that off again
    (TEGroupedMLP quantization_padding); HybridEP's permutation has padded them already."""
    model = shape.model
    padded = model.flex_backend is FlexBackend.HYBRIDEP
    return 0 if not shape.quantizes or not runs_grouped(model) or padded else 2 * rows_of.num_bytes


def _activation(
    shape: RankShape, part: _Part, source: Tensor, output: Tensor, probs: Tensor
) -> Operator:
    """Activation times the tokens' probabilities. Fused, it keeps its input and the probabilities.
    Unfused, also the activation's parts and its product before the probabilities, which is
    multiplied in their type. In megatron-core 0.11 probabilities come last, in the unpermutation.
    """
    saved: tuple[Tensor, ...] = (source,) if shape.weighs_outputs else (source, probs)
    wide = 0
    if not fuses_weighted_activation(shape):
        names = [] if shape.weighs_outputs else ["weighted_input"]
        if names and probs.dtype is not shape.dtype:
            wide = prod(output.shape) * probs.dtype.itemsize
        if shape.model.activation.gated:
            names += [f"expert_{half}" for half in glu_halves(shape)]
        saved += tuple(rows(shape, f"{name}{part.suffix}", *output.shape) for name in names)
    return Operator(
        f"experts.activation{part.suffix}",
        Module.EXPERT_ACTIVATION,
        (source, probs),
        (output,),
        saved=saved,
        forward_workspace=wide,
        backward_workspace=2 * wide,
    )


_WEIGHTED = (Activation.SWIGLU, Activation.QUICK_GEGLU)


def fuses_weighted_activation(shape: RankShape) -> bool:
    """Whether activation and probabilities are one kernel (fusions/fused_bias_swiglu.py,
    fused_bias_geglu.py; fused_weighted_squared_relu.py in a grouped MLP alone)."""
    model = shape.model
    if model.activation is Activation.SQUARED_RELU:
        return model.use_fused_weighted_squared_relu and runs_grouped(model)
    return model.bias_activation_fusion and model.activation in _WEIGHTED
