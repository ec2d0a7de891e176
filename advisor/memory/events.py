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

    def above(self, num_bytes: int, place: str = "") -> "Peak":
        """This peak with `num_bytes` more alive, `place` after the name of its operator."""
        return Peak(self.num_bytes + num_bytes, self.point + place)


def highest(*peaks: Peak) -> Peak:
    """The one with most bytes; of equal ones the first."""
    return max(peaks, key=lambda peak: peak.num_bytes)


TAKE: Final = 0
GIVE: Final = 1
WORK: Final = 2
SPENT: Final = 3
SIMULATED_GIVE: Final = 4

Event = tuple[int, str, int]
"""Kind, name, bytes. TAKE, GIVE: a storage comes, goes. WORK: an operator runs, with so many bytes
next to all storages. SPENT: a gradient from outside the unit has gone, which the caller may hold.
SIMULATED_GIVE: the simulation alone gives a storage back here that the fold still holds."""


_NOWHERE: Final = Peak(-(1 << 62))


class Segment(Struct, frozen=True):
    """Events in a row, folded: bytes that they leave beyond those that they find, and the most
    alive within them, above those that they find."""

    net: int = 0
    peak: Peak = _NOWHERE

    def around(self, num_bytes: int, place: str = "") -> "Segment":
        """The same with `num_bytes` more alive from its begin to its end, `place` after the name of
        its operator."""
        if not num_bytes and not place:
            return self
        return Segment(self.net, self.peak.above(num_bytes, place))

    def times(self, number: int) -> "Segment":
        """So many of it in a row."""
        if number == 1:
            return self
        return Segment(number * self.net, self.peak.above(max(0, (number - 1) * self.net)))


def fold(events: Iterable[Event], *, holds_spent: bool = False) -> Segment:
    """Bytes alive through `events`, which begin with nothing; of equal peaks the first one.
    holds_spent: where the caller keeps what is spent."""
    live, most, point = 0, 0, ""
    for kind, name, num_bytes in events:
        if kind == TAKE or (kind == SPENT and holds_spent):
            live += num_bytes
        elif kind == GIVE:
            live -= num_bytes
        elif kind == WORK and live + num_bytes > most:
            most, point = live + num_bytes, name
    return Segment(live, Peak(most, point))


def in_a_row(segments: Iterable[Segment], *, last: bool = False) -> Segment:
    """All of them, one after another; of equal peaks the first one, or the last."""
    live, most, point = 0, _NOWHERE.num_bytes, ""
    for segment in segments:
        peak = segment.peak
        if live + peak.num_bytes + last > most:
            most, point = live + peak.num_bytes, peak.point
        live += segment.net
    return Segment(live, Peak(most, point))
