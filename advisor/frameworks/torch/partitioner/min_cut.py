"""The two optimizations of torch's partitioner: a min-cut, and a quantized 0-1 knapsack with its
roundings.

The cut is Dinic's algorithm on whole numbers. It is not networkx's, whose import alone takes 15
times as long as all 24 cuts of an answer here (Llama 3 8B, one budget: 0.2 s against 13 ms), and
whose cuts take 20 times as long.

Source of the knapsack: torch 2.13 _functorch/_activation_checkpointing/knapsack.py (dp_knapsack).
"""

from collections import deque
from functools import cache
from struct import pack, unpack

INFINITE = 1 << 80
"""More than all finite capacities together."""


class Network:
    """A graph with capacities. Ends of edges are numbers from 0; source 0, sink 1."""

    def __init__(self, size: int) -> None:
        self._edges: list[list[int]] = [[] for _ in range(size)]
        self._heads: list[int] = []
        self._left: list[int] = []

    def connect(self, tail: int, head: int, capacity: int) -> None:
        """An edge from `tail` to `head`."""
        for start, end, room in ((tail, head, capacity), (head, tail, 0)):
            self._edges[start].append(len(self._heads))
            self._heads.append(end)
            self._left.append(room)

    def after_cut(self) -> list[bool]:
        """For each end whether it lies on the sink's side of the least cut that is nearest to the
        sink (networkx' choice among cuts of equal capacity)."""
        while True:
            levels = self._levels()
            if levels[0] < 0:
                return [level >= 0 for level in levels]
            following = [0] * len(self._edges)
            while self._push(levels, following):
                pass

    def _levels(self) -> list[int]:
        """Edges from each end to the sink, over those with room left; -1 where there is no way."""
        levels = [-1] * len(self._edges)
        levels[1] = 0
        waiting = deque([1])
        while waiting:
            end = waiting.popleft()
            for edge in self._edges[end]:
                start = self._heads[edge]
                if levels[start] < 0 and self._left[edge ^ 1]:
                    levels[start] = levels[end] + 1
                    waiting.append(start)
        return levels

    def _push(self, levels: list[int], following: list[int]) -> int:
        """Fill one path from source to sink; what it took, 0 where there is none left."""
        path: list[int] = []
        end = 0
        while end != 1:
            edges = self._edges[end]
            while following[end] < len(edges):
                edge = edges[following[end]]
                if self._left[edge] and levels[self._heads[edge]] == levels[end] - 1:
                    break
                following[end] += 1
            else:
                if not path:
                    return 0
                end = self._heads[path.pop() ^ 1]
                following[end] += 1
                continue
            path.append(edge)
            end = self._heads[edge]
        taken = min(self._left[edge] for edge in path)
        for edge in path:
            self._left[edge] -= taken
            self._left[edge ^ 1] += taken
        return taken


_QUANTA = 10_000


def dp_knapsack(memory: list[float], runtimes: list[float], max_memory: float) -> set[int]:
    """Indices of the items that are saved: most runtime within `max_memory`.

    Memory is a part of the whole, in ten thousandths; runtimes are added up in fp32, where a small
    one next to large ones is nothing and its item is not saved.
    """
    sizes = [round(part * _QUANTA) for part in memory]

    @cache
    def best(items: int, room: int) -> float:
        """Most runtime of the first `items` items within `room`."""
        if items == 0:
            return 0.0
        without = best(items - 1, room)
        size = sizes[items - 1]
        if size > room:
            return without
        taken = _fp32(best(items - 1, room - size) + runtimes[items - 1])
        return taken if size == 0 else max(without, taken)

    saved = set()
    room = round(max_memory * _QUANTA)
    for items in range(len(sizes), 0, -1):
        if best(items, room) != best(items - 1, room):
            saved.add(items - 1)
            room -= sizes[items - 1]
    return saved


def _fp32(value: float) -> float:
    rounded: float = unpack("f", pack("f", value))[0]
    return rounded
