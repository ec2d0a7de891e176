"""A pass is a list of events, and its memory a fold over them: the highest prefix.

An event takes or gives back a named storage, or lets an operator run. Folded, a list is a
`Segment`: bytes that it leaves beyond those that it found, and the most within it. Two in a row are
(d1 + d2, max(p1, d1 + p2)), n equal ones (n d, p + max(0, (n - 1) d)), so that a layer is walked
once and a chunk of a hundred layers is as cheap as one of three.
"""

from collections.abc import Iterable
from typing import Final

from msgspec import Struct


class Peak(Struct, frozen=True):
    """The most bytes alive at once, and the operator that ran then."""

    num_bytes: int = 0
    point: str = ""

    def or_higher(self, num_bytes: int, point: str) -> "Peak":
        """This peak, or the other one where that has more bytes."""
        return Peak(num_bytes, point) if num_bytes > self.num_bytes else self

    def above(self, num_bytes: int, place: str = "") -> "Peak":
        """This peak with `num_bytes` more alive, `place` after the name of its operator."""
        return Peak(self.num_bytes + num_bytes, self.point + place)


TAKE: Final = 0
GIVE: Final = 1
WORK: Final = 2
SPENT: Final = 3
SIMULATED_GIVE: Final = 4

Event = tuple[int, str, int]
"""Kind, name, bytes. TAKE, GIVE: a storage comes, goes. WORK: an operator runs, with so many bytes
next to all storages. SPENT: a gradient from outside the unit has gone, which the caller may hold.
SIMULATED_GIVE: the simulation alone gives a storage back here that the fold still holds."""


class Fold(Struct, frozen=True):
    """What a list of events leaves; its highest prefix; and the same where the caller keeps what
    is spent."""

    net: int
    peak: Peak
    held_peak: Peak


def fold(events: Iterable[Event]) -> Fold:
    """Bytes alive through `events`, which begin with nothing; of equal peaks the first one."""
    live = spent = most = most_held = 0
    point = held_point = ""
    for kind, name, num_bytes in events:
        if kind == TAKE:
            live += num_bytes
        elif kind == GIVE:
            live -= num_bytes
        elif kind == WORK:
            alive = live + num_bytes
            if alive > most:
                most, point = alive, name
            if alive + spent > most_held:
                most_held, held_point = alive + spent, name
        elif kind == SPENT:
            spent += num_bytes
    return Fold(live, Peak(most, point), Peak(most_held, held_point))


_NOWHERE: Final = Peak(-(1 << 62))


class Segment(Struct, frozen=True):
    """Events in a row, folded: bytes that they leave beyond those that they find, and the most
    alive within them, above those that they find."""

    net: int = 0
    peak: Peak = _NOWHERE

    def around(self, num_bytes: int) -> "Segment":
        """The same with `num_bytes` more alive from its begin to its end."""
        return Segment(self.net, self.peak.above(num_bytes)) if num_bytes else self

    def times(self, number: int) -> "Segment":
        """So many of it in a row."""
        if number == 1:
            return self
        return Segment(number * self.net, self.peak.above(max(0, (number - 1) * self.net)))


def taken(num_bytes: int) -> Segment:
    """Bytes that come, or go where they are negative, while no operator runs."""
    return Segment(num_bytes)


def at_point(num_bytes: int, point: str) -> Segment:
    """Bytes that are there at one point alone."""
    return Segment(0, Peak(num_bytes, point))


def in_a_row(segments: Iterable[Segment], *, last: bool = False) -> Segment:
    """All of them, one after another; of equal peaks the first one, or the last."""
    live, most, point = 0, _NOWHERE.num_bytes, ""
    for segment in segments:
        peak = segment.peak
        if live + peak.num_bytes + last > most:
            most, point = live + peak.num_bytes, peak.point
        live += segment.net
    return Segment(live, Peak(most, point))
