"""Traces worked by hand with torch's documented size classes."""

import random

import pytest

from advisor.base.units import MIB
from advisor.memory.caching_allocator import Block, CachingAllocator, OutOfMemoryError


def test_small_requests_share_segments_of_2_mib() -> None:
    allocator = CachingAllocator()
    for _ in range(4):
        allocator.allocate(512 * 1024 - 100)  # rounded to 512 bytes: 512 KiB
    assert (allocator.allocated, allocator.reserved) == (2 * MIB, 2 * MIB)
    allocator.allocate(1)
    assert (allocator.allocated, allocator.reserved) == (2 * MIB + 512, 4 * MIB)


def test_requests_below_10_mib_come_of_segments_of_20() -> None:
    allocator = CachingAllocator()
    for number, reserved in enumerate((20, 20, 40), start=1):
        allocator.allocate(8 * MIB)
        assert allocator.allocated == 8 * MIB * number
        assert allocator.reserved == reserved * MIB


def test_larger_ones_have_their_own_rounded_to_2_mib() -> None:
    """A rest of up to 1 MiB is not split off, and counts as allocated."""
    allocator = CachingAllocator()
    allocator.allocate(21 * MIB + 1)
    assert (allocator.allocated, allocator.reserved) == (22 * MIB, 22 * MIB)
    allocator.allocate(12 * MIB + 1)  # rest of 2 MiB - 512 B: split
    assert (allocator.allocated, allocator.reserved) == (34 * MIB + 512, 36 * MIB)


def test_a_freed_segment_serves_smaller_requests_and_not_a_larger_one() -> None:
    allocator = CachingAllocator()
    allocator.release(allocator.allocate(100 * MIB))
    first, second = allocator.allocate(60 * MIB), allocator.allocate(30 * MIB)
    assert allocator.reserved == 100 * MIB  # 10 MiB are left
    allocator.release(first)
    allocator.allocate(70 * MIB)
    assert allocator.reserved == 170 * MIB
    allocator.release(second)  # 30 merges with 60 before it and 10 after
    allocator.allocate(100 * MIB)
    assert allocator.reserved == 170 * MIB


def test_the_best_fit_is_the_smallest_that_is_large_enough() -> None:
    allocator = CachingAllocator()
    blocks = [allocator.allocate(size * MIB) for size in (40, 20, 30)]
    for block in blocks:
        allocator.release(block)
    allocator.allocate(19 * MIB + 1)
    allocator.allocate(30 * MIB)
    allocator.allocate(40 * MIB)
    assert allocator.reserved == 90 * MIB


def test_streams_share_nothing() -> None:
    allocator = CachingAllocator()
    allocator.release(allocator.allocate(40 * MIB, stream=1))
    allocator.allocate(40 * MIB)
    assert (allocator.peak_allocated, allocator.reserved) == (40 * MIB, 80 * MIB)


def test_expandable_segments_grow_by_20_mib_and_join() -> None:
    allocator = CachingAllocator(expandable_segments=True)
    first, second = allocator.allocate(30 * MIB), allocator.allocate(30 * MIB)
    assert allocator.reserved == 60 * MIB
    allocator.release(first)
    allocator.allocate(31 * MIB)  # the hole of 30 is too small: 20 and 20 more at the end
    assert allocator.reserved == 100 * MIB
    allocator.release(second)  # 30 + 30 lie together
    allocator.allocate(60 * MIB)
    assert allocator.reserved == 100 * MIB


def test_what_can_grow_is_used_last() -> None:
    """The tail of 10 MiB would be the best fit; the hole of 12 is taken, as it cannot grow."""
    allocator = CachingAllocator(expandable_segments=True)
    hole = allocator.allocate(12 * MIB)
    allocator.allocate(18 * MIB)
    assert allocator.reserved == 40 * MIB
    allocator.release(hole)
    allocator.allocate(10 * MIB)
    allocator.allocate(10 * MIB)  # the tail
    assert allocator.reserved == 40 * MIB


def test_empty_cache_returns_whole_segments_alone() -> None:
    allocator = CachingAllocator()
    whole, cut = allocator.allocate(40 * MIB), allocator.allocate(40 * MIB)
    allocator.release(whole)
    allocator.release(cut)
    allocator.allocate(10 * MIB)
    allocator.empty_cache()
    assert allocator.reserved == 40 * MIB  # 30 of them lie next to a live block


