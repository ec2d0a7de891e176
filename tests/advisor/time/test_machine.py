"""Rates: datasheet times efficiency, links by where the ranks of a group lie."""

import pytest
from msgspec.structs import replace

from advisor.base.dtypes import Precision
from advisor.hardware.calibration import Calibration, Provenance
from advisor.hardware.catalogue import load_gpu
from advisor.hardware.gpu import Gpu
from advisor.job.layout import ParallelLayout
from advisor.layers.operators import Collective, CollectiveKind, Group
from advisor.models.options import CpCommType
from advisor.time.attention import Reached
from advisor.time.groups import network
from advisor.time.machine import data_parallel_link, group_span, link, machine

GPU = Gpu(
    name="toy",
    memory_bytes=10,
    memory_bandwidth_bytes_per_second=1000.0,
    bf16_flops=400.0,
    fp16_flops=200.0,
    fp8_flops=800.0,
    sm_count=4,
    compute_capability=9.0,
    nvlink_bytes_per_second=90.0,
    nvlink_domain_size=8,
    internode_bytes_per_second=10.0,
    host_link_bytes_per_second=20.0,
)
CALIBRATION = Calibration(
    name="toy",
    provenance=Provenance.MEASURED,
    gemm_efficiency=0.5,
    fp8_gemm_efficiency=0.25,
    attention_forward_efficiency=0.2,
    attention_backward_efficiency=0.1,
    bandwidth_efficiency=0.8,
    nvlink_efficiency=0.5,
    internode_efficiency=0.5,
    hidden_fraction=0.75,
    kernel_seconds=0.001,
    collective_seconds=0.002,
    step_seconds=0.003,
    step_time_error=0.1,
)


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


def test_layers_of_torchs_own_kernels_reach_less() -> None:
    slower = replace(CALIBRATION, eager_bandwidth_share=0.75)
    rates = machine(GPU, slower, Precision.BF16, eager=True)
    assert (rates.memory_bytes_per_second, rates.chain_bytes_per_second) == (800.0, 600.0)
    assert machine(GPU, slower, Precision.BF16).chain_bytes_per_second == 800.0


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
    assert rates.quantized is not None
    assert (rates.quantized.flops, rates.bf16_flops) == (200.0, 200.0)
    assert rates.quantized.operand_bytes == 1.0
    assert rates.quantize_bytes == quantize_bytes


def test_four_bits_have_a_rate_of_their_own() -> None:
    rates = machine(replace(GPU, fp4_flops=1600.0), CALIBRATION, Precision.NVFP4)
    assert rates.quantized is not None
    assert (rates.quantized.flops, rates.quantize_bytes) == (400.0, 7)
    better = replace(CALIBRATION, fp4_gemm_efficiency=0.5)
    own = machine(replace(GPU, fp4_flops=1600.0), better, Precision.NVFP4).quantized
    assert own is not None
    assert own.flops == 800.0  # of twice the 8-bit peak


def test_power_and_training_lower_the_rate() -> None:
    calibration = replace(CALIBRATION, gemm_sustained_share=0.5, gemm_training_share=0.8)
    rates = machine(GPU, calibration, Precision.BF16)
    assert (rates.linear.flops, rates.linear.sustained_flops) == (160.0, 80.0)
    assert rates.bf16_flops == 80.0


def test_without_8_bit_tensor_cores_fp8_is_16_bit() -> None:
    rates = machine(replace(GPU, fp8_flops=None), CALIBRATION, Precision.FP8_CURRENT)
    assert rates.quantized is None
    assert rates.quantize_bytes == 0


@pytest.mark.parametrize(
    ("span", "ranks_per_node", "rate"),
    [(8, 1, 45.0), (9, 1, 5.0), (16, 2, 10.0), (16, 8, 40.0), (1024, 8, 40.0)],
)
def test_link_is_nvlink_within_a_domain_and_adapters_beyond(
    span: int, ranks_per_node: int, rate: float
) -> None:
    joined = link(GPU, CALIBRATION, span, ranks_per_node)
    assert (joined.bytes_per_second, joined.latency_seconds) == (rate, 0.002)


def test_adapters_of_a_node_never_beat_nvlink() -> None:
    fast = replace(GPU, internode_bytes_per_second=60.0)
    assert link(fast, CALIBRATION, 16, 8).bytes_per_second == 45.0


def test_without_nvlink_a_server_is_joined_by_its_host_link() -> None:
    card = replace(GPU, nvlink_domain_size=1)
    assert link(card, CALIBRATION, 8).bytes_per_second == 10.0
    assert link(card, CALIBRATION, 9).bytes_per_second == 5.0
    assert link(card, CALIBRATION, 16, 2).bytes_per_second == 10.0


def test_spans_count_consecutive_gpus() -> None:
    layout = ParallelLayout(tensor_model_parallel_size=4, context_parallel_size=2)
    assert group_span(layout, Group.TENSOR) == 4
    assert group_span(layout, Group.CONTEXT) == 8


@pytest.mark.parametrize(
    ("kind", "sizes", "collective", "seconds"),
    [
        # 16 ranks on two nodes, 90 bytes; NVLink 45 a second, an adapter 5, 2 ms a collective.
        (CpCommType.P2P, None, CollectiveKind.RING, 90 / 5 + 15 * 0.002),
        (CpCommType.ALL_GATHER, None, CollectiveKind.ALL_GATHER, 90 * 15 / 16 / 40 + 0.002),
        (CpCommType.A2A, None, CollectiveKind.ALL_TO_ALL, 90 * 8 / 16 / 5 + 0.002),
        (CpCommType.A2A_P2P, (8, 2), CollectiveKind.ALL_TO_ALL, 90 * 7 / 8 / 45 + 0.002),
        (CpCommType.A2A_P2P, (8, 2), CollectiveKind.RING, 90 / 5 + 0.002),
    ],
)
def test_each_kind_of_context_parallelism_has_its_way(
    kind: CpCommType, sizes: tuple[int, int] | None, collective: CollectiveKind, seconds: float
) -> None:
    layout = ParallelLayout(
        context_parallel_size=16, cp_comm_type=kind, hierarchical_context_parallel_sizes=sizes
    )
    joined = network(layout, GPU, CALIBRATION, experts=False)
    found = joined.seconds(Collective(collective, Group.CONTEXT, 90))
    assert found == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("tp", "dp", "rate"), [(1, 16, 40.0), (2, 8, 20.0), (8, 2, 5.0), (2, 4, 45.0)]
)
def test_data_parallel_ranks_of_a_node_share_the_way_out(tp: int, dp: int, rate: float) -> None:
    layout = ParallelLayout(tensor_model_parallel_size=tp, data_parallel_size=dp)
    assert data_parallel_link(GPU, CALIBRATION, layout).bytes_per_second == rate


def test_a_full_node_reduces_a_model_in_the_same_time_at_any_tp() -> None:
    # 1/tp of the gradients through 1/tp of the adapters.
    gpu = load_gpu("H100")
    times = []
    for tp in (1, 2, 4, 8):
        layout = ParallelLayout(tensor_model_parallel_size=tp, data_parallel_size=64 // tp)
        times.append(1e9 / tp / data_parallel_link(gpu, CALIBRATION, layout).bytes_per_second)
    expected = 1e9 / 8 / (gpu.internode_bytes_per_second * 0.5)
    floor = 1e9 / (gpu.nvlink_bytes_per_second * 0.5)
    assert times == pytest.approx([max(expected, floor / tp) for tp in (1, 2, 4, 8)])
