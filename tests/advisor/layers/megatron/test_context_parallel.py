"""Attention over context-parallel ranks against Transformer Engine's own functions.

The figures are live bytes, counted by storage, of the functions of context_parallel.py of the
transformer_engine wheels 2.11.0 and 2.20.2, run on CPU tensors (torch 2.13) on the last rank:
sequence 8192, batch 1, 16 channels a head, bf16, with collectives and kernels that only make their
outputs. They count cu_seqlens and random states too, two small tensors a rank: TOLERANCE.
"""

from typing import Any

import pytest
from msgspec.structs import replace

from advisor.layers.megatron.context_parallel import over_context_ranks, ring_steps
from advisor.layers.megatron.core_attention import heads_tensor
from advisor.layers.operators import CollectiveKind, ComputeUnit, Module, Operator, Tensor
from advisor.layers.shape import RankShape
from advisor.layers.transformer import transformer_layer
from advisor.models.options import AttentionBackend, CpCommType
from advisor.models.presets import load_model
from tests.advisor.toys import saved_bytes

TOLERANCE = 200
RUNS = (  # release, kind, CP, of which all-to-all, heads, groups; forward, kept, backward
    ((2, 11), "p2p", 4, 1, 16, 8, None, 3276840, 7340032),
    ((2, 11), "all_gather", 4, 1, 32, 8, 8650824, 5505064, 19398688),
    ((2, 11), "a2a", 4, 4, 32, 8, 11796552, 5505040, 13107200),
    ((2, 11), "a2a+p2p", 8, 2, 16, 8, 7667776, 1638440, 7077888),
    ((2, 20), "p2p", 4, 1, 8, 8, 5963792, 2162728, 6291456),
    ((2, 20), "p2p", 8, 1, 32, 8, 6422584, 2752584, 4718592),
    ((2, 20), "all_gather", 2, 1, 16, 8, 10747960, 6553640, 19922960),
    ((2, 20), "a2a", 8, 8, 8, 8, 1867912, 1081360, 2883584),
    ((2, 20), "a2a+p2p", 8, 2, 8, 8, 3768352, 1081384, 5242880),
    ((2, 20), "a2a+p2p", 8, 4, 32, 8, 9437264, 2752536, 9699328),
)
"""The forward of the ring in 2.11 has temporaries that torch.compile fuses on a GPU: not compared
to the byte."""


def _shape(kind: str, cp: int, exchanging: int = 1, **changes: Any) -> RankShape:
    heads, groups = changes.pop("heads", 16), changes.pop("groups", 8)
    model = replace(
        load_model("llama3_8b"),
        num_attention_heads=heads,
        num_query_groups=groups,
        kv_channels=16,
        hidden_size=16 * heads,
        attention_backend=AttentionBackend.FUSED,
    )
    return RankShape(
        model=model,
        seq_length=8192,
        micro_batch_size=1,
        context_parallel_size=cp,
        cp_comm_type=CpCommType(kind),
        cp_all_to_all_size=exchanging,
        **changes,
    )


def _attention(shape: RankShape) -> Operator:
    """Attention over all ranks, without the kernel's own workspace."""
    heads, groups = shape.local_heads, shape.local_groups
    query, key, value, output = (
        heads_tensor(shape, name, number)
        for name, number in (("q", heads), ("k", groups), ("v", groups), ("o", heads))
    )
    lse = Tensor("lse", (heads, shape.local_seq, 2), shape.dtype)  # as many bytes as one of fp32
    alone = Operator(
        name="core_attention",
        module=Module.CORE_ATTENTION,
        unit=ComputeUnit.ATTENTION,
        inputs=(query, key, value),
        outputs=(output,),
        saved=(query, key, value, output, lse),
    )
    return over_context_ranks(shape, alone)


@pytest.mark.parametrize("run", RUNS, ids=lambda run: f"{run[1]}_{run[0][1]}_cp{run[2]}_{run[4]}")
def test_bytes_are_those_of_transformer_engine(run: tuple[Any, ...]) -> None:
    release, kind, cp, exchanging, heads, groups, forward, kept, backward = run
    changes = {"heads": heads, "groups": groups, "transformer_engine": release}
    found = _attention(_shape(kind, cp, exchanging, **changes))
    inputs = sum(tensor.num_bytes for tensor in found.inputs)
    fresh = {t.name: t.num_bytes for t in (*found.outputs, *found.saved) if t not in found.inputs}
    assert sum(tensor.num_bytes for tensor in found.saved) == pytest.approx(kept, abs=TOLERANCE)
    assert found.backward_workspace + inputs == pytest.approx(backward, abs=TOLERANCE)
    if forward:
        held = found.forward_workspace + sum(fresh.values())
        assert held == pytest.approx(forward, abs=TOLERANCE)


