"""What a peak run reports: the life of every storage, and the listings made from it."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field


@dataclass(slots=True, kw_only=True)
class StorageRecord:
    """The life of one storage, from dispatched operation `born` until `died` (exclusive).

    `op` is the operation that allocated it; `module` the module (in the backward pass: of the
    autograd node `node`) it ran for; `site` the innermost line of Megatron that was running;
    `phase` the schedule's step, such as "forward mb0 chunk0"; `saved_by` the autograd node and
    module that saved it, if a graph still held it when its forward step ended.
    """

    nbytes: int
    shape: tuple[int, ...]
    dtype: str
    op: str
    module: str
    node: str
    site: str
    phase: str
    born: int
    died: int | None = None
    saved_by: str = ""

    def lives_at(self, clock: int) -> bool:
        """True if the storage existed right after operation number `clock`."""
        return self.born <= clock and (self.died is None or clock < self.died)

    def describe(self) -> str:
        """One line: bytes, shape, dtype, where it comes from, who saved it."""
        maker = " ".join(x for x in (self.op, self.node, self.module, self.site) if x)
        saved = f"  saved by {self.saved_by}" if self.saved_by else ""
        return f"{self.nbytes:>16,} {list(self.shape)} {self.dtype} {maker}{saved}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One dispatched operation: live bytes just after it, and where it ran."""

    clock: int
    live_bytes: int
    op: str
    module: str
    node: str
    site: str
    phase: str
    raises_peak: bool


@dataclass(slots=True, kw_only=True)
class PeakTrace:
    """The peak above parameters and gradients, with everything needed to attribute it."""

    peak_bytes: int = 0
    peak_clock: int = 0
    records: list[StorageRecord] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)

    def live_at(self, clock: int | None = None) -> list[StorageRecord]:
        """Storages alive right after an operation (default: the peak), largest first."""
        at = self.peak_clock if clock is None else clock
        alive = [record for record in self.records if record.lives_at(at)]
        return sorted(alive, key=lambda record: -record.nbytes)

    def event_at(self, clock: int | None = None) -> Event:
        """The operation with that number (default: the one that made the peak)."""
        return self.events[(self.peak_clock if clock is None else clock) - 1]

    def peak_of(self, wanted: Callable[[Event], bool]) -> Event:
        """The operation with most live bytes among those that `wanted` accepts."""
        return max(filter(wanted, self.events), key=lambda event: event.live_bytes)

    def peaks_by_phase(self) -> dict[str, Event]:
        """The operation with most live bytes of each phase, in schedule order."""
        peaks: dict[str, Event] = {}
        for event in self.events:
            if event.phase not in peaks or event.live_bytes > peaks[event.phase].live_bytes:
                peaks[event.phase] = event
        return peaks

    def window(self, first: int, last: int) -> Iterator[str]:
        """One line an operation: live bytes, what it allocated, what died after it."""
        for event in self.events[first - 1 : last]:
            yield f"#{event.clock} {event.live_bytes:>16,} [{event.phase}] {event.op} {event.node}"
            for record in self.records:
                if record.born == event.clock and record.died != event.clock:
                    yield f"      + {record.describe()}"
                if record.died == event.clock + 1 and record.born != record.died:
                    yield f"      - {record.describe()}"

    def listing(self, clock: int | None = None, largest: int = 40, floor: int = 0) -> str:
        """Live storages at the peak: those of earlier phases summed, the running phase's each.

        Storages of the running phase that its forward saved are summed by saver as well.
        """
        at = self.event_at(clock)
        lines = [f"peak {at.live_bytes:,} at #{at.clock} [{at.phase}] {at.op} {at.node}"]
        lines.append(f"  in {at.module} {at.site}")
        alive = self.live_at(at.clock)
        retained = [record for record in alive if record.phase != at.phase]
        lines += _sums("retained from earlier phases", retained)
        current = [record for record in alive if record.phase == at.phase and record.nbytes > floor]
        lines.append(f"  born in this phase: {sum(x.nbytes for x in current):,}")
        lines += [f"    {record.describe()}" for record in current[:largest]]
        if len(current) > largest:
            rest = sum(record.nbytes for record in current[largest:])
            lines.append(f"    {rest:>16,} in {len(current) - largest} smaller ones")
        return "\n".join(lines)


def _sums(title: str, records: list[StorageRecord]) -> list[str]:
    """Sums over (phase, saved or not), then single lines for what no graph saved."""
    totals: dict[tuple[str, bool], int] = {}
    for record in records:
        key = (record.phase, bool(record.saved_by))
        totals[key] = totals.get(key, 0) + record.nbytes
    lines = [f"  {title}: {sum(record.nbytes for record in records):,}"]
    for (phase, saved), nbytes in totals.items():
        lines.append(f"    {nbytes:>16,} {phase}: {'saved' if saved else 'held otherwise'}")
    held = [record for record in records if not record.saved_by]
    lines += [f"      {record.phase}: {record.describe()}" for record in held]
    return lines
