"""Bringing tokens to the ranks of their experts and their results back.

Source: megatron-core 0.16.1 transformer/moe/token_dispatcher.py and moe_utils.py; alltoall and
allgather are run in tests/oracles. Read, not run: the flex dispatcher (fused_a2a.py, DeepEP), and
moe_permute_fusion (Transformer Engine 2.20.2 pytorch/permutation.py, triton/permutation.py).
"""

from typing import Any

from msgspec import Struct

from advisor.base.dtypes import DType
from advisor.layers.expert_tokens import moe_tokens, router_dtype, rows
from advisor.layers.operators import Collective, CollectiveKind, Group, Module, Operator, Tensor
from advisor.layers.shape import RankShape
from advisor.models.options import TokenDispatcher


class Dispatched(Struct, frozen=True):
    """Tokens [rows, hidden_size] sorted by expert with their probabilities [rows], the operators
    that made them, and tensors that variables hold until the layer has run forward."""

    tokens: Tensor
    probs: Tensor
    operators: tuple[Operator, ...]
    variables: tuple[Tensor, ...]


def dispatch(shape: RankShape, source: Tensor, probs: Tensor, routing_map: Tensor) -> Dispatched:
    """Permute, communicate, sort by local expert."""
    there, _ = _WAYS[shape.model.moe_token_dispatcher_type]
    return there(shape, source, probs, routing_map)


def combine(shape: RankShape, source: Tensor) -> tuple[Operator, ...]:
    """The way back, from the experts' output to [tokens, hidden_size]."""
    _, back = _WAYS[shape.model.moe_token_dispatcher_type]
    return back(shape, source)


def _exchange(*tensors: Tensor, before: tuple[Collective, ...] = ()) -> dict[str, Any]:
    """All-to-alls over EP, one of each tensor, and of its gradient on the way back."""
    sent = tuple(
        Collective(CollectiveKind.ALL_TO_ALL, Group.EXPERT, tensor.num_bytes) for tensor in tensors
    )
    return {"forward_collectives": (*before, *sent), "backward_collectives": sent}


def _counts(shape: RankShape) -> tuple[Collective, ...]:
    """All-gather of every rank's tokens by expert, 8 bytes each, ahead of the all-to-alls
    (MoEAlltoAllTokenDispatcher.preprocess)."""
    ranks = shape.expert_model_parallel_size * shape.expert_tensor_parallel_size
    num_bytes = ranks * moe_tokens(shape).num_experts * DType.INT64.itemsize
    return (Collective(CollectiveKind.ALL_GATHER, Group.EXPERT_TENSOR_AND_MODEL, num_bytes),)


def _added_bytes(shape: RankShape, rows_of: Tensor) -> int:
    """Traffic of adding rows to those of their tokens one by one, where the permutation is not
    fused (scatter_add, and back index_select's gradient): a zeroed sum is read and written again
    for each row."""
    return 0 if shape.model.moe_permute_fusion else 2 * rows_of.num_bytes


def _hidden_rows(shape: RankShape, name: str, count: int) -> Tensor:
    return rows(shape, name, count, shape.model.hidden_size)


def _permutation(shape: RankShape, tokens: int, experts: int, routed: int) -> Tensor:
    """How rows are permuted, kept for the backward of both ways: [routed] indices, or the fused
    kernels' map [tokens, 2 experts + 1]."""
    if shape.model.moe_permute_fusion:
        return Tensor("row_id_map", (tokens, 2 * experts + 1), DType.INT32)
    return Tensor("sorted_indices", (routed,), DType.INT64)


