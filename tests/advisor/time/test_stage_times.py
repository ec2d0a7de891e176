"""What other microbatches hide of the experts' exchange, on round numbers."""

import pytest
from msgspec.structs import replace

from advisor.time.passes import PassTimes
from advisor.time.stage_times import ExchangeOverlap

HALF = ExchangeOverlap(0.5, 2, 1, 8)
"""Half of it, of eight microbatches on two stages."""
PACE = PassTimes(forward=1.0, backward=3.0, exchange=2.0)


def test_the_first_microbatches_have_no_other_to_hide_it() -> None:
    assert [HALF.hidden_share(stage) for stage in (0, 1)] == [0.5 * 6 / 8, 0.5 * 7 / 8]
    assert replace(HALF, microbatches=1).hidden_share(1) == 0.0
    assert replace(HALF, microbatches=2).hidden_share(0) == 0.0
    assert replace(HALF, pp=1, vpp=1).hidden_share(0) == 0.5 * 7 / 8


@pytest.mark.parametrize(
    ("kernels", "seconds"),
    [(4.0, 16 * (1 - 0.375)), (2.0, 16 * (1 - 0.375)), (1.0, 16 * (1 - 0.1875)), (0.0, 16.0)],
)
def test_an_exchange_is_hidden_by_as_long_kernels(kernels: float, seconds: float) -> None:
    pace = PassTimes(backward=kernels, exchange=2.0)
    assert HALF.shown_seconds(0, pace) == seconds


def test_where_nothing_runs_at_the_time_all_of_it_is_shown() -> None:
    assert replace(HALF, most=0.0).shown_seconds(0, PACE) == 16.0
    assert HALF.shown_seconds(0, replace(PACE, exchange=0.0)) == 0.0
