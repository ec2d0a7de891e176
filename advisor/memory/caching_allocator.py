"""PyTorch's CUDA caching allocator, simulated: what a sequence of requests reserves.

Requests are rounded to 512 bytes and served from free blocks of their stream and pool, best fit
first; what is left of a block is split off, and free neighbours merge. Where no block is large
enough the driver gives a segment: 2 MiB for the small pool (requests up to 1 MiB), 20 MiB for
requests below 10 MiB, the request rounded to 2 MiB above. Expandable segments are one range of
addresses a stream and pool, mapped in pages of 2 MiB (small) and 20 MiB (large).

Source: torch c10/core/AllocatorConfig.h (the constants; 2.13) and c10/cuda/CUDACachingAllocator.cpp
(round_size, get_allocation_size, get_free_block, should_split, try_merge_blocks, map_block,
release_cached_blocks), from their published text: the CUDA build is not at hand. Options are at
their defaults: no max_split_size, no garbage collection, no rounding to powers of two. Left out:
record_stream, which puts a free off until the other stream is through; the caller's trace has it.
"""

from bisect import bisect_left, insort
from typing import Final

from msgspec import Struct, field

from advisor.base.units import MIB

_SMALLEST_BLOCK: Final = 512
_SMALL_REQUEST: Final = MIB
_SMALL_SEGMENT: Final = 2 * MIB
_LARGE_SEGMENT: Final = 20 * MIB
_OWN_SEGMENT: Final = 10 * MIB
_ROUND_LARGE: Final = 2 * MIB
_ADDRESS_BITS: Final = 50
_ADDRESS_SPACE: Final = 1 << _ADDRESS_BITS
"""Of an expandable segment, bytes: more than any card has."""


class OutOfMemoryError(Exception):
    """The driver has no more to give, though all that is free was returned to it."""


class Block(Struct, eq=False):
    """A range of addresses of one segment. mapped: the driver has given memory for it; only an
    expandable segment has ranges without."""

    address: int
    size: int
    pool: "_Pool"
    free: bool = True
    mapped: bool = True
    previous: "Block | None" = None
    next: "Block | None" = None


class _Pool(Struct, eq=False):
    """Blocks of one stream, small or large: the free ones by size and address, which one number
    holds, and the ranges without memory by address."""

    small: bool
    smallest_rest: int
    free: list[int] = field(default_factory=list)
    blocks: dict[int, Block] = field(default_factory=dict)
    unmapped: list[tuple[int, Block]] = field(default_factory=list)

    def add(self, block: Block) -> None:
        key = block.size << _ADDRESS_BITS | block.address
        self.blocks[key] = block
        insort(self.free, key)

    def remove(self, block: Block) -> None:
        key = block.size << _ADDRESS_BITS | block.address
        del self.blocks[key], self.free[bisect_left(self.free, key)]


