"""Links by where the ranks of a group lie."""

import pytest
from msgspec.structs import replace

from advisor.hardware.calibration import Calibration, load_calibration
from advisor.hardware.catalogue import load_gpu
from advisor.hardware.gpu import Gpu
from advisor.time.rank_links import all_to_all_link, link, neighbour_link, ranks_of_a_node


@pytest.mark.parametrize(
    ("ranks", "apart", "near"),
    [(8, 1, 8), (16, 1, 8), (16, 2, 4), (16, 8, 1), (4, 16, 1), (2, 1, 2)],
)
def test_ranks_of_a_node_are_those_whose_gpus_it_has(gpu, ranks, apart, near) -> None:
    assert ranks_of_a_node(gpu, ranks, apart) == near


@pytest.mark.parametrize(
    ("ranks", "apart", "rate"),
    [
        (8, 1, 45.0),
        (4, 2, 45.0),
        (16, 1, 40.0),  # TP 16 over two nodes: all eight adapters
        (1024, 1, 40.0),
        (16, 2, 20.0),
        (16, 4, 10.0),
        (2, 8, 5.0),
    ],
)
def test_a_group_is_on_nvlink_within_a_node_and_has_its_adapters_beyond(
    gpu: Gpu, calibration: Calibration, ranks: int, apart: int, rate: float
) -> None:
    assert link(gpu, calibration, ranks, apart).bytes_per_second == rate


def test_adapters_of_a_node_never_beat_nvlink(gpu: Gpu, calibration: Calibration) -> None:
    fast = replace(gpu, internode_bytes_per_second=60.0)
    assert link(fast, calibration, 16, 1).bytes_per_second == 45.0


def test_without_nvlink_a_server_is_joined_by_its_host_link(gpu, calibration) -> None:
    card = replace(gpu, nvlink_domain_size=1)
    assert link(card, calibration, 8, 1).bytes_per_second == 10.0
    assert link(card, calibration, 2, 8).bytes_per_second == 5.0
    assert link(card, calibration, 8, 1).reducing_bytes_per_second == 0.0


@pytest.mark.parametrize("ranks", [2, 8, 36, 64, 72])
def test_a_rack_of_72_stays_on_nvlink(ranks: int, calibration: Calibration) -> None:
    rack = load_gpu("GB200")
    nvlink = rack.nvlink_bytes_per_second * 0.5
    assert link(rack, calibration, ranks, 1).bytes_per_second == nvlink
    assert all_to_all_link(rack, calibration, ranks, 1).bytes_per_second == pytest.approx(nvlink)
    assert neighbour_link(rack, calibration, ranks).bytes_per_second == nvlink


def test_the_first_byte_passes_every_rank_of_a_ring(gpu: Gpu, calibration: Calibration) -> None:
    slow = replace(calibration, hop_seconds=1.0, internode_hop_seconds=10.0)
    assert link(gpu, slow, 8, 1).ring_seconds == 7.0
    assert link(gpu, slow, 32, 1).ring_seconds == 28.0 + 40.0
    assert link(gpu, slow, 32, 1).tree_seconds == 2 * (7.0 + 2 * 10.0)


@pytest.mark.parametrize(
    ("ranks", "apart", "rate"),
    [
        (8, 1, 36.0),  # 0.8 of the ring's
        (16, 1, 36.0),  # the network could do 40 x 2 / 2
        (32, 1, 40 * 4 / 6),
        (2, 8, 0.0),  # one rank a node: nothing to add up in its switches
    ],
)
def test_switches_add_for_an_all_reduce(gpu, calibration, ranks, apart, rate) -> None:
    assert link(gpu, calibration, ranks, apart).reducing_bytes_per_second == rate


def test_switches_before_hopper_do_not_add(calibration: Calibration) -> None:
    for name in ("A100-SXM-80GB", "H100-PCIe"):
        assert link(load_gpu(name), calibration, 8, 1).reducing_bytes_per_second == 0.0


def test_an_all_to_all_is_bound_by_what_leaves_the_node(gpu: Gpu, calibration: Calibration) -> None:
    # Of 16 ranks 8 are elsewhere, after one adapter; of 8 none.
    assert all_to_all_link(gpu, calibration, 16, 1).bytes_per_second == 15 / (8 / 5)
    assert all_to_all_link(gpu, calibration, 8, 1).bytes_per_second == pytest.approx(45.0)
    slow = replace(calibration, hop_seconds=1.0, internode_hop_seconds=10.0)
    assert all_to_all_link(gpu, slow, 16, 1).latency_seconds == pytest.approx(0.002 + 15.0 + 10.0)


def test_a_neighbour_is_reached_through_one_adapter(gpu: Gpu, calibration: Calibration) -> None:
    assert neighbour_link(gpu, calibration, 8).bytes_per_second == 45.0
    assert neighbour_link(gpu, calibration, 9).bytes_per_second == 5.0
    slow = replace(calibration, hop_seconds=1.0, internode_hop_seconds=10.0)
    assert neighbour_link(gpu, slow, 8).latency_seconds == 0.002 + 1.0
    assert neighbour_link(gpu, slow, 9).latency_seconds == 0.002 + 10.0


def test_links_from_pair_to_pair_give_a_small_group_its_share() -> None:
    """xGMI of MI300X, 64 GB/s a pair; all_reduce_bench of stas00/ml-engineering@744d01e1
    (network/README.md) reaches 312.9 GB/s on 8 and 47.7 on 2, which the efficiency of 0.70 meets
    within 7 %."""
    gpu = load_gpu("MI300X")
    calibration = load_calibration(gpu)
    reached = [link(gpu, calibration, ranks, 1).bytes_per_second / 1e9 for ranks in (8, 4, 2)]
    assert reached == pytest.approx([313.6, 3 * 44.8, 44.8])
    assert reached[0] == pytest.approx(312.9, rel=0.07)
    assert reached[2] == pytest.approx(47.7, rel=0.07)
    assert neighbour_link(gpu, calibration, 8).bytes_per_second == pytest.approx(44.8e9)
