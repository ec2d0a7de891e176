"""Which parts of a long step a picture shows: its begin, a part around the peak, the end of its
pipeline, and the begin of its optimizer.

All of a short one. A picture has room for `MOST_PASSES` passes beside each other; more would be
thin stripes.
"""

from typing import Final

from msgspec import Struct

from advisor.step.timeline import TimedPass

MOST_PASSES: Final = 44
_BEGIN, _AROUND, _END, _BEHIND = 14, 14, 12, 2.5
"""Passes of the begin, of the part around the peak and of the end; and so much before and behind
where the pipeline ends and the optimizer begins."""


class Window(Struct, frozen=True):
    """Seconds from and to which a step is shown."""

    start: float
    end: float

    @property
    def length(self) -> float:
        """Seconds."""
        return self.end - self.start

    def clipped(self, start: float, end: float) -> tuple[float, float] | None:
        """The part of an interval that is shown; None where none is."""
        low, high = max(start, self.start), min(end, self.end)
        return (low, high) if high > low else None


def windows(
    passes: tuple[TimedPass, ...], peak: TimedPass | None, optimizer: float, end: float
) -> list[Window]:
    """Parts of a step that ends at `end`, its optimizer beginning at `optimizer`. passes: those of
    the stage with the highest peak; peak: the one that reaches it, None where the optimizer
    does."""
    each = sum(one.end - one.start for one in passes) / len(passes)
    if end <= MOST_PASSES * each:
        return [Window(0.0, end)]
    last = passes[-1].end
    found = [
        *_of_pipeline(passes, peak, each),
        Window(last - each, min(last + _BEHIND * each, end)),
        Window(max(last, optimizer - _BEHIND * each), min(optimizer + 2 * _BEHIND * each, end)),
    ]
    return _joined(found)


def _of_pipeline(
    passes: tuple[TimedPass, ...], peak: TimedPass | None, each: float
) -> list[Window]:
    last = passes[-1].end
    if last <= MOST_PASSES * each:
        return [Window(0.0, last)]
    middle = passes[len(passes) // 2].start
    early = peak is None or peak.end <= _BEGIN * each or peak.end >= last - _END * each
    around = middle if early or peak is None else peak.start - 0.5 * _AROUND * each
    steady = _start_of_one(passes, around)
    return [
        Window(0.0, _BEGIN * each),
        Window(steady, min(steady + _AROUND * each, last)),
        Window(_start_of_one(passes, last - _END * each), last),
    ]


def _start_of_one(passes: tuple[TimedPass, ...], seconds: float) -> float:
    return next(one.start for one in passes if one.start >= seconds)


def _joined(found: list[Window]) -> list[Window]:
    """Windows that touch are one."""
    joined = [found[0]]
    for one in found[1:]:
        if one.start <= joined[-1].end:
            joined[-1] = Window(joined[-1].start, max(one.end, joined[-1].end))
        else:
            joined.append(one)
    return joined
