"""What belongs together, what is known, what nothing beats."""

from harness.base.collections import front, grouped, known


def test_groups_keep_the_order_of_their_first_items() -> None:
    found = grouped([("b", 1), ("a", 2), ("b", 3)])
    assert list(found.items()) == [("b", [1, 3]), ("a", [2])]


def test_zero_is_known() -> None:
    assert known([0, None, 2]) == [0, 2]


def test_the_front_goes_from_cheap_in_the_first_to_cheap_in_the_second() -> None:
    points = [(3, 1), (1, 5), (2, 5), (2, 4), (4, 1), (3, 2)]
    assert front(points, lambda point: point) == [(1, 5), (2, 4), (3, 1)]


def test_equals_beat_nobody() -> None:
    points = [("a", 1, 2), ("b", 1, 2), ("c", 1, 3)]
    assert [name for name, *_ in front(points, lambda p: (p[1], p[2]))] == ["a", "b"]


def test_of_nothing_there_is_no_front() -> None:
    assert front([], lambda point: point) == []
