"""Seconds of matrix multiplications by shape, on a GPU of round numbers."""

import pytest
from msgspec.structs import replace

from advisor.layers.operators import Gemm
from advisor.time.gemm import (
    GemmRates,
    forward_gemm_seconds,
    input_gradient_seconds,
    matmul_seconds,
    weight_gradient_seconds,
)

TILE = 128 * 256
"""Elements of the largest tile."""
PLAIN = GemmRates(
    flops=2.0 * TILE * 4,  # each of four multiprocessors: one k of a tile in a second
    sustained_flops=1e30,
    multiprocessors=4,
    bytes_per_second=1e30,
    kernel_seconds=0.0,
)
H100 = GemmRates(
    flops=8e14,
    sustained_flops=7e14,
    multiprocessors=132,
    bytes_per_second=2.5e12,
    kernel_seconds=4e-6,
    tile_seconds=2e-6,
)


def test_tiles_run_in_waves() -> None:
    """4 tiles are one wave of 100 seconds, 8 are two; 5 of the smallest, an eighth, are two."""
    assert matmul_seconds(PLAIN, 4 * 128, 256, 100) == pytest.approx(100.0)
    assert matmul_seconds(PLAIN, 8 * 128, 256, 100) == pytest.approx(200.0)
    assert matmul_seconds(PLAIN, 5 * 64, 64, 100) == pytest.approx(2 * 12.5)
    assert matmul_seconds(PLAIN, 4 * 128 + 1, 256, 100) > matmul_seconds(PLAIN, 4 * 128, 256, 100)


def test_every_tile_is_filled_and_drained() -> None:
    """The first in full, of a second what its multiprocessor cannot hide."""
    slow = replace(PLAIN, tile_seconds=10.0)
    assert matmul_seconds(slow, 4 * 128, 256, 100) == pytest.approx(110.0)
    assert matmul_seconds(slow, 8 * 128, 256, 100) == pytest.approx(213.0)


def test_deep_products_of_few_tiles_are_split() -> None:
    """One of the smallest tiles: 4096 deep in four parts, 1000 deep not at all."""
    assert matmul_seconds(PLAIN, 64, 64, 4096) == pytest.approx(4096 / 8 / 4)
    assert matmul_seconds(PLAIN, 64, 64, 1000) == pytest.approx(1000 / 8)


def test_power_bounds_what_is_large() -> None:
    limited = replace(PLAIN, sustained_flops=PLAIN.flops / 2)
    assert matmul_seconds(limited, 4 * 128, 256, 100) == pytest.approx(200.0)
    assert matmul_seconds(limited, 64, 64, 100) == matmul_seconds(PLAIN, 64, 64, 100)


def test_thin_shapes_are_bound_by_their_traffic() -> None:
    """[8, 8192] x [8192, 8192]: the 16-bit weight is read once, in 8 bits half as many bytes."""
    weight = 2 * 8192 * 8192 / H100.bytes_per_second
    seconds = matmul_seconds(H100, 8, 8192, 8192) - H100.kernel_seconds
    assert weight < seconds < 1.4 * weight
    narrow = replace(H100, operand_bytes=1.0, flops=2 * H100.flops)
    half = matmul_seconds(narrow, 8, 8192, 8192) - H100.kernel_seconds
    assert half == pytest.approx(seconds / 2, rel=0.1)


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_more_work_takes_no_less_time(axis: int) -> None:
    sizes = [[256, 512, 1024] for _ in range(60)]
    for step, size in enumerate(sizes):
        size[axis] = 128 * (step + 1)
    seconds = [matmul_seconds(H100, *size) for size in sizes]
    assert seconds == sorted(seconds)


def test_three_passes_read_the_same_shape_otherwise() -> None:
    gemm = Gemm(4096, 6144, 1024)
    assert forward_gemm_seconds(gemm, H100) == matmul_seconds(H100, 4096, 6144, 1024)
    assert input_gradient_seconds(gemm, H100) == matmul_seconds(H100, 4096, 1024, 6144)
    assert weight_gradient_seconds(gemm, H100) == matmul_seconds(H100, 6144, 1024, 4096)


def test_adding_to_main_grad_moves_more() -> None:
    gemm = Gemm(512, 8192, 8192)
    kinds = (replace(gemm, main_grad_itemsize=itemsize) for itemsize in (0, 2, 4))
    own, narrow, wide = (weight_gradient_seconds(kind, H100) for kind in kinds)
    assert own < narrow < wide


def test_experts_of_few_tokens_are_slower_than_one_layer_of_their_rows() -> None:
    dense = Gemm(4096, 1536, 2048)
    for run in (forward_gemm_seconds, input_gradient_seconds, weight_gradient_seconds):
        times = [run(replace(dense, groups=experts), H100) for experts in (1, 4, 16, 64, 256)]
        assert times == sorted(times)
        assert times[-1] > 2 * times[0]


def test_experts_share_the_last_wave() -> None:
    """Eight experts of half a wave each: four waves together, not eight. 64 experts of a row each:
    64 tiles of 64 x 64, an eighth of a second a k."""
    gemm = Gemm(8 * 2 * 128, 256, 100, groups=8)
    assert forward_gemm_seconds(gemm, PLAIN) == pytest.approx(400.0)
    assert forward_gemm_seconds(Gemm(64, 64, 100, groups=64), PLAIN) == pytest.approx(
        100 / 8 * 64 / 4
    )
    assert forward_gemm_seconds(Gemm(0, 256, 128), H100) == 0.0
    slower = replace(PLAIN, grouped_share=0.5)
    assert forward_gemm_seconds(gemm, slower) == pytest.approx(800.0)
    assert matmul_seconds(slower, 4 * 128, 256, 100) == pytest.approx(100.0)
    assert matmul_seconds(slower, 2 * 128, 256, 100, groups=2) == pytest.approx(200.0)


def test_kernels_of_experts_are_queued_on_four_streams() -> None:
    gemm = Gemm(8 * 128, 256, 128, groups=8)
    one = forward_gemm_seconds(gemm, H100)
    each = forward_gemm_seconds(replace(gemm, kernels=8), H100)
    assert each - one == pytest.approx(H100.kernel_seconds)
