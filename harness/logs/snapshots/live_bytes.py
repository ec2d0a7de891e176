"""The events of a device's trace as live bytes after each.

A recording begins somewhere in a run: what was allocated before is known from what is freed later
and from what is alive at the end. A block counts from `alloc` to `free_requested`, as in
torch.cuda.memory_allocated, with the bytes that were asked for: the sum is torch's statistic
requested_bytes, where no freed block waits for another stream. Reserved bytes change with segments,
and with the mapped parts of expandable ones. Source: pytorch CUDACachingAllocator.cpp,
record_trace.
"""

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any, Final

from msgspec import Struct

from advisor.base.errors import UserError
from harness.logs.snapshots.memory_kinds import BEFORE, Kinds
from harness.logs.snapshots.plain_pickle import NotPlainError

LARGEST: Final = 1 << 50
"""Bytes of a block: more than any device has."""
LATEST: Final = (1 << 64) - 1
"""Of addresses and of microseconds."""
_REQUESTED: Final = "free_requested"
_COMPLETED: Final = "free_completed"
_SEGMENTS: Final = {"segment_alloc": 1, "segment_map": 1, "segment_free": -1, "segment_unmap": -1}
"""Whether bytes come or go."""
_MICRO: Final = 1e-6


class Change(Struct, frozen=True):
    """A block comes, or goes where its bytes are negative; micros: the recording's own clock;
    reserved: by how many bytes segments had grown since the recording began."""

    num_bytes: int
    reserved: int
    micros: int | None
    kind: str


class AtEnd(Struct, frozen=True):
    """Of one device when the snapshot was made: bytes of the blocks that were allocated, by
    address, and of all segments."""

    blocks: dict[int, int]
    reserved: int


class LiveBytes(Struct, frozen=True):
    """Of one device: bytes before the first change, the changes, the level after each, and when:
    seconds from the first on, None where some have no time. reserved_before: of segments.
    unseen: bytes that are gone at the end though no event frees them."""

    before: int
    reserved_before: int
    unseen: int
    changes: Sequence[Change]
    levels: Sequence[int]
    seconds: Sequence[float] | None

    def shown(self, within: tuple[float, float] | None) -> range:
        """Changes between two times; UserError where there is none."""
        if within is None:
            return range(len(self.levels))
        if self.seconds is None:
            raise UserError("--start", within[0], "needs times, which the recording lacks")
        inside = [k for k, when in enumerate(self.seconds) if within[0] <= when <= within[1]]
        if not inside:
            ends = f"the recording is {self.seconds[-1]:.3f} s long"
            raise UserError("--start, --end", within, "nothing is recorded between them", ends)
        return range(inside[0], inside[-1] + 1)

    def most_reserved(self, shown: range) -> int:
        """Bytes of segments, while the changes are made."""
        most = max(self.changes[k].reserved for k in shown)
        return self.reserved_before + (max(0, most) if shown.start == 0 else most)

    def kinds(self, number: int) -> dict[str, int]:
        """Bytes alive after a change, by what they are."""
        found = {BEFORE: self.before}
        for change in self.changes[: number + 1]:
            found[change.kind] = found.get(change.kind, 0) + change.num_bytes
        return {kind: size for kind, size in found.items() if size}


def walked(trace: Sequence[Any], end: AtEnd) -> LiveBytes:
    """`trace` with an allocation in it. NotPlainError where an event is none."""
    walk = _Walk(any(isinstance(one, dict) and one.get("action") == _REQUESTED for one in trace))
    changes = [change for event in trace for change in walk.changed(event)]
    alive, blocks = walk.alive, end.blocks
    before = walk.before + sum(size for at, size in blocks.items() if at not in alive)
    return LiveBytes(
        before=before,
        reserved_before=max(0, end.reserved - walk.reserved),
        unseen=sum(size for at, (size, _) in alive.items() if at not in blocks),
        changes=changes,
        levels=list(accumulate((one.num_bytes for one in changes), initial=before))[1:],
        seconds=_seconds(changes),
    )


def _seconds(changes: Sequence[Change]) -> list[float] | None:
    """Threads may write an event late: time does not run backwards."""
    times = [change.micros for change in changes if change.micros is not None]
    if len(times) < len(changes):
        return None
    return [(one - times[0]) * _MICRO for one in accumulate(times, max)]


class _Walk:
    """Blocks that are alive, by address; before: bytes of those that the recording saw go alone;
    reserved: by how much segments grew. requests: whether `free_requested` is recorded, without
    which a block goes with `free_completed`."""

    def __init__(self, requests: bool) -> None:
        self.alive: dict[int, tuple[int, str]] = {}
        self.before = self.reserved = 0
        self._gone_by = _REQUESTED if requests else _COMPLETED
        self._kinds = Kinds()

    def changed(self, event: object) -> Iterator[Change]:
        """What an event changes: nothing where it is about something else, such as the end of a
        free that was requested earlier."""
        if not isinstance(event, dict):
            raise NotPlainError("an event is not a dict")
        action = event.get("action")
        if isinstance(action, str) and action in _SEGMENTS:
            size = whole_number(event.get("size"), LARGEST)
            self.reserved += _SEGMENTS[action] * size
        if action not in ("alloc", self._gone_by):
            return
        address = whole_number(event.get("addr"), LATEST)
        size = whole_number(event.get("size"), LARGEST)
        micros = event.get("time_us")
        micros = None if micros is None else whole_number(micros, LATEST)
        if action == "alloc":
            yield from self._gone(address, micros)  # went unseen
            kind = self._kinds.of(event)
            self.alive[address] = size, kind
            yield Change(size, self.reserved, micros, kind)
            return
        if address not in self.alive:
            self.before += size
            self.alive[address] = size, BEFORE
        yield from self._gone(address, micros)

    def _gone(self, address: int, micros: int | None) -> Iterator[Change]:
        if address in self.alive:
            size, kind = self.alive.pop(address)
            yield Change(-size, self.reserved, micros, kind)


def whole_number(value: Any, most: int) -> int:
    """`value`; NotPlainError unless it is a whole number from 0 to `most`."""
    if type(value) is not int or not 0 <= value <= most:
        raise NotPlainError("an address, size or time in it is outside its range")
    return value
