"""Collectives by size and group: exact seconds on round numbers."""

from math import sqrt

import pytest

from advisor.layers.operators import Collective, CollectiveKind, Group
from advisor.time.communication import Link, collective_seconds
from advisor.time.rank_links import Dispatcher, Network

LINK = Link(bytes_per_second=100.0, latency_seconds=1.0)
SLOW = Link(bytes_per_second=10.0, latency_seconds=0.0)


@pytest.mark.parametrize(
    ("kind", "ranks", "seconds"),
    [
        (CollectiveKind.ALL_GATHER, 4, 6.0 + 1.0),
        (CollectiveKind.REDUCE_SCATTER, 4, 6.0 + 1.0),
        (CollectiveKind.ALL_REDUCE, 4, 12.0 + 1.0),
        (CollectiveKind.ALL_GATHER, 2, 4.0 + 1.0),
        (CollectiveKind.ALL_TO_ALL, 4, 6.0 + 1.0),
        (CollectiveKind.RING, 4, 8.0 + 3.0),
    ],
)
def test_seconds_of_800_bytes(kind: CollectiveKind, ranks: int, seconds: float) -> None:
    assert collective_seconds(kind, 800, ranks, LINK) == seconds


@pytest.mark.parametrize("kind", CollectiveKind)
def test_one_rank_has_nobody_to_talk_to(kind: CollectiveKind) -> None:
    assert collective_seconds(kind, 800, 1, LINK) == 0.0


@pytest.mark.parametrize("kind", CollectiveKind)
def test_more_bytes_never_take_less(kind: CollectiveKind) -> None:
    times = [collective_seconds(kind, size, 8, LINK) for size in (0, 1, 10, 1000)]
    assert times == sorted(times)


def test_an_all_reduce_is_a_reduce_scatter_and_an_all_gather() -> None:
    both = sum(
        collective_seconds(kind, 800, 8, SLOW)
        for kind in (CollectiveKind.REDUCE_SCATTER, CollectiveKind.ALL_GATHER)
    )
    assert collective_seconds(CollectiveKind.ALL_REDUCE, 800, 8, SLOW) == 2 * 70.0 == both


def test_an_all_reduce_takes_the_fastest_way() -> None:
    ways = Link(bytes_per_second=100.0, latency_seconds=1.0, ring_seconds=50.0, tree_seconds=2.0)
    # 4 ranks, 3/4 of the bytes a pass: a tree for few, a ring for many, the switches where able.
    assert collective_seconds(CollectiveKind.ALL_REDUCE, 400, 4, ways) == 1.0 + 2.0 + 12.0
    assert collective_seconds(CollectiveKind.ALL_REDUCE, 40000, 4, ways) == 1.0 + 100.0 + 600.0
    able = Link(
        bytes_per_second=100.0,
        latency_seconds=1.0,
        ring_seconds=50.0,
        tree_seconds=2.0,
        reducing_bytes_per_second=80.0,
    )
    assert collective_seconds(CollectiveKind.ALL_REDUCE, 40000, 4, able) == 1.0 + 2.0 + 500.0
    assert collective_seconds(CollectiveKind.ALL_GATHER, 400, 4, able) == 1.0 + 50.0 + 3.0


def test_chunks_fill_the_ring_before_they_flow() -> None:
    filled = Link(bytes_per_second=100.0, latency_seconds=1.0, ring_seconds=3.0, ramp=0.25)
    assert collective_seconds(CollectiveKind.ALL_GATHER, 1200, 4, filled) == 4.0 + 9.0 + sqrt(9.0)


def test_a_network_takes_the_link_and_the_size_of_the_group() -> None:
    network = Network(tensor=LINK, context=SLOW, tensor_ranks=2, context_ranks=4)
    gather = Collective(CollectiveKind.ALL_GATHER, Group.TENSOR, 800, False)
    assert network.seconds(gather) == 4.0 + 1.0
    ring = Collective(CollectiveKind.RING, Group.CONTEXT, 800, True)
    assert network.seconds(ring) == 80.0


def test_a_dispatch_is_the_dispatchers() -> None:
    sent = Collective(CollectiveKind.DISPATCH, Group.EXPERT_TENSOR_AND_MODEL, 800)
    groups = Network(tensor=LINK, context=LINK, tensor_ranks=1, context_ranks=1)
    assert groups.seconds(sent) == 0.0
    flex = Dispatcher(seconds_per_byte=0.5, fixed_seconds=3.0, sms=20)
    groups = Network(tensor=LINK, context=LINK, tensor_ranks=1, context_ranks=1, dispatcher=flex)
    assert groups.seconds(sent) == 403.0
