"""One object for equal values."""

from collections.abc import Hashable
from functools import lru_cache
from typing import TypeVar

T = TypeVar("T", bound=Hashable)


def first_equal(value: T) -> T:
    """The first of equal values: caches that are asked for the same object need not compare it
    field by field."""
    return _first_equal(value)  # type: ignore[return-value]


@lru_cache(maxsize=4096)
def _first_equal(value: Hashable) -> Hashable:
    return value
