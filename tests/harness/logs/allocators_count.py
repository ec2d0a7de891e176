"""What a reader of a recording must find: what torch's allocator counted meanwhile."""

from collections.abc import Mapping
from typing import Final

from harness.logs.recorded_memory import Recording

ACTIONS: Final = {"alloc", "free_requested", "free_completed", "oom", "snapshot"}
SEGMENT_ACTIONS: Final = {
    False: {"segment_alloc", "segment_free"},
    True: {"segment_map", "segment_unmap"},
}
"""By whether segments expand. All that torch 2.11 and 2.13 write
(c10/core/CachingDeviceAllocator.h, TraceEntry::Action)."""
_ROUNDING: Final = 512
_REST: Final = 1 << 20
"""Bytes that a block may have more than was asked for (CUDACachingAllocator.cpp): kMinBlockSize,
and kSmallSize for large ones, whose rest is split off only above that if segments do not expand."""


def assert_counted(found: Recording, counted: Mapping[str, int], expandable: bool) -> None:
    """To the byte; `counted`: torch.cuda.memory_stats() at the end, its peaks since the start."""
    assert found.peak_bytes == counted["requested_bytes.all.peak"]
    assert found.num_bytes[-1] == counted["requested_bytes.all.current"]
    assert found.reserved_bytes == counted["reserved_bytes.all.peak"]
    assert found.unseen_bytes == 0
    large = 0 if expandable else counted["allocation.large_pool.peak"]
    most = _ROUNDING * counted["allocation.all.peak"] + _REST * large
    assert 0 <= counted["allocated_bytes.all.peak"] - found.peak_bytes < most
