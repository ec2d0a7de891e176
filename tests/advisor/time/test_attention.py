"""Seconds of attention kernels, by hand on round rates."""

import pytest
from msgspec.structs import replace

from advisor.layers.operators import AttentionShape
from advisor.time.attention import AttentionRates, Reached, attention_seconds, softmax_flops

RATES = AttentionRates(peak_flops=1024.0, flash=Reached(0.5, 0.5), fused=Reached(1.0, 0.5))
KERNEL = AttentionShape(rows=64, longest=16, qk_channels=128, v_channels=128)
FLOPS = 2 * 256 * 64 * 8
"""Of 64 rows, each of which sees 8 keys: the causal half of 16."""


def forward(kernel: AttentionShape, rates: AttentionRates = RATES, flops: int = FLOPS) -> float:
    return attention_seconds(kernel, flops, rates, backward=False)


def backward(kernel: AttentionShape, rates: AttentionRates = RATES, flops: int = FLOPS) -> float:
    return attention_seconds(kernel, flops, rates, backward=True)


def test_matmuls_run_at_the_rate_that_is_reached() -> None:
    assert forward(KERNEL) == FLOPS / 512.0
    assert backward(KERNEL) == 2.5 * FLOPS / 512.0
    assert forward(replace(KERNEL, fused=True)) == FLOPS / 1024.0
    assert backward(replace(KERNEL, fused=True)) == backward(KERNEL)


def test_blocks_and_the_longest_row_cost_more_where_there_are_few() -> None:
    """8 keys and 4 more for the blocks; 32 / 2 rows as long as the longest, next to 64."""
    blocks = replace(RATES, half_rate_tokens=8.0)
    assert forward(KERNEL, blocks) == forward(KERNEL) * 1.5
    rows = replace(RATES, half_rate_rows=32.0, fused_tail=0.5)
    assert forward(KERNEL, rows) == forward(KERNEL) * 1.5
    fused = replace(KERNEL, fused=True)
    assert forward(fused, rows) == forward(fused) * 1.25


def test_the_causal_half_takes_half_as_long() -> None:
    assert forward(KERNEL, flops=2 * FLOPS) == 2 * forward(KERNEL)


def test_a_window_is_cheaper_but_not_by_all_that_it_masks() -> None:
    """A window of 256 of 4096: 2,048 keys fall to 256, and 64 more of the blocks at its edge."""
    whole = replace(KERNEL, longest=4096)
    narrow = replace(KERNEL, longest=256, windowed=True)
    of_a_key = FLOPS // 8
    ratio = forward(narrow, flops=256 * of_a_key) / forward(whole, flops=2048 * of_a_key)
    assert ratio == (256 + 64) / 2048


def test_small_heads_are_slower_by_the_flop() -> None:
    """A pair: 1,024 of 512 FLOPs at half the peak, 256 of which are softmax; at half the head size
    384 of matmuls and the same softmax."""
    softmax = replace(RATES, softmax_flops=256.0)
    small = replace(KERNEL, qk_channels=64, v_channels=64)
    assert forward(KERNEL, softmax) == forward(KERNEL)
    assert forward(small, softmax, FLOPS // 2) / forward(KERNEL, softmax) == (384 + 256) / 1024
    assert (
        backward(small, softmax, FLOPS // 2) / backward(KERNEL, softmax)
        == ((2560 - 512) / 2 + 512) / 2560
    )


def test_latent_attention_has_wide_keys_and_narrow_values() -> None:
    """Back three matmuls of 192 and two of 128, at a lower rate: 1,664 FLOPs a pair."""
    latent = replace(KERNEL, qk_channels=192)
    flops = 2 * 320 * 64 * 8
    assert forward(latent, flops=flops) == forward(KERNEL) * 320 / 256
    rates = replace(RATES, wide_backward=0.5)
    assert backward(latent, rates, flops) == pytest.approx(backward(KERNEL) * 832 / 640 / 0.5)


def test_eight_bits_speed_up_the_matmuls_alone() -> None:
    rates = replace(RATES, softmax_flops=256.0, narrow_speedup=2.0)
    narrow = replace(KERNEL, narrow=True)
    assert forward(narrow, rates) / forward(KERNEL, rates) == (768 / 2 + 256) / 1024


def test_every_step_of_a_ring_begins_and_ends_its_blocks() -> None:
    rates = replace(RATES, half_rate_tokens=8.0)
    assert forward(replace(KERNEL, steps=2.0), rates) == forward(KERNEL) * 2.0


def test_exponentials_hold_up_blackwell_more_than_its_successor() -> None:
    assert softmax_flops(10.0) == 2 * softmax_flops(10.3)
    assert softmax_flops(9.0) == 2 * softmax_flops(8.0)
    assert softmax_flops(9.0, 1.0) == 256
    assert softmax_flops(7.5) == softmax_flops(8.0)