def test_empty_cache_returns_whole_pages_of_expandable_segments() -> None:
    allocator = CachingAllocator(expandable_segments=True)
    blocks = [allocator.allocate(size * MIB) for size in (30, 50, 20)]
    allocator.release(blocks[1])  # 30 to 80 MiB: the pages at 40 and 60
    allocator.empty_cache()
    assert allocator.reserved == 60 * MIB
    allocator.allocate(45 * MIB)  # the hole is mapped again
    assert allocator.reserved == 100 * MIB


def test_what_lies_free_is_returned_before_memory_runs_out() -> None:
    allocator = CachingAllocator(capacity=100 * MIB)
    allocator.release(allocator.allocate(60 * MIB))
    allocator.allocate(80 * MIB)
    assert allocator.reserved == 80 * MIB
    with pytest.raises(OutOfMemoryError):
        allocator.allocate(21 * MIB)


def assert_blocks_fit(allocator: CachingAllocator, live: list[Block]) -> None:
    """Free blocks are listed by size and address; all blocks lie next to each other as they say, no
    two free ones in a row; and together they are what is reserved."""
    reserved = 0
    for pool in allocator._pools.values():
        order = [(block.size, block.address) for block in pool.blocks]
        assert order == sorted(order)
        assert pool.sizes == [size for size, _ in order]
        mine = [block for block in live if block.pool is pool]
        every = {id(block) for block in (*pool.blocks, *pool.unmapped, *mine)}
        for block in (*pool.blocks, *pool.unmapped, *mine):
            reserved += block.size * block.mapped
            if (after := block.next) is not None:
                assert id(after) in every
                assert after.previous is block
                assert after.address == block.address + block.size
                assert not block.free or (True, block.mapped) != (after.free, after.mapped)
    assert reserved == allocator.reserved


@pytest.mark.parametrize("expandable", [False, True])
def test_books_balance(expandable: bool) -> None:
    """Whatever is requested in whatever order, all of it comes back, and can be returned."""
    order, allocator = random.Random(0), CachingAllocator(expandable_segments=expandable)
    live: list[Block] = []
    for _ in range(3000):
        size = order.choice((1, 700, 300_000, 2 * MIB, 9 * MIB, 50 * MIB, 777 * MIB))
        if live and order.random() < 0.5:
            allocator.release(live.pop(order.randrange(len(live))))
        elif order.random() < 0.9:
            live.append(allocator.allocate(size + order.randrange(1000), order.randrange(2)))
        else:
            was, requests = allocator.allocated, allocator.requests
            allocator.touch(size)
            assert (allocator.allocated, allocator.requests) == (was, requests + 1)
        assert allocator.allocated == sum(block.size for block in live) <= allocator.reserved
        if order.random() < 0.02:
            assert_blocks_fit(allocator, live)
            if order.random() < 0.5:
                allocator.empty_cache()
                assert_blocks_fit(allocator, live)
    allocator.release_all(live)
    allocator.empty_cache()
    assert allocator.allocated == allocator.reserved == 0


@pytest.mark.parametrize("expandable", [False, True])
def test_what_is_requested_and_given_back_at_once_leaves_its_peaks(expandable: bool) -> None:
    allocator = CachingAllocator(expandable_segments=expandable)
    for size, peak, reserved in ((9, 9, 20), (18, 18, 20), (30, 30, 50 - 10 * expandable)):
        allocator.touch(size * MIB)
        assert (allocator.allocated, allocator.peak_allocated) == (0, peak * MIB)
        assert allocator.reserved == reserved * MIB


@pytest.mark.parametrize("expandable", [False, True])
def test_a_touch_counts_as_a_request_that_is_given_back_at_once(expandable: bool) -> None:
    order = random.Random(5)
    touched, served = (CachingAllocator(expandable_segments=expandable) for _ in range(2))
    live: list[list[Block]] = []
    for _ in range(600):
        size = order.choice((100, 5_000, 900_000, 3 * MIB, 19 * MIB, 64 * MIB))
        step = order.random()
        if step < 0.3:
            live.append([each.allocate(size) for each in (touched, served)])
        elif step < 0.5 and live:
            one, other = live.pop(order.randrange(len(live)))
            touched.release(one)
            served.release(other)
        else:
            touched.touch(size)
            served.release(served.allocate(size))
        for name in ("allocated", "reserved", "requests", "peak_allocated"):
            assert getattr(touched, name) == getattr(served, name)


def test_what_is_small_is_rounded_to_512_bytes_for_a_moment_too() -> None:
    allocator = CachingAllocator(expandable_segments=True)
    allocator.release(allocator.allocate(1))
    allocator.touch(700)
    assert (allocator.peak_allocated, allocator.reserved) == (1024, 2 * MIB)


def test_a_negative_request_is_refused() -> None:
    with pytest.raises(AssertionError):
        CachingAllocator().allocate(-1)