def _selected_probs(shape: RankShape, tokens: int, experts: int, routed: int) -> tuple[Tensor, ...]:
    """Kept to pick the probabilities of the permuted rows: transposed copies of probabilities and
    map, or all pairs of expert and token, sorted, of which a view indexes; with padding to capacity
    the place of each row. The fused kernel keeps nothing more."""
    if shape.model.moe_permute_fusion:
        return ()
    if shape.model.moe_pad_expert_input_to_capacity:
        return (Tensor("indices_1d", (routed,), DType.INT64),)
    if shape.sorts_routing_map:
        return (Tensor("sorted_pairs", (experts, tokens), DType.INT64),)
    return (
        Tensor("router_probs_t", (experts, tokens), router_dtype(shape)),
        Tensor("routing_map_t", (experts, tokens), DType.BOOL),
    )


def _with_probs(shape: RankShape, prefix: str, count: int) -> tuple[Tensor, Tensor]:
    """Rows of tokens, and their probabilities in the router's type."""
    probs = Tensor(f"{prefix}_probs", (count,), router_dtype(shape))
    return _hidden_rows(shape, f"{prefix}_tokens", count), probs


def _all_to_all(shape: RankShape, source: Tensor, probs: Tensor, routing_map: Tensor) -> Dispatched:
    """MoEAlltoAllTokenDispatcher: permute, all-to-all over EP, all-gather over ETP, sort."""
    counts = moe_tokens(shape)
    made = _with_probs(shape, "permuted", counts.routed)
    shape_of = (counts.local, counts.num_experts, counts.routed)
    operators = [
        Operator(
            "permute",
            Module.DISPATCH,
            (source, probs, routing_map),
            made,
            saved=(_permutation(shape, *shape_of), *_selected_probs(shape, *shape_of)),
            gradient_free_inputs=frozenset({routing_map.name}),
            extra_backward_bytes=_added_bytes(shape, made[0]),
        )
    ]
    variables: tuple[Tensor, ...] = made
    if shape.expert_model_parallel_size > 1:
        sent, made = made, _with_probs(shape, "received", counts.received)
        exchange = _exchange(*made, before=_counts(shape))
        operators.append(Operator("dispatch_all_to_all", Module.DISPATCH, sent, made, **exchange))
        variables += made
    if shape.expert_tensor_parallel_size > 1:
        part, made = made, _with_probs(shape, "gathered", counts.computed)
        gather = Collective.both_ways(
            CollectiveKind.ALL_GATHER, Group.EXPERT_TENSOR, made[0].num_bytes
        )
        operators.append(Operator("gather_expert_tokens", Module.DISPATCH, part, made, **gather))
    if counts.local_experts > 1:
        unsorted, made = made, _with_probs(shape, "expert", counts.computed)
        saved = _sort_map(shape, "sort_map", counts.computed)
        operators.append(Operator("sort_by_expert", Module.DISPATCH, unsorted, made, saved=saved))
    return Dispatched(*made, tuple(operators), variables)


def _sort_map(shape: RankShape, name: str, count: int) -> tuple[Tensor, ...]:
    """Row map that the fused sort keeps; splitting and concatenating keeps nothing."""
    return (Tensor(name, (count,), DType.INT32),) if shape.model.moe_permute_fusion else ()


def _combine_all_to_all(shape: RankShape, source: Tensor) -> tuple[Operator, ...]:
    """Unsort, reduce-scatter over ETP in the router's type, all-to-all, unpermute."""
    counts = moe_tokens(shape)
    operators, tensor = [], source
    if counts.local_experts > 1:
        unsorted = _hidden_rows(shape, "unsorted_out", counts.computed)
        saved = _sort_map(shape, "unsort_map", counts.computed)
        operators.append(
            Operator("unsort_by_expert", Module.COMBINE, (tensor,), (unsorted,), saved=saved)
        )
        tensor = unsorted
    if shape.expert_tensor_parallel_size > 1:
        part = _hidden_rows(shape, "scattered_out", counts.received)
        operators.append(_reduce_scatter(shape, tensor, part, Group.EXPERT_TENSOR, holds=(source,)))
        tensor = part
    if shape.expert_model_parallel_size > 1:
        returned = _hidden_rows(shape, "returned_out", counts.routed)
        operators.append(
            Operator(
                "combine_all_to_all", Module.COMBINE, (tensor,), (returned,), **_exchange(tensor)
            )
        )
        tensor = returned
    permutation = _permutation(shape, counts.local, counts.num_experts, counts.routed)
    operators.append(_unpermute(shape, tensor, shape.hidden("experts_out"), permutation))
    return tuple(operators)


