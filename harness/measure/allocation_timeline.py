"""Allocated bytes against time over one step, with its phases marked."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from harness.trial.result import Phase, TimelinePoint

MOST_POINTS: Final = 2000
SAMPLE_SECONDS: Final = 1e-3


class Timeline:
    """Points of one step; seconds count from its creation.

    A Recorder: `phase` marks where a phase begins, with the bytes that `allocated` tells then.
    """

    def __init__(
        self, allocated: Callable[[], int], now: Callable[[], float] = time.perf_counter
    ) -> None:
        self._allocated, self._now = allocated, now
        self._began = now()
        self._phase = Phase.FORWARD
        self._points: list[TimelinePoint] = []

    def phase(self, phase: Phase) -> None:
        """`phase` begins now."""
        self._phase = phase
        self.sample()

    def replay(self, begins: bool) -> None:
        """A stretch of the backward in which something is computed again."""
        self.phase(Phase.REPLAY if begins else Phase.BACKWARD)

    def sample(self) -> None:
        """Ask for the allocated bytes now."""
        self.add(self._allocated())

    def add(self, allocated: int) -> None:
        """`allocated` bytes are live now."""
        seconds = self._now() - self._began
        self._points.append(TimelinePoint(seconds=seconds, allocated=allocated, phase=self._phase))

    def points(self, most: int = MOST_POINTS) -> tuple[TimelinePoint, ...]:
        """In order of time (a sampler's points may come late), thinned to about `most`."""
        return thinned(sorted(self._points, key=lambda point: point.seconds), most)


def thinned(points: Sequence[TimelinePoint], most: int) -> tuple[TimelinePoint, ...]:
    """At most `most` points and the ends of every phase: of each stretch its lowest and highest
    point stay, so that no peak is lost."""
    if len(points) <= most:
        return tuple(points)
    keep = {0, len(points) - 1}
    for index in range(1, len(points)):
        if points[index].phase is not points[index - 1].phase:
            keep |= {index - 1, index}
    stretch = -(-len(points) * 2 // most)
    for start in range(0, len(points), stretch):
        indices = range(start, min(start + stretch, len(points)))
        keep.add(min(indices, key=lambda i: points[i].allocated))
        keep.add(max(indices, key=lambda i: points[i].allocated))
    return tuple(points[index] for index in sorted(keep))


@contextmanager
def sampled(take: Callable[[], None], interval: float = SAMPLE_SECONDS) -> Iterator[None]:
    """Call `take` at once and then every `interval` seconds from a thread, until the block ends."""
    done = threading.Event()

    def loop() -> None:
        take()
        while not done.wait(interval):
            take()

    thread = threading.Thread(target=loop, name="sampler", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
