"""Live bytes against time out of a memory snapshot of torch, measured or predicted. One object may
stand in a million places of a snapshot: what is walked through is counted. Source of its keys:
torch 2.13 cuda/memory.py, _snapshot; torch 2.11 writes the same, without pool_id.

A recording begins somewhere in a run: what was allocated before is known from what is freed later
and from what is alive at the end. A block counts from `alloc` to `free_requested`, as in
torch.cuda.memory_allocated, with the bytes that were asked for: the sum is torch's statistic
requested_bytes, where no freed block waits for another stream. Reserved bytes change with segments,
and mapped parts of expandable ones. Source: pytorch CUDACachingAllocator.cpp, record_trace."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, islice
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from advisor.base.errors import UserError
from harness.logs.plain_pickle import NotPlainError, read_plain

BEFORE: Final = "alive before the recording"
UNKNOWN: Final = "without a stack"
_LONGEST: Final = 300
CATEGORIES: Final = {
    "parameter": "weights",
    "gradient": "gradients",
    "optimizer_state": "optimizer states",
    "activation": "activations",
    "temporary": "temporary tensors",
    "buffer": "buffers",
    "input": "inputs",
    "autograd_detail": "autograd's own",
}
"""Names of torch 2.13 profiler/_memory_profiler.py, which `advise` writes too (with buffers)."""
_OPTIMIZER: Final = ("/torch/optim/", "/optimizer/", "/optimizers/", "optimizer.py", "/fused_adam")
_BACKWARD: Final = ("torch/autograd/__init__.py", "torch/autograd/graph.py")
"""Parts of file names."""
_ENGINE: Final = "torch::autograd::Engine"
"""On CUDA a thread of its own runs the backward, whose stack has no other mark."""
_REPLAYS: Final = ("backward", "unpack_hook")
"""Functions that replay a forward: where stacks hold Python alone, the mark of that thread."""
_IN_OPTIMIZER: Final = "allocated in the optimizer"
_IN_BACKWARD: Final = "allocated in the backward"
_IN_FORWARD: Final = "allocated in the forward"
_PHASES: Final = (_IN_OPTIMIZER, _IN_BACKWARD, _IN_FORWARD)
"""A stack belongs to the first of them that it has."""


class AllocationKinds:
    """Words for `alloc` events. A stack tells in which phase the allocation was made: a replay runs
    in the backward. Events share stacks, and stacks share frames: each is looked at once."""

    def __init__(self) -> None:
        self._of_stacks: dict[int, str] = {}
        self._of_frames: dict[int, str | None] = {}

    def kind_of(self, event: Mapping[Any, Any]) -> str:
        """The kind of one, which must outlive this object."""
        category, frames = event.get("category"), event.get("frames")
        if isinstance(category, str) and category in CATEGORIES:
            return CATEGORIES[category]
        if not isinstance(frames, list) or not frames:
            return UNKNOWN
        if id(frames) not in self._of_stacks:
            self._of_stacks[id(frames)] = self._by_stack(frames)
        return self._of_stacks[id(frames)]

    def _by_stack(self, frames: list[Any]) -> str:
        found = set()
        for frame in frames:
            if id(frame) not in self._of_frames:
                self._of_frames[id(frame)] = _phase(frame)
            found.add(self._of_frames[id(frame)])
        return next((phase for phase in _PHASES if phase in found), "allocated in other code")


def _phase(frame: object) -> str | None:
    if not isinstance(frame, dict):
        return None
    file, name = _text(frame.get("filename")), _text(frame.get("name"))
    if any(part in file for part in _OPTIMIZER):
        return _IN_OPTIMIZER
    if file.endswith(_BACKWARD) or name.startswith(_ENGINE) or name in _REPLAYS:
        return _IN_BACKWARD
    return _IN_FORWARD if name == "forward" else None


def _text(value: object) -> str:
    """The end of a string, an empty one for anything else."""
    return value[-_LONGEST:] if isinstance(value, str) else ""


LARGEST: Final = 1 << 50
"""Bytes of a block: more than any device has."""
LATEST: Final = (1 << 64) - 1
"""Of addresses and of microseconds."""
_REQUESTED: Final = "free_requested"
_SEGMENTS: Final = {"segment_alloc": 1, "segment_map": 1, "segment_free": -1, "segment_unmap": -1}
"""Whether bytes come or go."""


class ByteChange(Struct, frozen=True):
    """A block comes, or goes where its bytes are negative; micros: the recording's own clock;
    reserved: by how many bytes segments had grown since the recording began."""

    num_bytes: int
    reserved: int
    micros: int | None
    kind: str


class AtEnd(Struct, frozen=True):
    """Of one device at the snapshot: bytes of allocated blocks by address, and of all segments."""

    blocks: dict[int, int]
    reserved: int


class LiveCurve(Struct, frozen=True):
    """Of one device: bytes before the first change, the changes, the level after each, and when:
    seconds from the first on, None where some have no time. reserved_before: of segments.
    unseen: bytes that are gone at the end though no event frees them."""

    before: int
    reserved_before: int
    unseen: int
    changes: Sequence[ByteChange]
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


def walked(trace: Sequence[Any], end: AtEnd) -> LiveCurve:
    """`trace` with an allocation in it. NotPlainError where an event is none."""
    walk = _Walk(any(isinstance(one, dict) and one.get("action") == _REQUESTED for one in trace))
    changes = [change for event in trace for change in walk.changed(event)]
    alive, blocks = walk.alive, end.blocks
    before = walk.before + sum(size for at, size in blocks.items() if at not in alive)
    times = [change.micros for change in changes if change.micros is not None]
    timed = len(times) == len(changes)
    return LiveCurve(
        before=before,
        reserved_before=max(0, end.reserved - walk.reserved),
        unseen=sum(size for at, (size, _) in alive.items() if at not in blocks),
        changes=changes,
        levels=list(accumulate((one.num_bytes for one in changes), initial=before))[1:],
        # threads may write an event late: time does not run backwards
        seconds=[(one - times[0]) * 1e-6 for one in accumulate(times, max)] if timed else None,
    )


class _Walk:
    """Blocks that are alive, by address; before: bytes of those seen to go alone; reserved: growth
    of segments. requests: `free_requested` is recorded, without which a block goes completed."""

    def __init__(self, requests: bool) -> None:
        self.alive: dict[int, tuple[int, str]] = {}
        self.before = self.reserved = 0
        self._gone_by = _REQUESTED if requests else "free_completed"
        self._kinds = AllocationKinds()

    def changed(self, event: object) -> Iterator[ByteChange]:
        """What an event changes: nothing where it is about something else, as a completed free."""
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
            kind = self._kinds.kind_of(event)
            self.alive[address] = size, kind
            yield ByteChange(size, self.reserved, micros, kind)
            return
        if address not in self.alive:
            self.before += size
            self.alive[address] = size, BEFORE
        yield from self._gone(address, micros)

    def _gone(self, address: int, micros: int | None) -> Iterator[ByteChange]:
        if address in self.alive:
            size, kind = self.alive.pop(address)
            yield ByteChange(-size, self.reserved, micros, kind)


def whole_number(value: Any, most: int) -> int:
    """`value`; NotPlainError unless it is a whole number from 0 to `most`."""
    if type(value) is not int or not 0 <= value <= most:
        raise NotPlainError("an address, size or time in it is outside its range")
    return value


MOST_EVENTS: Final = 2_000_000
MOST_BLOCKS: Final = 2_000_000
MOST_DEVICES: Final = 4096
_SHOWN: Final = 8
_ROUND: Final = 1000


class Recording(Struct, frozen=True, kw_only=True):
    """Live bytes of one device after each event; seconds from the first event on, None where the
    recording has no times. kinds: bytes alive at the peak, by what they are. reserved_bytes: the
    most in segments, None where the allocator did not write them. unseen_bytes: gone at the end
    though no event frees them, so that the peak may be too high by as much. num_events: of all
    kinds, in the file. said: what `advise` wrote of a predicted one."""

    path: Path
    device: int
    num_bytes: tuple[int, ...]
    seconds: tuple[float, ...] | None
    peak_event: int
    kinds: Mapping[str, int]
    reserved_bytes: int | None
    unseen_bytes: int
    num_events: int
    said: Mapping[str, str]

    @property
    def peak_bytes(self) -> int:
        """The most alive at once."""
        return self.num_bytes[self.peak_event]

    @property
    def peak_seconds(self) -> float | None:
        """When."""
        return None if self.seconds is None else self.seconds[self.peak_event]

    @property
    def predicted(self) -> bool:
        """Whether `advise` wrote it."""
        return bool(self.said)

    @property
    def may_lack_events(self) -> bool:
        """Whether there are as many as somebody may have allowed (max_entries): the allocator then
        drops the oldest, and writes nowhere that it did."""
        count = self.num_events
        allowed = count >= _ROUND and (not count % _ROUND or not count & (count - 1))
        return allowed and not self.predicted


def recording_names(recordings: Sequence[Recording]) -> list[str]:
    """``measured`` and ``predicted``, numbered where all are the same."""
    found = ["predicted" if one.predicted else "measured" for one in recordings]
    if len(set(found)) == len(found):
        return found
    return [f"{name} {number}" for number, name in enumerate(found, 1)]


def read_recording(
    path: Path,
    device: int | None = None,
    within: tuple[float, float] | None = None,
    flag: str = "--device",
) -> Recording:
    """The recording of a device, by default of the highest peak; `within`: seconds that are shown.
    UserError where the file holds none, or has no such device, which `flag` gave."""
    snapshot = read_plain(path)
    try:
        return _recording(path, snapshot, device, within, flag)
    except NotPlainError as error:
        raise UserError(str(path), None, f"is not a memory snapshot: {error}") from None


def _recording(
    path: Path, snapshot: object, device: int | None, within: tuple[float, float] | None, flag: str
) -> Recording:
    whole = _typed(snapshot, dict, "it must be a dict of segments and device_traces")
    traces = _typed(whole.get("device_traces"), list, "it has no device_traces")
    events = sum(len(_typed(trace, list, "a device's trace is not a list")) for trace in traces)
    if events > MOST_EVENTS or len(traces) > MOST_DEVICES:
        limits = f"{MOST_EVENTS:,} events or {MOST_DEVICES:,} devices"
        raise NotPlainError(f"it has more than {limits}")
    used = [
        number
        for number, trace in enumerate(traces)
        if any(isinstance(event, dict) and event.get("action") == "alloc" for event in trace)
    ]
    if not used:
        raise NotPlainError(_NOTHING)
    if device is not None and device not in used:
        known = ", ".join(map(str, used[:_SHOWN]))
        kind = "stages" if _said(whole.get("allocator_settings")) else "devices"
        raise UserError(flag, device, f"has no events in {path}", f"{kind} with events: {known}")
    ends, found = _ends(whole), []
    for number in used if device is None else [device]:
        moments = walked(traces[number], ends.get(number, AtEnd({}, 0)))
        found.append((number, moments, moments.shown(within)))
    number, moments, shown = max(found, key=lambda one: max(one[1].levels[k] for k in one[2]))
    peak = max(shown, key=moments.levels.__getitem__)
    start, seconds = within[0] if within else 0.0, moments.seconds
    settings = whole.get("allocator_settings")
    said = _said(settings)
    return Recording(
        path=path,
        device=number,
        num_bytes=tuple(moments.levels[k] for k in shown),
        seconds=None if seconds is None else tuple(seconds[k] - start for k in shown),
        peak_event=peak - shown.start,
        kinds=moments.kinds(peak),
        reserved_bytes=moments.most_reserved(shown) if settings and not said else None,
        unseen_bytes=moments.unseen,
        num_events=len(traces[number]),
        said=said,
    )


_NOTHING: Final = (
    "it has no events: record with torch.cuda.memory._record_memory_history() before the steps"
)


def _said(settings: object) -> dict[str, str]:
    """What `advise` wrote, by name; nothing for what torch wrote."""
    if not isinstance(settings, dict) or "written by" not in settings:
        return {}
    return {k: v for k, v in settings.items() if isinstance(k, str) and isinstance(v, str)}


def _ends(whole: dict[Any, Any]) -> dict[int, AtEnd]:
    blocks: dict[int, dict[int, int]] = {}
    reserved: dict[int, int] = {}
    for device, address, block in islice(_blocks(whole), MOST_BLOCKS):
        size = whole_number(block.get("size"), LARGEST)
        reserved[device] = reserved.get(device, 0) + size
        if block.get("state") == "active_allocated":
            asked = whole_number(block.get("requested_size", size), LARGEST)
            blocks.setdefault(device, {})[address] = asked
    return {device: AtEnd(blocks.get(device, {}), size) for device, size in reserved.items()}


def _blocks(whole: dict[Any, Any]) -> Iterator[tuple[int, int, dict[Any, Any]]]:
    """Device, address and block; blocks without an address follow each other."""
    for segment in _typed(whole.get("segments"), list, "it has no segments")[:MOST_BLOCKS]:
        own = _typed(segment, dict, "a segment is not a dict")
        device = whole_number(own.get("device", 0), LATEST)
        address = whole_number(own.get("address"), LATEST)
        for one in _typed(own.get("blocks"), list, "a segment has no blocks"):
            block = _typed(one, dict, "a block is not a dict")
            yield device, whole_number(block.get("address", address), LATEST), block
            address += whole_number(block.get("size"), LARGEST)


def _typed(value: object, kind: type[Any], relation: str) -> Any:
    if not isinstance(value, kind):
        raise NotPlainError(relation)
    return value