def _unpermute(shape: RankShape, source: Tensor, output: Tensor, permutation: Tensor) -> Operator:
    """Sums of the rows of each token, which are kept where probabilities multiply them."""
    return Operator(
        "unpermute",
        Module.COMBINE,
        (source,),
        (output,),
        saved=(permutation, *((source,) if shape.weighs_outputs else ())),
        extra_forward_bytes=_added_bytes(shape, source),
    )


def _reduce_scatter(
    shape: RankShape, source: Tensor, output: Tensor, group: Group, holds: tuple[Tensor, ...] = ()
) -> Operator:
    """Reduce-scatter in the type of the probabilities: copies in it, where it is another one."""
    dtype = router_dtype(shape)
    scale = dtype.itemsize // shape.dtype.itemsize
    copies = scale * (source.num_bytes + output.num_bytes) if dtype is not shape.dtype else 0
    return Operator(
        "reduce_scatter_expert_out",
        Module.COMBINE,
        (source,),
        (output,),
        forward_holds=holds,
        forward_workspace=max(0, copies - output.num_bytes),  # which is made last
        backward_workspace=max(0, copies - source.num_bytes),
        **Collective.both_ways(CollectiveKind.REDUCE_SCATTER, group, scale * source.num_bytes),
    )


def _all_gather(shape: RankShape, source: Tensor, probs: Tensor, routing_map: Tensor) -> Dispatched:
    """MoEAllGatherTokenDispatcher: every rank gathers all tokens (in the buffer of the process) and
    picks those of its experts. A variable of MoELayer.forward holds all their probabilities."""
    counts, dtype = moe_tokens(shape), router_dtype(shape)
    parallel = shape.expert_model_parallel_size * shape.expert_tensor_parallel_size > 1
    operators: list[Operator] = []
    tokens, weights, chosen, gathered_bytes = source, probs, routing_map, 0
    if parallel:
        weights = Tensor("gathered_probs", (counts.gathered, counts.num_experts), dtype)
        chosen = Tensor("gathered_routing_map", weights.shape, DType.BOOL)
        gathered_bytes = gathered_token_bytes(shape)
        tokens = _hidden_rows(shape, "gathered_tokens", 0)
        operators.append(
            Operator(
                "gather_tokens",
                Module.DISPATCH,
                (source, probs, routing_map),
                (tokens, weights, chosen),
                gradient_free_inputs=frozenset({routing_map.name}),
                backward_workspace=gathered_bytes,
                **Collective.both_ways(
                    CollectiveKind.ALL_GATHER, Group.EXPERT_TENSOR_AND_MODEL, gathered_bytes
                ),
            )
        )
    made = _with_probs(shape, "expert", counts.computed)
    shape_of = (counts.gathered, counts.local_experts, counts.computed)
    selected = (
        Tensor("router_probs_t", (counts.local_experts, counts.gathered), dtype),
        Tensor("routing_map_t", (counts.local_experts, counts.gathered), DType.BOOL),
    )
    operators.append(
        Operator(
            "permute",
            Module.DISPATCH,
            (tokens, weights, chosen),
            made,
            saved=(_permutation(shape, *shape_of), *selected),
            gradient_free_inputs=frozenset({chosen.name}),
            backward_workspace=gathered_bytes,
            extra_backward_bytes=_added_bytes(shape, made[0]),
        )
    )
    return Dispatched(*made, tuple(operators), (weights,))


