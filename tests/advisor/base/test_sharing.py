"""Equal values become one object."""

from msgspec import Struct

from advisor.base.sharing import first_equal


class Value(Struct, frozen=True):
    number: int


def test_equal_values_are_the_first_of_them() -> None:
    first = first_equal(Value(1))
    assert first_equal(Value(1)) is first
    assert first_equal(Value(2)) == Value(2) != first
