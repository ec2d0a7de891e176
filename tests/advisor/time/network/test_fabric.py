"""Groups of a layout: each kind of communication has its way."""

import pytest

from advisor.hardware.calibration import Calibration
from advisor.hardware.catalogue import load_gpu
from advisor.hardware.gpu import Gpu
from advisor.job.layout import ParallelLayout
from advisor.layers.operators import Collective, CollectiveKind, Group
from advisor.models.options import CpCommType
from advisor.time.rank_links import data_parallel_link, network


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
    gpu: Gpu,
    calibration: Calibration,
    kind: CpCommType,
    sizes: tuple[int, int] | None,
    collective: CollectiveKind,
    seconds: float,
) -> None:
    layout = ParallelLayout(
        context_parallel_size=16, cp_comm_type=kind, hierarchical_context_parallel_sizes=sizes
    )
    found = network(layout, gpu, calibration).seconds(Collective(collective, Group.CONTEXT, 90))
    assert found == pytest.approx(seconds)


def test_tensor_parallel_16_uses_every_adapter_of_both_nodes(gpu, calibration) -> None:
    layout = ParallelLayout(tensor_model_parallel_size=16)
    gather = Collective(CollectiveKind.ALL_GATHER, Group.TENSOR, 1600)
    assert network(layout, gpu, calibration).seconds(gather) == 1500 / 40 + 0.002


@pytest.mark.parametrize(
    ("tp", "dp", "rate"), [(1, 16, 40.0), (2, 8, 20.0), (8, 2, 5.0), (2, 4, 45.0)]
)
def test_data_parallel_ranks_of_a_node_share_the_way_out(gpu, calibration, tp, dp, rate) -> None:
    layout = ParallelLayout(tensor_model_parallel_size=tp, data_parallel_size=dp)
    assert data_parallel_link(gpu, calibration, layout).bytes_per_second == rate


def test_a_full_node_reduces_a_model_in_the_same_time_at_any_tp(calibration: Calibration) -> None:
    # 1/tp of the gradients through 1/tp of the adapters.
    gpu = load_gpu("H100")
    times = []
    for tp in (1, 2, 4, 8):
        layout = ParallelLayout(tensor_model_parallel_size=tp, data_parallel_size=64 // tp)
        times.append(1e9 / tp / data_parallel_link(gpu, calibration, layout).bytes_per_second)
    expected = 1e9 / 8 / (gpu.internode_bytes_per_second * 0.5)
    floor = 1e9 / (gpu.nvlink_bytes_per_second * 0.5)
    assert times == pytest.approx([max(expected, floor / tp) for tp in (1, 2, 4, 8)])
