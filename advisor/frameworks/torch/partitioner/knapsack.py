"""Which items are worth their memory: torch's quantized 0-1 knapsack, with its roundings.

Source: torch 2.13 _functorch/_activation_checkpointing/knapsack.py (dp_knapsack).
"""

from functools import cache
from struct import pack, unpack

_QUANTA = 10_000


def dp_knapsack(memory: list[float], runtimes: list[float], max_memory: float) -> set[int]:
    """Indices of the items that are saved: most runtime within `max_memory`.

    Memory is a part of the whole, in ten thousandths; runtimes are added up in fp32, where a small
    one beside large ones is nothing and its item is not saved.
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
