"""torch's attention over context-parallel ranks on fake tensors and a fake process group."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.tensor.experimental._context_parallel import _attention
from torch.testing._internal.distributed.fake_pg import FakeStore

from advisor.layers.shape import RankShape

from .meter import LiveBytes

aten = torch.ops.aten
_SEQUENCE = 2


def ring_attention(shape: RankShape, rank: int, *, gathers: bool) -> tuple[int, int]:
    """The most bytes alive in either pass of one rank of the shape's, with queries, keys, values,
    what is kept of the forward, and the gradient that comes in."""
    ranks = shape.context_parallel_size
    with _ranks(rank, ranks), FakeTensorMode(allow_non_fake_inputs=True):
        group = dist.group.WORLD
        assert group is not None
        method = _attention._RotateMethod
        chosen = method.ALL_GATHER if gathers else method.ALL_TO_ALL
        before, _attention._cp_options.rotate_method = (
            _attention._cp_options.rotate_method,
            chosen,
        )
        try:
            return _passes(shape, group)
        finally:
            _attention._cp_options.rotate_method = before


def _passes(shape: RankShape, group: dist.ProcessGroup) -> tuple[int, int]:
    heads = shape.local_heads, shape.local_groups, shape.local_groups
    query, key, value = (
        torch.empty(
            shape.micro_batch_size,
            number,
            shape.local_seq,
            shape.model.kv_channels,
            dtype=torch.bfloat16,
        )
        for number in heads
    )
    with LiveBytes((query, key, value)) as live:
        out, lse, *rest = _attention._templated_ring_attention(
            group,
            _SEQUENCE,
            aten._scaled_dot_product_flash_attention,
            query,
            key,
            value,
            is_causal=True,
        )
        forward = live.peak
        gradient = torch.empty_like(out)
        live.reset_peak()
        kept = live.now
        found = _attention._templated_ring_attention_backward(
            group,
            _SEQUENCE,
            aten._scaled_dot_product_flash_attention_backward.default,
            grad_out=gradient,
            grad_out_name="grad_out",
            query=query,
            key=key,
            value=value,
            out=out,
            logsumexp=lse,
            is_causal=True,
            cum_seq_q=rest[0],
            cum_seq_k=rest[1],
            max_q=rest[2],
            max_k=rest[3],
            dropout_p=0.0,
            philox_seed=rest[4],
            philox_offset=rest[5],
        )
        backward = live.peak - kept
        del found
    return forward, backward


@contextmanager
def _ranks(rank: int, number: int) -> Iterator[None]:
    dist.init_process_group("fake", rank=rank, world_size=number, store=FakeStore())
    try:
        yield
    finally:
        dist.destroy_process_group()
