"""Waiting for the slowest of many."""

from itertools import pairwise

import pytest

from advisor.time.communication import waiting_share


def test_one_rank_waits_for_nobody() -> None:
    assert waiting_share(1, 0.1) == 0.0


@pytest.mark.parametrize(
    ("ranks", "largest"),  # means of the largest of n normal values (Harter 1961, table 1)
    [(8, 1.4236), (16, 1.7660), (100, 2.5076), (400, 2.9682)],
)
def test_the_slowest_is_the_largest_of_normal_values(ranks: int, largest: float) -> None:
    assert waiting_share(ranks, 1.0) == pytest.approx(largest, abs=0.11)


def test_more_ranks_wait_longer_and_ever_less_so() -> None:
    shares = [waiting_share(2**n, 0.025) for n in range(16)]
    steps = [b - a for a, b in pairwise(shares)]
    assert all(step > 0 for step in steps)
    assert steps[3:] == sorted(steps[3:], reverse=True)
