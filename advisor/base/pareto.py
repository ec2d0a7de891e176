"""The Pareto front of two costs: what no other beats in both."""

from collections.abc import Callable, Iterable, Sequence
from math import inf
from typing import TypeVar

Item = TypeVar("Item")


def dominators(costs: Sequence[tuple[float, ...]]) -> list[int | None]:
    """Of each pair of costs the index of the one on the front that is lowest in the second of those
    that are no higher in both; None on the front. Of equal pairs the first dominates the others, or
    the one with the lowest further cost."""
    found: list[int | None] = [None] * len(costs)
    lowest, front = inf, 0
    for index in sorted(range(len(costs)), key=costs.__getitem__):
        if costs[index][1] < lowest:
            lowest, front = costs[index][1], index
        else:
            found[index] = front
    return found


def pareto_front(items: Iterable[Item], costs: Callable[[Item], tuple[float, float]]) -> list[Item]:
    """Items that no other beats in both costs, by the first of them; equals beat nobody."""
    found = sorted(items, key=costs)
    pairs = [costs(item) for item in found]
    return [
        item
        for item, pair, by in zip(found, pairs, dominators(pairs), strict=True)
        if by is None or pair == pairs[by]
    ]
