"""Rates: datasheet times efficiency."""

import pytest
from msgspec.structs import replace

from advisor.base.dtypes import Precision
from advisor.time.attention import Reached
from advisor.time.machine import machine
from tests.advisor.time.toys import CALIBRATION, GPU


def test_rates_are_datasheet_times_efficiency() -> None:
    rates = machine(GPU, CALIBRATION, Precision.BF16)
    assert rates.linear.flops == rates.bf16_flops == 200.0
    assert rates.quantized is None
    assert (rates.linear.multiprocessors, rates.linear.operand_bytes) == (4, 2.0)
    assert rates.attention.peak_flops == 400.0
    assert rates.attention.flash == rates.attention.fused == Reached(0.2, 0.1)
    assert rates.memory_bytes_per_second == rates.chain_bytes_per_second == 800.0
    assert (rates.kernel_seconds, rates.hidden_fraction) == (0.001, 0.75)
    assert rates.quantize_bytes == 0
    assert rates.optimizer_bytes_per_second == 800.0
    assert rates.host_bytes_per_second == 20.0 * 0.85
    assert rates.scan_flops == 200.0 * CALIBRATION.scan_share
    fitted = replace(CALIBRATION, optimizer_bandwidth_efficiency=0.5)
    assert machine(GPU, fitted, Precision.BF16).optimizer_bytes_per_second == 500.0


def test_layers_of_torchs_own_kernels_reach_less() -> None:
    slower = replace(CALIBRATION, eager_bandwidth_share=0.75)
    rates = machine(GPU, slower, Precision.BF16, eager=True)
    assert (rates.memory_bytes_per_second, rates.chain_bytes_per_second) == (800.0, 600.0)
    assert machine(GPU, slower, Precision.BF16).chain_bytes_per_second == 800.0


def test_compiled_layers_are_no_chains_of_torchs_own_kernels() -> None:
    slower = replace(CALIBRATION, eager_bandwidth_share=0.75)
    rates = machine(GPU, slower, Precision.BF16, eager=True, compiled=True)
    assert rates.compiled
    assert rates.chain_bytes_per_second == rates.memory_bytes_per_second == 800.0


def test_only_torchs_own_layers_run_experts_in_one_kernel() -> None:
    """Transformer Engine has a GEMM an expert, and each runs as one of a dense layer does."""
    slower = replace(CALIBRATION, grouped_gemm_share=0.75)
    assert machine(GPU, slower, Precision.BF16, eager=True).linear.grouped_share == 0.75
    assert machine(GPU, slower, Precision.BF16).linear.grouped_share == 1.0


def test_half_precision_has_its_own_peak() -> None:
    assert machine(GPU, CALIBRATION, Precision.FP16).linear.flops == 100.0


@pytest.mark.parametrize(
    ("precision", "quantize_bytes"),
    [
        (Precision.FP8_DELAYED, 4),
        (Precision.FP8_CURRENT, 6),
        (Precision.FP8_BLOCKWISE, 4),
        (Precision.MXFP8, 4),
    ],
)
def test_eight_bits_have_a_rate_and_a_cast(precision: Precision, quantize_bytes: int) -> None:
    rates = machine(GPU, CALIBRATION, precision)
    blocks = precision in (Precision.FP8_BLOCKWISE, Precision.MXFP8)
    assert rates.quantized.flops == pytest.approx(200.0 * (0.951 if blocks else 1.0))
    assert rates.bf16_flops == 200.0
    assert rates.quantized.operand_bytes == 1.0
    assert rates.quantize_bytes == quantize_bytes


def test_four_bits_gain_a_part_of_their_peak() -> None:
    calibration = replace(CALIBRATION, fp4_speed_exponent=0.5)
    gpu = replace(GPU, fp4_flops=1600.0)
    rates = machine(gpu, calibration, Precision.NVFP4)
    eight = machine(gpu, calibration, Precision.FP8_CURRENT).quantized
    assert rates.quantized.flops == eight.flops * (1600.0 / 800.0) ** 0.5
    assert rates.quantize_bytes == 7


def test_power_and_training_lower_the_lasting_rate() -> None:
    calibration = replace(CALIBRATION, gemm_sustained_share=0.5, gemm_training_share=0.8)
    rates = machine(GPU, calibration, Precision.BF16)
    assert (rates.linear.flops, rates.linear.sustained_flops) == (200.0, 80.0)
    assert rates.bf16_flops == 80.0


def test_lasting_rates_follow_the_power_of_the_board() -> None:
    """Of GEMMs and attention, up to the full clock."""
    told = replace(
        CALIBRATION, gemm_sustained_share=0.5, watts_per_teraflop=2.0, power_exponent=0.5
    )
    teraflop = replace(GPU, bf16_flops=1e12)
    plain, more, most = (
        machine(replace(teraflop, board_power_watts=watts), told, Precision.BF16)
        for watts in (2.0, 3.0, 9.0)
    )
    ultra = replace(teraflop, board_power_watts=3.0, compute_capability=10.3)
    rate = plain.linear.sustained_flops * 1.5**0.5
    assert more.linear.sustained_flops == pytest.approx(rate)
    assert more.attention.peak_flops == pytest.approx(1.5**0.5 * plain.attention.peak_flops)
    assert machine(ultra, told, Precision.BF16).linear.sustained_flops == pytest.approx(1.05 * rate)
    assert most.linear.sustained_flops == most.linear.flops == plain.linear.flops
    assert machine(teraflop, told, Precision.BF16).linear == plain.linear, "its power is not known"


def test_without_8_bit_tensor_cores_fp8_is_16_bit() -> None:
    rates = machine(replace(GPU, fp8_flops=None), CALIBRATION, Precision.FP8_CURRENT)
    assert rates.quantized is None
    assert rates.quantize_bytes == 0
