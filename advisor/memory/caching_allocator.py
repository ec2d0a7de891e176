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
from collections.abc import Iterable
from operator import attrgetter
from typing import Final

from msgspec import Struct, field

from advisor.base.units import MIB

_SMALLEST_BLOCK: Final = 512
_SMALL_REQUEST: Final = MIB
_SMALL_SEGMENT: Final = 2 * MIB
_LARGE_SEGMENT: Final = 20 * MIB
_OWN_SEGMENT: Final = 10 * MIB
_ROUND_LARGE: Final = 2 * MIB
_ADDRESS_SPACE: Final = 1 << 200
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
    """Blocks of one stream, small or large: the free ones by size and address, with their sizes in
    a list of their own, and the ranges without memory by address. Half of a simulation runs through
    here, so that the lists are changed in place where the order allows."""

    small: bool
    smallest_rest: int
    sizes: list[int] = field(default_factory=list)
    blocks: list[Block] = field(default_factory=list)
    unmapped: list[Block] = field(default_factory=list)

    def add(self, block: Block) -> None:
        sizes, blocks, size = self.sizes, self.blocks, block.size
        index, count = bisect_left(sizes, size), len(sizes)
        while index < count and sizes[index] == size and blocks[index].address < block.address:
            index += 1
        sizes.insert(index, size)
        blocks.insert(index, block)

    def add_all(self, blocks: Iterable[Block]) -> None:
        """List many at once, merged: their order does not matter."""
        found = [*self.blocks, *blocks]
        for block in found:
            size, following = block.size, block.next
            if not size:  # merged with the one before it
                continue
            while following is not None and following.free and following.mapped:
                size, following.size, following = size + following.size, 0, following.next
            block.size, block.next = size, following
            if following is not None:
                following.previous = block
        self.blocks[:] = sorted((b for b in found if b.size), key=attrgetter("size", "address"))
        self.sizes[:] = [block.size for block in self.blocks]

    def index(self, block: Block) -> int:
        """Where a free block is listed."""
        blocks, index = self.blocks, bisect_left(self.sizes, block.size)
        while blocks[index] is not block:
            index += 1
        return index

    def remove(self, index: int) -> Block:
        """Take the block listed at `index` out."""
        del self.sizes[index]
        return self.blocks.pop(index)

    def best_fit(self, size: int) -> int:
        """Index of the smallest free block that is large enough, -1 where there is none; one that
        can grow counts with what it can grow to, so that it comes last."""
        index, last = bisect_left(self.sizes, size), len(self.sizes) - 1
        if index > last:
            return -1
        block = self.blocks[index]
        beyond = block.next
        while beyond is not None and not beyond.mapped and index < last:
            following = self.blocks[index + 1]
            if _can_grow_to(following) >= block.size + beyond.size:
                break
            index, block, beyond = index + 1, following, following.next
        return index

    def take(self, index: int, size: int) -> Block:
        """The first `size` bytes of the block listed at `index`, or all of it where the rest would
        be too small."""
        sizes, block = self.sizes, self.blocks[index]
        rest = block.size - size
        if rest < self.smallest_rest:
            self.remove(index)
            block.free = False
            return block
        before, address = block.previous, block.address
        taken = Block(address, size, self, False, True, before, block)
        if before is not None:
            before.next = taken
        block.previous, block.address, block.size = taken, address + size, rest
        if not index or sizes[index - 1] < rest:
            sizes[index] = rest
        else:
            self.add(self.remove(index))
        return taken

    def grow(self, index: int, num_bytes: int) -> Block:
        """The block listed at `index`, larger by `num_bytes` that were its neighbour's."""
        sizes, block = self.sizes, self.blocks[index]
        size = block.size = block.size + num_bytes
        if block is self.blocks[-1] or size < sizes[index + 1]:
            sizes[index] = size
        else:
            self.add(self.remove(index))
        return block

    def settle(self, block: Block) -> Block:
        """List `block` as free, merged with its free neighbours."""
        before, following = block.previous, block.next
        if before is None or not before.free or not before.mapped:
            if following is None or not following.free or not following.mapped:
                block.free = True
                self.add(block)
                return block
            if before is not None:
                before.next = following
            index = self.index(following)
            following.previous, following.address = before, block.address
            return self.grow(index, block.size)
        if following is not None and following.free and following.mapped:
            self.remove(self.index(following))
            _join(block, following)
        index, size = self.index(before), block.size
        before.next = block.next
        if block.next is not None:
            block.next.previous = before
        return self.grow(index, size)


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
        index = pool.best_fit(size)
        if index < 0:
            index = self._from_the_driver(pool, size)
        block = pool.take(index, size)
        self.requests += 1
        self.allocated += block.size
        if self.allocated > self.peak_allocated:
            self.peak_allocated = self.allocated
        return block

    def release(self, block: Block) -> None:
        """Take a block back, merged with free neighbours; the driver gets nothing back."""
        self.allocated -= block.size
        block.pool.settle(block)

    def touch(self, num_bytes: int) -> None:
        """As allocate and release in a row, which leave the free blocks as they were: what the
        driver must give for it stays, and the peak may change."""
        size = -(-num_bytes // _SMALLEST_BLOCK) * _SMALLEST_BLOCK or _SMALLEST_BLOCK
        key = (0, size <= _SMALL_REQUEST)
        pool = self._pools.get(key) or self._new_pool(*key)
        index = bisect_left(pool.sizes, size)
        if index == len(pool.sizes):
            index = self._from_the_driver(pool, size)
        if pool.sizes[index] - size < pool.smallest_rest:
            size = pool.sizes[index]
        self.requests += 1
        if self.allocated + size > self.peak_allocated:
            self.peak_allocated = self.allocated + size

    def release_all(self, blocks: Iterable[Block]) -> None:
        """As release of each."""
        released: dict[int, list[Block]] = {}
        for block in blocks:
            block.free = True
            self.allocated -= block.size
            released.setdefault(id(block.pool), []).append(block)
        for pool in self._pools.values():
            if id(pool) in released:
                pool.add_all(released[id(pool)])

    def empty_cache(self) -> None:
        """Return to the driver what lies free: whole segments, or whole pages of expandable ones.
        What is free next to a live block stays reserved."""
        for pool in self._pools.values():
            for block in list(pool.blocks):
                if self._expandable:
                    self._unmap(block)
                elif block.previous is None and block.next is None:
                    pool.remove(pool.index(block))
                    self.reserved -= block.size

    def restart(self, elsewhere: int) -> None:
        """Count peaks anew; the driver gives `elsewhere` bytes to others from now on."""
        self.peak_allocated, self.peak_reserved = self.allocated, self.reserved
        if self._capacity is not None:
            self._capacity -= elsewhere

    def _new_pool(self, stream: int, small: bool) -> _Pool:
        rest = _SMALLEST_BLOCK if small or self._expandable else _SMALL_REQUEST + _SMALLEST_BLOCK
        pool = self._pools[stream, small] = _Pool(small, rest)
        if self._expandable:
            pool.unmapped.append(Block(0, _ADDRESS_SPACE, pool, mapped=False))
        return pool

    def _from_the_driver(self, pool: _Pool, size: int) -> int:
        """As `_fresh`; what lies free is returned to the driver where it has no more."""
        try:
            return self._fresh(pool, size)
        except OutOfMemoryError:
            self.empty_cache()
            return self._fresh(pool, size)

    def _fresh(self, pool: _Pool, size: int) -> int:
        """Memory from the driver for `size` bytes: where its block is listed."""
        if self._expandable:
            return pool.index(self._grown(pool, size))
        if pool.small:
            segment = _SMALL_SEGMENT
        elif size < _OWN_SEGMENT:
            segment = _LARGE_SEGMENT
        else:
            segment = -(-size // _ROUND_LARGE) * _ROUND_LARGE
        self._reserve(segment)
        block = Block(self._next_address, segment, pool)
        self._next_address += segment
        pool.add(block)
        return pool.index(block)

    def _grown(self, pool: _Pool, size: int) -> Block:
        """The first place of an expandable segment that has room, mapped page by page and joined
        with a free block that lies before it."""
        page = _SMALL_SEGMENT if pool.small else _LARGE_SEGMENT
        place = _room(pool, size)
        if not place.mapped:
            place = self._map(place, min(place.size, size), page)
        while place.size < size:
            assert place.next is not None
            place = self._map(place.next, min(size - place.size, place.next.size), page)
        return place

    def _map(self, block: Block, size: int, page: int) -> Block:
        """Map the first `size` bytes of an unmapped range, in pages; merged with free neighbours
        and listed as free."""
        wanted = min(block.size, -(-size // page) * page)
        self._reserve(wanted)
        pool, before = block.pool, block.previous
        if wanted == block.size:
            pool.unmapped.remove(block)
            block.mapped = True
            return pool.settle(block)
        block.address, block.size = block.address + wanted, block.size - wanted
        if before is not None and before.free and before.mapped:
            return pool.grow(pool.index(before), wanted)
        mapped = Block(block.address - wanted, wanted, pool, previous=before, next=block)
        block.previous = mapped
        if before is not None:
            before.next = mapped
        pool.add(mapped)
        return mapped

    def _unmap(self, block: Block) -> None:
        """Give the whole pages of a free block back."""
        pool = block.pool
        page = _SMALL_SEGMENT if pool.small else _LARGE_SEGMENT
        start = -(-block.address // page) * page
        end = (block.address + block.size) // page * page
        if end <= start:
            return
        pool.remove(pool.index(block))
        if start > block.address:
            front, block = block, _split(block, start - block.address)
            pool.add(front)
        if end < block.address + block.size:
            pool.add(_split(block, end - block.address))
        block.mapped = False
        self.reserved -= block.size
        for neighbour in (block.previous, block.next):
            if neighbour is not None and not neighbour.mapped:
                pool.unmapped.remove(neighbour)
                pair = (neighbour, block) if neighbour is block.previous else (block, neighbour)
                block = _join(*pair)
        insort(pool.unmapped, block, key=attrgetter("address"))

    def _reserve(self, num_bytes: int) -> None:
        if self._capacity is not None and self.reserved + num_bytes > self._capacity:
            raise OutOfMemoryError
        self.reserved += num_bytes
        if self.reserved > self.peak_reserved:
            self.peak_reserved = self.reserved


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


def _join(first: Block, second: Block) -> Block:
    first.size += second.size
    first.next = second.next
    if second.next is not None:
        second.next.previous = first
    return first


def _can_grow_to(block: Block) -> int:
    beyond = block.next
    return block.size if beyond is None or beyond.mapped else block.size + beyond.size


def _room(pool: _Pool, size: int) -> Block:
    """Where `size` bytes fit from an unmapped range on, or from the free block before it."""
    for unmapped in pool.unmapped:
        before = unmapped.previous
        start = before if before is not None and before.free and before.mapped else unmapped
        found = 0
        block: Block | None = start
        while block is not None and block.free:
            found += block.size
            if found >= size:
                return start
            block = block.next
    raise OutOfMemoryError
