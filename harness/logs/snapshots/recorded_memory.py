"""Live bytes against time out of a memory snapshot of torch, measured or predicted.

One object may stand in a million places of a snapshot: what is walked through is counted. Source of
its keys: torch 2.13 cuda/memory.py, _snapshot; torch 2.11 writes the same, without pool_id.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from advisor.base.errors import UserError
from harness.logs.snapshots.live_bytes import LARGEST, LATEST, AtEnd, walked, whole_number
from harness.logs.snapshots.plain_pickle import NotPlainError, read_plain

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
        return not self.predicted and count >= _ROUND and (not count % _ROUND or _is_power(count))


def words(recordings: Sequence[Recording]) -> list[str]:
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
    """The recording of a device, by default of the one whose peak is highest; `within`: seconds of
    the recording beyond which nothing is shown. UserError where the file holds none, or where it
    has no such device, which `flag` gave."""
    snapshot = read_plain(path)
    try:
        return _recording(path, snapshot, device, within, flag)
    except NotPlainError as error:
        raise UserError(str(path), None, f"is not a memory snapshot: {error}") from None


def _recording(
    path: Path,
    snapshot: object,
    device: int | None,
    within: tuple[float, float] | None,
    flag: str,
) -> Recording:
    whole = _typed(snapshot, dict, "it must be a dict of segments and device_traces")
    traces = _typed(whole.get("device_traces"), list, "it has no device_traces")
    events = sum(len(_typed(trace, list, "a device's trace is not a list")) for trace in traces)
    if events > MOST_EVENTS or len(traces) > MOST_DEVICES:
        limits = f"{MOST_EVENTS:,} events or {MOST_DEVICES:,} devices"
        raise NotPlainError(f"it has more than {limits}")
    used = [number for number, trace in enumerate(traces) if _has_allocations(trace)]
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


def _has_allocations(trace: list[Any]) -> bool:
    return any(isinstance(event, dict) and event.get("action") == "alloc" for event in trace)


def _said(settings: object) -> dict[str, str]:
    """What `advise` wrote, by name; nothing for what torch wrote."""
    if not isinstance(settings, dict) or "written by" not in settings:
        return {}
    return {k: v for k, v in settings.items() if isinstance(k, str) and isinstance(v, str)}


def _ends(whole: dict[Any, Any]) -> dict[int, AtEnd]:
    """By device."""
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
    segments = _typed(whole.get("segments"), list, "it has no segments")
    for segment in segments[:MOST_BLOCKS]:
        own = _typed(segment, dict, "a segment is not a dict")
        device = whole_number(own.get("device", 0), LATEST)
        address = whole_number(own.get("address"), LATEST)
        for one in _typed(own.get("blocks"), list, "a segment has no blocks"):
            block = _typed(one, dict, "a block is not a dict")
            yield device, whole_number(block.get("address", address), LATEST), block
            address += whole_number(block.get("size"), LARGEST)


def _is_power(count: int) -> bool:
    return not count & (count - 1)


def _typed(value: object, kind: type[Any], relation: str) -> Any:
    if not isinstance(value, kind):
        raise NotPlainError(relation)
    return value
