"""What belongs together, what is known."""

from advisor.base.grouping import grouped
from harness.base.collections import known


def test_groups_keep_the_order_of_their_first_items() -> None:
    found = grouped([("b", 1), ("a", 2), ("b", 3)])
    assert list(found.items()) == [("b", [1, 3]), ("a", [2])]


def test_zero_is_known() -> None:
    assert known([0, None, 2]) == [0, 2]
