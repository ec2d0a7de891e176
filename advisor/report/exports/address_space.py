"""Addresses for blocks that come and go: the lowest gap that is large enough."""

from bisect import bisect


class AddressSpace:
    """Bytes from `start` on. reached: as many of them as were ever in use, with the gaps."""

    def __init__(self, start: int) -> None:
        self.reached = 0
        self._start = start
        self._gaps: list[tuple[int, int]] = []
        """Start and size in order of addresses; no two touch."""

    def allocate(self, size: int) -> int:
        """The address of a new block of `size` bytes."""
        for index, (address, room) in enumerate(self._gaps):
            if room >= size:
                rest = [(address + size, room - size)] if room > size else []
                self._gaps[index : index + 1] = rest
                return address
        address = self._start + self.reached
        self.reached += size
        return address

    def free(self, address: int, size: int) -> None:
        """Give back a block; gaps that touch become one."""
        index = bisect(self._gaps, (address, 0))
        if index < len(self._gaps) and self._gaps[index][0] == address + size:
            size += self._gaps.pop(index)[1]
        if index and sum(self._gaps[index - 1]) == address:
            address, before = self._gaps.pop(index - 1)
            size += before
            index -= 1
        self._gaps.insert(index, (address, size))