class CachingAllocator:
    """Serves requests as torch does, and counts.

    capacity: bytes that the driver can give. allocated, reserved and their peaks compare with
    torch.cuda.memory_stats' allocated_bytes and reserved_bytes, all streams and pools together;
    requests counts them.
    """

    def __init__(self, *, expandable_segments: bool = False, capacity: int | None = None) -> None:
        self._expandable = expandable_segments
        self._capacity = capacity
        self._pools: dict[tuple[int, bool], _Pool] = {}
        self._next_address = 0
        self.allocated = self.reserved = self.peak_allocated = self.peak_reserved = 0
        self.requests = 0

    def allocate(self, num_bytes: int, stream: int = 0) -> Block:
        """A block for a request of `num_bytes`; the caller gives it back with `release`."""
        assert num_bytes >= 0, num_bytes
        size = -(-num_bytes // _SMALLEST_BLOCK) * _SMALLEST_BLOCK or _SMALLEST_BLOCK
        key = (stream, size <= _SMALL_REQUEST)
        pool = self._pools.get(key) or self._new_pool(*key)
        block = self._best_fit(pool, size)
        if block is None:
            try:
                block = self._fresh(pool, size)
            except OutOfMemoryError:
                self.empty_cache()
                block = self._fresh(pool, size)
        if block.size - size >= pool.smallest_rest:
            rest = _split(block, size)
            key_of_rest = rest.size << _ADDRESS_BITS | rest.address
            pool.blocks[key_of_rest] = rest
            insort(pool.free, key_of_rest)
        block.free = False
        self.requests += 1
        self.allocated += block.size
        if self.allocated > self.peak_allocated:
            self.peak_allocated = self.allocated
        return block

    def release(self, block: Block) -> None:
        """Take a block back, merged with free neighbours; the driver gets nothing back."""
        self.allocated -= block.size
        block.free = True
        _settle(block)

    def empty_cache(self) -> None:
        """Return to the driver what lies free: whole segments, or whole pages of expandable ones.
        What is free beside a live block stays reserved."""
        for pool in self._pools.values():
            for block in list(pool.blocks.values()):
                if self._expandable:
                    self._unmap(block)
                elif block.previous is None and block.next is None:
                    pool.remove(block)
                    self.reserved -= block.size

    def restart(self, elsewhere: int) -> None:
        """Count peaks anew; the driver gives `elsewhere` bytes to others from now on."""
        self.peak_allocated, self.peak_reserved = self.allocated, self.reserved
        if self._capacity is not None:
            self._capacity -= elsewhere

    def _new_pool(self, stream: int, small: bool) -> _Pool:
        splits = small or self._expandable
        rest = _SMALLEST_BLOCK if splits else _SMALL_REQUEST + _SMALLEST_BLOCK
        pool = self._pools[stream, small] = _Pool(small, rest)
        if self._expandable:
            pool.unmapped.append((0, Block(0, _ADDRESS_SPACE, pool, mapped=False)))
        return pool

    def _best_fit(self, pool: _Pool, size: int) -> Block | None:
        """The smallest free block that is large enough; one that can grow counts with what it can
        grow to, so that it comes last."""
        free, blocks = pool.free, pool.blocks
        index, count = bisect_left(free, size << _ADDRESS_BITS), len(free)
        if index == count:
            return None
        block = blocks[free[index]]
        beyond = block.next
        while beyond is not None and not beyond.mapped and index + 1 < count:
            following = blocks[free[index + 1]]
            if _can_grow_to(following) >= block.size + beyond.size:
                break
            index, block, beyond = index + 1, following, following.next
        del blocks[free.pop(index)]
        return block

    def _fresh(self, pool: _Pool, size: int) -> Block:
        """Memory from the driver for `size` bytes."""
        if self._expandable:
            return self._grown(pool, size)
        if pool.small:
            segment = _SMALL_SEGMENT
        elif size < _OWN_SEGMENT:
            segment = _LARGE_SEGMENT
        else:
            segment = -(-size // _ROUND_LARGE) * _ROUND_LARGE
        self._reserve(segment)
        block = Block(self._next_address, segment, pool)
        self._next_address += segment
        return block

    def _grown(self, pool: _Pool, size: int) -> Block:
        """The first place of an expandable segment that has room, mapped page by page and joined
        with a free block that lies before it."""
        page = _SMALL_SEGMENT if pool.small else _LARGE_SEGMENT
        place = next(filter(None, (_room(block, size) for _, block in pool.unmapped)))
        if not place.mapped:
            place = self._map(place, min(place.size, size), page)
        while place.size < size:
            assert place.next is not None
            place = self._map(place.next, min(size - place.size, place.next.size), page)
        pool.remove(place)
        return place

    def _map(self, block: Block, size: int, page: int) -> Block:
        """Map the first `size` bytes of an unmapped range, in pages; merged with free neighbours
        and listed as free."""
        wanted = min(block.size, -(-size // page) * page)
        self._reserve(wanted)
        pool = block.pool
        pool.unmapped.remove((block.address, block))
        if wanted < block.size:
            rest = _split(block, wanted)
            insort(pool.unmapped, (rest.address, rest))
        block.mapped = True
        return _settle(block)

    def _unmap(self, block: Block) -> None:
        """Give the whole pages of a free block back."""
        pool = block.pool
        page = _SMALL_SEGMENT if pool.small else _LARGE_SEGMENT
        start = -(-block.address // page) * page
        end = (block.address + block.size) // page * page
        if end <= start:
            return
        pool.remove(block)
        if start > block.address:
            front, block = block, _split(block, start - block.address)
            pool.add(front)
        if end < block.address + block.size:
            pool.add(_split(block, end - block.address))
        block.mapped = False
        self.reserved -= block.size
        for beside in (block.previous, block.next):
            if beside is not None and not beside.mapped:
                pool.unmapped.remove((beside.address, beside))
                first, second = (
                    (beside, block) if beside.address < block.address else (block, beside)
                )
                block = _joined(first, second)
        insort(pool.unmapped, (block.address, block))

    def _reserve(self, num_bytes: int) -> None:
        if self._capacity is not None and self.reserved + num_bytes > self._capacity:
            raise OutOfMemoryError
        self.reserved += num_bytes
        self.peak_reserved = max(self.peak_reserved, self.reserved)


def _split(block: Block, size: int) -> Block:
    """Cut `block` to `size`; the rest, in no list yet."""
    following = block.next
    rest = Block(
        block.address + size, block.size - size, block.pool, True, block.mapped, block, following
    )
    if following is not None:
        following.previous = rest
    block.next, block.size = rest, size
    return rest


def _settle(block: Block) -> Block:
    """List `block` as free, merged with its free neighbours. Half of a simulation runs through
    here, so that the pool's lists are changed in place."""
    pool = block.pool
    free, blocks = pool.free, pool.blocks
    before, following = block.previous, block.next
    if before is not None and before.free and before.mapped:
        key = before.size << _ADDRESS_BITS | before.address
        del blocks[key], free[bisect_left(free, key)]
        block = _joined(before, block)
    if following is not None and following.free and following.mapped:
        key = following.size << _ADDRESS_BITS | following.address
        del blocks[key], free[bisect_left(free, key)]
        block = _joined(block, following)
    key = block.size << _ADDRESS_BITS | block.address
    blocks[key] = block
    insort(free, key)
    return block


def _joined(first: Block, second: Block) -> Block:
    """Two neighbours as one block."""
    first.size += second.size
    first.next = second.next
    if second.next is not None:
        second.next.previous = first
    return first


def _can_grow_to(block: Block) -> int:
    beyond = block.next
    return block.size if beyond is None or beyond.mapped else block.size + beyond.size


def _room(unmapped: Block, size: int) -> Block | None:
    """Where `size` bytes fit from `unmapped` on, or from the free block before it."""
    before = unmapped.previous
    start = before if before is not None and before.free and before.mapped else unmapped
    found, block = 0, start
    while found < size and block.free:
        found += block.size
        if found >= size:
            return start
        if block.next is None:
            break
        block = block.next
    return None
