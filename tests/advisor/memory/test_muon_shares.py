"""Whole tensors dealt to ranks, done by hand; tests/oracles/test_muon.py has Megatron's own."""

import pytest

from advisor.job.layout import ParallelLayout
from advisor.layers.operators import Weight
from advisor.memory.muon_shares import (
    MuonShare,
    _deal,
    is_orthogonalized,
    muon_shares,
    newton_schulz_flops,
)
from tests.advisor.jobs import parallel
from tests.advisor.toys import held, toy_shape

SHAPE, CHUNKS = toy_shape(), held(1, first=True, last=True)
LAYOUT = ParallelLayout(**parallel(tp=2, sp=True, dp=2), use_distributed_optimizer=False)
SQUARE = 5 * 6 * 64**3
WORDS = 504 * 64


def test_a_layer_and_both_ends_between_two_ranks() -> None:
    """By size: three norms of 64, proj 64 x 32, qkv and fc2 64 x 64, fc1 128 x 64, two of words;
    to ranks 0, 1, 1, 0, 0, 1, 1, 0, 0, and the same to both TP ranks."""
    first = MuonShare(
        elements=64 + 2048 + 4096 + 2 * WORDS,
        state_bytes=12 * (64 + 2 * WORDS) + 8 * (2048 + 4096),
        flops=5 * (4 * 32 * 32 * 64 + 2 * 32**3) + SQUARE,
        received=3 * 64 + 2048 + 2 * 4096 + 8192 + 2 * WORDS,
        sent=64 + 2048 + 4096 + 2 * WORDS,
    )
    second = MuonShare(
        elements=2 * 64 + 4096 + 8192,
        state_bytes=12 * 2 * 64 + 8 * (4096 + 8192),
        flops=SQUARE + 5 * (4 * 64 * 64 * 128 + 2 * 64**3),
        received=first.received,
        sent=2 * 64 + 4096 + 8192,
    )
    assert muon_shares(SHAPE, CHUNKS, LAYOUT, dealt=True) == (first, first, second, second)
    whole = MuonShare(
        elements=first.elements + second.elements,
        state_bytes=first.state_bytes + second.state_bytes,
        flops=first.flops + second.flops,
    )
    assert muon_shares(SHAPE, CHUNKS, LAYOUT, dealt=False) == (whole,) * 4


@pytest.mark.parametrize(
    ("weight", "muon"),
    [
        (Weight("router.weight", (8, 64)), True),
        (Weight("position_embeddings.weight", (32, 64)), True),
        (Weight("word_embeddings.weight", (504, 64)), False),
        (Weight("output_layer.weight", (504, 64)), False),
        (Weight("conv1d.weight", (64, 4)), False),
        (Weight("input_layernorm.weight", (64,)), False),
    ],
)
def test_matrices_except_the_ends_are_orthogonalized(weight: Weight, muon: bool) -> None:
    assert is_orthogonalized(weight) is muon


def test_five_steps_over_the_smaller_side() -> None:
    assert newton_schulz_flops(2, 3) == newton_schulz_flops(3, 2) == 5 * (4 * 4 * 3 + 2 * 8)


def test_experts_of_a_rank_are_dealt_one_by_one() -> None:
    """Three of 4 x 8, to ranks 0, 1 and 1."""
    shares = _deal([(Weight("experts.fc1", (4, 8), expert=True, copies=3), 3)], 2)
    assert [share.elements for share in shares] == [32, 64]