@pytest.mark.parametrize(
    ("cp", "heads", "kept", "back"), [(4, 32, 5242880, 5242880), (8, 32, 2621440, 2621440)]
)
def test_what_the_second_stream_allocates_of_an_exchange(
    cp: int, heads: int, kept: int, back: int
) -> None:
    """flash_attn_a2a_communicate of transformer_engine 2.20.2 on CPU tensors, its
    torch.cuda.stream replaced by one that is noted for each new storage: q, k, v and the output
    forward; back the output's gradient, and those of q, k and v."""
    found = _attention(_shape("a2a", cp, cp, heads=heads))
    sizes = {t.storage.name: t.num_bytes for t in (*found.saved, *found.outputs)}
    gradients = {f"gradient of {tensor.name}": tensor.num_bytes for tensor in found.inputs}
    names = found.second_stream
    assert names <= sizes.keys() | gradients.keys()
    assert sum(size for name, size in sizes.items() if name in names) == kept
    written = sum(size for name, size in gradients.items() if name in names)
    assert found.second_stream_bytes + written == back


@pytest.mark.parametrize("kind", ["p2p", "all_gather"])
def test_a_ring_keeps_what_the_computing_stream_allocated(kind: str) -> None:
    assert _attention(_shape(kind, 4)).second_stream == frozenset()


def test_the_ring_of_older_releases_holds_all_of_its_steps() -> None:
    """Until 2.19 as much as on one rank alone, however many there are; from 2.20 on less by CP."""
    old = [_attention(_shape("p2p", cp, transformer_engine=(2, 19))) for cp in (4, 16)]
    new = [_attention(_shape("p2p", cp)) for cp in (4, 16)]
    assert old[1].forward_workspace > 0.9 * old[0].forward_workspace
    assert new[1].forward_workspace < 0.3 * new[0].forward_workspace


def test_what_each_kind_sends() -> None:
    """q and the output have 16 heads, k and v 8, of 16 channels in bf16; 2048 positions."""
    kv, whole = 2 * 2048 * 8 * 16 * 2, 2048 * 16 * 16 * 2
    ring, gather, exchange, both = (
        _attention(_shape(kind, 4, ranks))
        for kind, ranks in (("p2p", 1), ("all_gather", 1), ("a2a", 4), ("a2a+p2p", 2))
    )
    assert [(c.kind, c.num_bytes, c.overlapped) for c in ring.forward_collectives] == [
        (CollectiveKind.RING, 3 * kv, True)
    ]
    assert sum(c.num_bytes for c in ring.backward_collectives) == 6 * kv  # gradients as well
    assert [(c.kind, c.num_bytes, c.overlapped) for c in gather.backward_collectives] == [
        (CollectiveKind.ALL_GATHER, 4 * kv, False),
        (CollectiveKind.REDUCE_SCATTER, 4 * kv, False),
    ]
    sent = [c.num_bytes for c in exchange.forward_collectives]
    assert sent == [whole + kv, whole] == [c.num_bytes for c in exchange.backward_collectives][::-1]
    assert [c.num_bytes for c in both.forward_collectives] == [whole + kv, kv, whole]


@pytest.mark.parametrize(("exchanging", "kind"), [(1, "p2p"), (8, "a2a")])
def test_one_level_of_one_rank_is_the_other_alone(exchanging: int, kind: str) -> None:
    assert _attention(_shape("a2a+p2p", 8, exchanging)) == _attention(_shape(kind, 8, exchanging))


def test_packed_sequences_attend_to_less_and_send_as_much() -> None:
    for kind, exchanging in (("p2p", 1), ("all_gather", 1), ("a2a", 4), ("a2a+p2p", 2)):
        packed, whole = (
            next(
                o
                for o in transformer_layer(_shape(kind, 4, exchanging, mean_packed_length=length))
                if o.name == "core_attention"
            )
            for length in (1024, None)
        )
        assert 8 * packed.attention_flops == whole.attention_flops
        assert packed.forward_collectives == whole.forward_collectives


def test_a_layer_keeps_one_more_output_where_heads_are_given_back() -> None:
    kept = {
        kind: sum(saved_bytes(transformer_layer(_shape(kind, 4, ranks))).values())
        for kind, ranks in (("p2p", 1), ("all_gather", 1), ("a2a", 4), ("a2a+p2p", 2))
    }
    output = 2048 * 16 * 16 * 2
    assert kept["all_gather"] == kept["p2p"]
    assert kept["a2a"] == kept["a2a+p2p"] == kept["p2p"] + output


@pytest.mark.parametrize(
    ("kind", "exchanging", "steps"),
    [("p2p", 1, 1 + 3 * 0.75), ("all_gather", 1, 1.0), ("a2a", 4, 1.0), ("a2a+p2p", 2, 1.75)],
)
def test_kernels_that_rows_go_through(kind: str, exchanging: int, steps: float) -> None:
    """Over a ring of 4 a row meets its own keys, and those of three others three times in four."""
    assert ring_steps(_shape(kind, 4, exchanging)) == steps
