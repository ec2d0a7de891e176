"""torchtitan's layer with experts: router, tokens sorted by expert, grouped experts, scores.

Source: torchtitan 0.2.2 models/moe/moe.py, models/moe/utils.py (padding of every expert's rows),
distributed/expert_parallel.py, run in tests/oracles; its kernel that permutes is not.
"""

from typing import Final

from msgspec.structs import replace

from advisor.base.dtypes import DType
from advisor.layers.eager import moe
from advisor.layers.eager.parts import residual
from advisor.layers.expert_tokens import moe_tokens, rows
from advisor.layers.operators import Module, Operator, Tensor
from advisor.layers.shape import RankShape
from advisor.layers.torchtitan.collectives import all_to_all
from advisor.models.options import ScoreFunction
from advisor.models.spec import ModelSpec

ALIGNMENT: Final = 8
"""Rows of an expert are padded to a multiple of this (TOKEN_GROUP_ALIGN_SIZE_M)."""
Operators = tuple[Operator, ...]


def grouped_experts_layer(shape: RankShape, source: Tensor) -> Operators:
    """From the normalized input to [tokens, hidden_size]; shared experts run after the routed ones.
    Variables of MoE.forward hold its input and what is sorted, computed and put back until it
    returns."""
    before = shape.model.moe_apply_probs_on_input
    weights, router = _router(shape, source)
    order, sent, dispatched = _dispatch(shape, source, weights)
    experts, back = _experts(shape, sent)
    unsorted = rows(shape, "unsorted", shape.tokens * shape.model.moe_router_topk, sent.shape[-1])
    put_back = _put(back, unsorted, order)
    # without weights the gradient is a view for each expert
    added = Operator("sum_of_experts", Module.COMBINE, (unsorted,), (_output(shape),))
    combined = (added,) if before else _weighted(shape, unsorted, weights)
    held = (source, order, sent, back, unsorted)
    shared = moe.shared_experts(shape, source)
    operators = (*router, *dispatched, *experts, *shared, put_back, *combined)
    last = operators[-1]
    if not shared:
        return (*operators[:-1], replace(last, forward_holds=held))
    routed, output = last.outputs[0], shared[-1].outputs[0]
    total = Tensor("moe_out", routed.shape, routed.dtype)
    return (*operators, residual("add_shared_experts", Module.COMBINE, output, routed, total, held))


def normalizes(model: ModelSpec) -> bool:
    """Whether the chosen scores are divided by their sum (route_norm), in Megatron's words."""
    if model.moe_router_score_function is ScoreFunction.SIGMOID:
        return model.moe_router_topk > 1
    return not model.moe_router_pre_softmax


def _router(shape: RankShape, source: Tensor) -> tuple[Tensor, Operators]:
    """Weights [tokens, topk] in fp32. The expert bias is added to a copy of the scores, and groups
    that are out are masked in another, for the choice alone."""
    gating = moe.gate(shape, source)
    scores = moe.all_scores(gating.outputs[0])
    (all_,) = scores.outputs
    chosen = moe.per_choice(shape, "chosen_scores")
    copies = (2 if shape.model.moe_router_group_topk is not None else 1) * all_.num_bytes
    operators = [gating, scores, moe.choice(shape, all_, chosen, copies)]
    weights = moe.per_choice(shape, "router_weights")
    if normalizes(shape.model):
        operators.append(moe.normalized(shape, chosen, weights))
    else:
        operators.append(Operator("router.scale", Module.ROUTER, (chosen,), (weights,)))
    return weights, tuple(operators)


def _dispatch(
    shape: RankShape, source: Tensor, weights: Tensor
) -> tuple[Tensor, Tensor, Operators]:
    """Order of the copies by expert, the copies in that order, and what makes them."""
    copies = moe_tokens(shape).routed * shape.expert_tensor_parallel_size
    order, taken = (Tensor(name, (copies,), DType.INT64) for name in ("order", "taken_tokens"))
    sort = Operator(
        "sort_by_expert",
        Module.DISPATCH,
        (weights,),
        (order,),
        forward_workspace=order.num_bytes,
        gradient_free_inputs=frozenset({weights.name}),
    )
    sent = rows(shape, "routed_tokens", copies, shape.model.hidden_size)
    operators = [sort, moe.gather_tokens(source, sent, taken)]
    if shape.model.moe_apply_probs_on_input:
        scaled = rows(shape, "scaled_tokens", *sent.shape)
        operators.append(_scaled(sent, weights, order, scaled))
        sent = scaled
    return order, sent, tuple(operators)


