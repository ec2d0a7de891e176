"""Best-first search: of what waits comes next what may be best, by a bound on all that it may lead
to. Once the first of a kind that cannot be bounded further comes out, nothing that waits beats it.
"""

from collections.abc import Callable, Iterator
from heapq import heappop, heappush
from itertools import count
from typing import Generic, TypeVar

Item = TypeVar("Item")


class BestFirst(Generic[Item]):
    """Items in the order of their bounds (seconds), of equal bounds in that of their arrival;
    whoever takes one adds what it leads to.

    within: whether something with such a bound is still wanted; asked of what comes and of what is
    next, as it may change with what was found. excluded: how many were not wanted.
    """

    def __init__(self, within: Callable[[float], bool]) -> None:
        self._within, self._numbers = within, count()
        self._heap: list[tuple[float, int, Item]] = []
        self.excluded = 0

    def __len__(self) -> int:
        return len(self._heap)

    def __iter__(self) -> Iterator[tuple[float, Item]]:
        """Take one after the other, with their bounds, until nothing that is wanted waits."""
        while self._heap and self._within(self._heap[0][0]):
            bound, _, item = heappop(self._heap)
            yield bound, item
        self.excluded += len(self._heap)

    def add(self, bound: float, item: Item) -> None:
        """`item` waits, if it is wanted."""
        if self._within(bound):
            heappush(self._heap, (bound, next(self._numbers), item))
        else:
            self.excluded += 1
