"""Folds over events: sizes are powers of ten, so that every digit names a storage."""

import pytest

from advisor.memory.events import (
    GIVE,
    SIMULATED_GIVE,
    SPENT,
    TAKE,
    WORK,
    Event,
    Peak,
    Segment,
    fold,
    highest,
    in_a_row,
)

EVENTS: list[Event] = [
    (TAKE, "a", 1),
    (WORK, "first", 20),
    (TAKE, "b", 100),
    (GIVE, "a", 1),
    (WORK, "second", 0),
    (SIMULATED_GIVE, "b", 100),
    (SPENT, "a", 1),
    (WORK, "third", 0),
]


def test_the_highest_prefix_is_looked_for_where_operators_run() -> None:
    found = fold(EVENTS)
    assert found.net == 100
    assert found.peak == Peak(100, "second")
    assert fold(EVENTS, holds_spent=True).peak == Peak(101, "third")
    assert fold(EVENTS[:3]).peak == Peak(21, "first")


def test_of_nothing_there_is_no_peak() -> None:
    assert fold([]).peak == Peak()
    assert highest(Peak(5, "x"), Peak(5, "y")) == Peak(5, "x")
    assert highest(Peak(5, "x"), Peak(6, "y")) == Peak(6, "y")
    assert Peak(5, "x").above(-2, " in a layer") == Peak(3, "x in a layer")


def test_segments_in_a_row() -> None:
    """Peaks are above what the ones before left: 10, then 10 + 3, then 10 - 4 + 7."""
    row = (Segment(10), Segment(-4, Peak(3, "back")), Segment(0, Peak(7, "end")))
    assert in_a_row(row) == Segment(6, Peak(13, "back"))
    assert in_a_row(row, last=True) == Segment(6, Peak(13, "end"))
    assert in_a_row(row[1:]) == Segment(-4, Peak(3, "back"))


@pytest.mark.parametrize("number", [1, 2, 5])
@pytest.mark.parametrize("net", [-3, 0, 4])
def test_equal_ones_in_a_row_are_as_one_after_another(net: int, number: int) -> None:
    one = Segment(net, Peak(10, "x"))
    assert one.times(number) == in_a_row([one] * number)
    assert one.times(number).peak.num_bytes == 10 + max(0, (number - 1) * net)


def test_what_is_around_a_segment_is_gone_after_it() -> None:
    one = Segment(2, Peak(10, "x"))
    assert one.around(5) == Segment(2, Peak(15, "x"))
    assert one.around(5) == in_a_row((Segment(5), one, Segment(-5)))
