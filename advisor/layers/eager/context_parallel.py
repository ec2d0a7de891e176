"""Attention over context-parallel ranks in eager torch, each of which has a part of the sequence.

Ulysses gives every rank whole sequences of a part of the heads (DeepSpeed 0.19.8
runtime/sequence_parallel/ulysses_sp.py UlyssesSPAttentionHF). torch's own keeps a rank's queries
and brings it keys and values of the others, all at once or one after another (torch 2.13
distributed/tensor/experimental/_context_parallel/_attention.py). Both ran on fake tensors in
tests/oracles.
"""

from msgspec.structs import replace

from advisor.base.dtypes import DType
from advisor.layers.eager.parts import activation, attention
from advisor.layers.operators import Collective, CollectiveKind, Group, Module, Operator, Tensor
from advisor.layers.shape import RankShape
from advisor.models.options import CpCommType

_CORE = Module.CORE_ATTENTION
_MERGE_TRAFFIC = 19
"""Bytes moved for a byte of a partial output that is merged: cast (3), difference (6), product (4)
and difference (6) in fp32."""


def attention_over_ranks(
    shape: RankShape, query: Tensor, key: Tensor, value: Tensor
) -> tuple[Operator, ...]:
    """Attention of the rank's queries to all keys before them; the last operator's output is the
    rank's part [micro_batch_size, seq_length / cp, heads x v_channels]."""
    if shape.context_parallel_size == 1:
        return (attention(shape, query, key, value),)
    if shape.cp_comm_type is CpCommType.A2A:
        return _ulysses(shape, query, key, value)
    return (_ring(shape, query, key, value),)


def by_heads(shape: RankShape) -> RankShape:
    """Sizes of attention itself under Ulysses: the whole sequence, a part of the heads; a key/value
    head that there are not enough of is on several ranks."""
    ranks = shape.context_parallel_size
    return replace(shape, context_parallel_size=1, tensor_model_parallel_size=shape.tp * ranks)


def _ulysses(shape: RankShape, query: Tensor, key: Tensor, value: Tensor) -> tuple[Operator, ...]:
    """All-to-alls of queries, keys and values, attention, and one of its output. Each tensor is
    copied to be sent, received, and put in order once all are there; the output is received and put
    in order, so that the linear layer after keeps another tensor than attention."""
    inner = by_heads(shape)
    model = shape.model
    made = tuple(
        Tensor(f"{name}_by_heads", (*tensor.shape[:1], shape.seq_length, width), tensor.dtype)
        for name, tensor, width in (
            ("query", query, inner.local_heads * model.qk_channels),
            ("key", key, inner.local_groups * model.qk_channels),
            ("value", value, inner.local_groups * model.v_channels),
        )
    )
    sent = sum(tensor.num_bytes for tensor in made)
    largest = max(tensor.num_bytes for tensor in made)
    there = Operator(
        "ulysses_scatter_heads",
        _CORE,
        (query, key, value),
        made,
        forward_workspace=largest,
        backward_workspace=largest,
        extra_forward_bytes=4 * sent,
        extra_backward_bytes=4 * sent,
        forward_kernels=2 * len(made),
        backward_kernels=2 * len(made),
        **Collective.both_ways(CollectiveKind.ALL_TO_ALL, Group.CONTEXT, sent),
    )
    kernel = attention(inner, *made)
    whole = replace(kernel.outputs[0], name="context_by_heads")
    kernel = replace(
        kernel,
        outputs=(whole,),
        saved=tuple(whole if t == kernel.outputs[0] else t for t in kernel.saved),
    )
    output = activation(shape, "core_attention_out", shape.local_heads * model.v_channels)
    back = Operator(
        "ulysses_gather_heads",
        _CORE,
        (whole,),
        (output,),
        forward_workspace=output.num_bytes,
        backward_workspace=output.num_bytes,
        extra_forward_bytes=2 * output.num_bytes,
        extra_backward_bytes=2 * output.num_bytes,
        **Collective.both_ways(CollectiveKind.ALL_TO_ALL, Group.CONTEXT, output.num_bytes),
    )
    return there, kernel, back


def _ring(shape: RankShape, query: Tensor, key: Tensor, value: Tensor) -> Operator:
    """Partial outputs are merged in fp32; back, the gradients of keys and values travel on with
    them, in fp32. Bytes of the rank that has most: the last one forward, of the others back. The
    gathering, or the next rank's keys and values, are next to the kernels of a step."""
    alone = attention(shape, query, key, value)
    ranks, pair = shape.context_parallel_size, key.num_bytes + value.num_bytes
    output, lse = alone.outputs[0].num_bytes, alone.saved[-1].num_bytes
    gathers = shape.cp_comm_type is CpCommType.ALL_GATHER
    received = pair * (ranks if gathers else min(ranks - 1, 2))
    wide = pair * DType.FP32.itemsize // key.dtype.itemsize
    kind = CollectiveKind.ALL_GATHER if gathers else CollectiveKind.RING
    sources = ranks if gathers else ranks - 1
    brought = Collective(kind, Group.CONTEXT, sources * pair, overlapped=True)
    gradients = Collective(CollectiveKind.RING, Group.CONTEXT, ranks * wide, overlapped=True)
    assert alone.attention is not None
    return replace(
        alone,
        attention=replace(alone.attention, steps=1.0 + 0.75 * (ranks - 1)),
        forward_workspace=received + 8 * output + 2 * lse,
        backward_workspace=received + _gradients_of_a_step(query.num_bytes, pair, lse),
        forward_collectives=(brought,),
        backward_collectives=(brought, gradients),
        extra_forward_bytes=(ranks - 1) * _MERGE_TRAFFIC * output + 2 * ranks * pair,
        extra_backward_bytes=ranks * (5 * query.num_bytes + 12 * pair),
    )


def _gradients_of_a_step(query: int, pair: int, lse: int) -> int:
    """Bytes of gradients, in fp32 and 16 bits, next to those that go out: while the queries' are
    added on the first rank, or on the last one, or while the keys' and values' are sent."""
    whole = max(
        (9 * query + lse) // 2 + 8 * pair, 4 * query + 17 * pair // 2, 3 * query + 19 * pair // 2
    )
    return whole - query - pair