def _scaled(sent: Tensor, weights: Tensor, order: Tensor, scaled: Tensor) -> Operator:
    """Tokens in fp32 times their sorted scores, back in 16 bit: keeps both factors."""
    wide = Tensor("routed_tokens.fp32", sent.shape, DType.FP32)
    return Operator(
        "apply_scores",
        Module.DISPATCH,
        (sent, weights),
        (scaled,),
        saved=(wide, Tensor("sorted_scores", (sent.shape[0],), DType.FP32), order),
        forward_workspace=wide.num_bytes,
        backward_workspace=2 * wide.num_bytes,
    )


def _experts(shape: RankShape, sent: Tensor) -> tuple[Operators, Tensor]:
    """Padding to whole groups, w1, w3 and w2 of all experts, and padding off again; under expert
    parallelism between two all-to-alls, the second of which returns before the module's arguments
    and output are let go."""
    counts, width = moe_tokens(shape), sent.shape[-1]
    exchanges = shape.expert_model_parallel_size > 1
    copies = counts.computed if exchanges else sent.shape[0]
    received = rows(shape, "received_tokens", copies, width) if exchanges else sent
    count = copies + counts.local_experts * ALIGNMENT
    indices = Tensor("padded_rows", (-(-count // ALIGNMENT) * ALIGNMENT,), DType.INT32)
    padded = rows(shape, "padded_tokens", *indices.shape, width)
    ffn = shape.model.expert_ffn_hidden_size // shape.expert_tensor_parallel_size
    first, third = (rows(shape, f"experts.w{n}_out", *indices.shape, ffn) for n in (1, 3))
    activate, multiply = moe.gated(shape, first, third)
    output = rows(shape, "experts.w2_out", *indices.shape, width)
    computed = rows(shape, "experts_out", copies + 1, width)
    operators = (
        _pad(received, padded, indices),
        moe.grouped_linear(shape, "w1", Module.EXPERT_FC1, padded, first),
        activate,
        moe.grouped_linear(shape, "w3", Module.EXPERT_FC1, padded, third),
        multiply,
        moe.grouped_linear(shape, "w2", Module.EXPERT_FC2, multiply.outputs[0], output),
        replace(_put(output, computed, indices, longer=True), forward_holds=(padded,)),
    )
    if not exchanges:
        return operators, computed
    back = rows(shape, "combined_tokens", *sent.shape)
    combine = all_to_all("combine.all_to_all", Module.COMBINE, computed, back)
    return (
        all_to_all("dispatch.all_to_all", Module.DISPATCH, sent, received),
        *operators,
        replace(combine, forward_holds=(padded, output)),
    ), back


def _pad(source: Tensor, padded: Tensor, indices: Tensor) -> Operator:
    """A row of zeros is put after all rows, by a copy, and rows are taken from that."""
    longer = source.num_bytes + 2 * source.num_bytes // source.shape[0]
    return Operator(
        "pad_groups",
        Module.DISPATCH,
        (source,),
        (padded,),
        saved=(indices,),
        forward_workspace=longer,
        backward_workspace=longer,
    )


def _put(source: Tensor, output: Tensor, indices: Tensor, *, longer: bool = False) -> Operator:
    """Rows of `source` written to `indices` of a new tensor. Where the next operator reads all but
    its last row, the gradient is first copied into a `longer` one."""
    return Operator(
        f"{output.name}.put",
        Module.COMBINE,
        (source,),
        (output,),
        saved=(indices,),
        backward_workspace=output.num_bytes if longer else 0,
    )


def _weighted(shape: RankShape, unsorted: Tensor, weights: Tensor) -> Operators:
    """torch.bmm of scores and an fp32 copy of the experts' outputs: keeps both."""
    wide = Tensor("unsorted.fp32", unsorted.shape, DType.FP32)
    output = _output(shape)
    total = Tensor("weighted_sum", output.shape, DType.FP32)
    return (
        Operator("unsorted.float", Module.COMBINE, (unsorted,), (wide,)),
        Operator("weighted_sum", Module.COMBINE, (weights, wide), (total,), saved=(weights, wide)),
        Operator("weighted_sum.cast", Module.COMBINE, (total,), (output,)),
    )


def _output(shape: RankShape) -> Tensor:
    return rows(shape, "routed_out", shape.tokens, shape.model.hidden_size)