def gathered_token_bytes(shape: RankShape) -> int:
    """Bytes of [tokens of all ranks of the expert group, hidden_size]: on the way there in the
    buffer of the process, its gradient on the way back in a tensor of its own."""
    return moe_tokens(shape).gathered * shape.model.hidden_size * shape.dtype.itemsize


def _combine_all_gather(shape: RankShape, source: Tensor) -> tuple[Operator, ...]:
    """Unpermute into rows of all ranks, then reduce-scatter them."""
    counts = moe_tokens(shape)
    permutation = _permutation(shape, counts.gathered, counts.local_experts, counts.computed)
    output = shape.hidden("experts_out")
    if counts.gathered == counts.local:
        return (_unpermute(shape, source, output, permutation),)
    whole = _hidden_rows(shape, "unpermuted_out", counts.gathered)
    return (
        _unpermute(shape, source, whole, permutation),
        _reduce_scatter(shape, whole, output, Group.EXPERT_TENSOR_AND_MODEL),
    )


def _flex(shape: RankShape, source: Tensor, probs: Tensor, routing_map: Tensor) -> Dispatched:
    """MoEFlexTokenDispatcher with DeepEP: a token travels once to each rank that has any of its
    experts, with fp32 probabilities [rows, topk]; there it is permuted to the local experts."""
    counts = moe_tokens(shape)
    topk = counts.topk * shape.expert_tensor_parallel_size
    received = _hidden_rows(shape, "received_tokens", counts.received)
    weights = Tensor("received_probs", (counts.received, topk), DType.FP32)
    expert_tokens = _hidden_rows(shape, "expert_tokens", counts.computed)
    expert_probs = Tensor("expert_probs", (counts.computed,), DType.FP32)
    shape_of = (counts.received, counts.local_experts, counts.computed)
    operators = (
        Operator(
            "flex_dispatch",
            Module.DISPATCH,
            (source, probs, routing_map),
            (received, weights),
            saved=(Tensor("received_indices", (counts.received, topk), DType.INT64),),
            gradient_free_inputs=frozenset({routing_map.name}),
            **_flex_exchange(shape, topk * (DType.FP32.itemsize + DType.INT64.itemsize)),
        ),
        Operator(
            "permute",
            Module.DISPATCH,
            (received, weights),
            (expert_tokens, expert_probs),
            saved=(_permutation(shape, *shape_of), *_selected_probs(shape, *shape_of)),
            extra_backward_bytes=_added_bytes(shape, expert_tokens),
        ),
    )
    return Dispatched(expert_tokens, expert_probs, operators, (received,))


def _combine_flex(shape: RankShape, source: Tensor) -> tuple[Operator, ...]:
    counts = moe_tokens(shape)
    permutation = _permutation(shape, counts.received, counts.local_experts, counts.computed)
    restored = _hidden_rows(shape, "unpermuted_out", counts.received)
    output = shape.hidden("experts_out")
    return (
        _unpermute(shape, source, restored, permutation),
        Operator("flex_combine", Module.COMBINE, (restored,), (output,), **_flex_exchange(shape)),
    )


def _flex_exchange(shape: RankShape, scales: int = 0) -> dict[str, Any]:
    """Dispatch or combine of the rank's own tokens in 16 bits, with `scales` bytes a token of
    probabilities and indices; as many bytes as the busiest rank gets more than the mean."""
    counts = moe_tokens(shape)
    token = shape.model.hidden_size * shape.dtype.itemsize + scales
    sent = counts.dispatched * token
    return Collective.both_ways(CollectiveKind.DISPATCH, Group.EXPERT_TENSOR_AND_MODEL, sent)


_WAYS = {
    TokenDispatcher.ALLGATHER: (_all_gather, _combine_all_gather),
    TokenDispatcher.ALLTOALL: (_all_to_all, _combine_all_to_all),
    TokenDispatcher.FLEX: (_flex, _combine_flex),
}
"""Of each dispatcher, there and back."""
