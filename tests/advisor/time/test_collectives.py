"""Collectives on a ring: exact seconds on round numbers."""

import pytest

from advisor.layers.operators import Collective, CollectiveKind, Group
from advisor.time.machine import Link
from advisor.time.roofline import Network, collective_seconds

LINK = Link(bytes_per_second=100.0, latency_seconds=1.0)
SLOW = Link(bytes_per_second=10.0, latency_seconds=0.0)


@pytest.mark.parametrize(
    ("kind", "ranks", "seconds"),
    [
        (CollectiveKind.ALL_GATHER, 4, 6.0 + 1.0),
        (CollectiveKind.REDUCE_SCATTER, 4, 6.0 + 1.0),
        (CollectiveKind.ALL_REDUCE, 4, 12.0 + 1.0),
        (CollectiveKind.ALL_GATHER, 2, 4.0 + 1.0),
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
    assert collective_seconds(CollectiveKind.ALL_REDUCE, 800, 8, SLOW) == both


def test_a_network_takes_the_link_and_the_size_of_the_group() -> None:
    network = Network(tensor=LINK, context=SLOW, tensor_ranks=2, context_ranks=4)
    gather = Collective(CollectiveKind.ALL_GATHER, Group.TENSOR, 800, False)
    assert network.seconds(gather) == 4.0 + 1.0
    ring = Collective(CollectiveKind.RING, Group.CONTEXT, 800, True)
    assert network.seconds(ring) == 80.0
