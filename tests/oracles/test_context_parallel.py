"""Attention over context-parallel ranks: a block of transformers under DeepSpeed's Ulysses, and
torch's own ring, against their code on fake tensors."""

import pytest
from msgspec.structs import astuple, replace

pytest.importorskip("transformers")
pytest.importorskip("deepspeed.runtime.sequence_parallel.ulysses_sp")

from advisor.layers.eager.context_parallel import attention_over_ranks
from advisor.layers.eager.parts import activation
from advisor.layers.operators import total_bytes
from advisor.layers.shape import RankShape
from advisor.layers.transformer import transformer_layer
from advisor.memory.liveness import footprint
from advisor.models.options import CpCommType, TransformerImpl
from advisor.models.spec import ModelSpec

from .recorded import measured
from .stacks.shapes import LLAMA2_7B, LLAMA3_8B, QWEN3_8B, shape_of

TOLERANCE = 0.005


@pytest.mark.parametrize("model", [LLAMA3_8B, LLAMA2_7B, QWEN3_8B], ids=lambda m: m.name)
@pytest.mark.parametrize("ranks", [2, 8, 16])
@pytest.mark.parametrize("micro_batch_size", [1, 2])
def test_a_block_under_ulysses(model: ModelSpec, ranks: int, micro_batch_size: int) -> None:
    """Kept to the byte; with 16 ranks each of 8 key/value heads is on two of them."""
    shape = replace(
        shape_of(model, TransformerImpl.TRANSFORMERS, seq=4096, mbs=micro_batch_size),
        context_parallel_size=ranks,
        cp_comm_type=CpCommType.A2A,
    )

    def live() -> tuple[int, ...]:
        from .stacks.measure import measure  # seconds of imports
        from .stacks.ulysses import exchanged_heads

        alone = replace(shape, context_parallel_size=1, seq_length=shape.local_seq)
        with exchanged_heads(shape):
            return astuple(measure(alone))

    kept, forward, backward = measured("ulysses_block", shape, by=live)
    found = footprint(transformer_layer(shape, shape.model.layer_kinds[0]), ())
    assert found.kept == kept
    assert found.forward.num_bytes == pytest.approx(forward, rel=TOLERANCE)
    assert found.held_backward.num_bytes == pytest.approx(backward, rel=TOLERANCE)


def _worst(shape: RankShape) -> tuple[int, ...]:
    from .stacks.ring import ring_attention  # seconds of imports

    gathers = shape.cp_comm_type is CpCommType.ALL_GATHER
    last = shape.context_parallel_size - 1
    each = [ring_attention(shape, rank, gathers=gathers) for rank in (0, last)]
    return tuple(max(passes) for passes in zip(*each, strict=True))


@pytest.mark.parametrize("kind", [CpCommType.ALL_GATHER, CpCommType.P2P])
@pytest.mark.parametrize("ranks", [2, 4, 8])
@pytest.mark.parametrize("groups", [2, 8, 32])
def test_a_ring(groups: int, ranks: int, kind: CpCommType) -> None:
    """Of the rank that has most: the last one forward, the first or the last one back."""
    shape = replace(
        shape_of(replace(LLAMA3_8B, num_query_groups=groups), TransformerImpl.TORCH, seq=8192),
        context_parallel_size=ranks,
        cp_comm_type=kind,
    )
    forward, backward = measured("ring_attention", shape, by=lambda: _worst(shape))
    widths = (shape.local_heads, shape.local_groups, shape.local_groups)
    names = ("query", "key", "value")
    tensors = [
        activation(shape, name, heads * shape.model.kv_channels)
        for name, heads in zip(names, widths, strict=True)
    ]
    (ring,) = attention_over_ranks(shape, *tensors)
    made = ring.outputs[0].num_bytes + ring.saved[-1].num_bytes
    gradients = total_bytes(ring.inputs)
    assert ring.forward_workspace + made == pytest.approx(forward, rel=TOLERANCE)
    assert ring.backward_workspace + gradients == pytest.approx(backward, rel=TOLERANCE)
