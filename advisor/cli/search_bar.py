"""How far a search is, on one line of a terminal, with the best so far."""

from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic
from typing import TYPE_CHECKING, Final, TextIO

if TYPE_CHECKING:
    from advisor.search.layout_search import Progress, Watch

_QUIET_SECONDS: Final = 0.5
"""A search that ends sooner shows nothing."""
_BETWEEN_SECONDS: Final = 0.1
_BAR: Final = 20
_WIDTH: Final = 100


@contextmanager
def watched(terminal: TextIO) -> "Iterator[Watch]":
    """What watches a search: a line of the terminal, which is wiped in the end."""
    bar = _SearchBar(terminal)
    try:
        yield bar
    finally:
        bar.wipe()


class _SearchBar:
    def __init__(self, stream: TextIO) -> None:
        self._stream, self._written = stream, False
        self._next = monotonic() + _QUIET_SECONDS

    def __call__(self, progress: "Progress") -> None:
        now = monotonic()
        if now < self._next:
            return
        self._next, self._written = now + _BETWEEN_SECONDS, True
        self._stream.write("\r" + progress_line(progress).ljust(_WIDTH))
        self._stream.flush()

    def wipe(self) -> None:
        if self._written:
            self._stream.write("\r" + " " * _WIDTH + "\r")
            self._stream.flush()


def progress_line(progress: "Progress") -> str:
    """``[####      ] 41 %, 2,311 settings; best so far 12.44 s: TP 1, DP 8, full``."""
    done = min(_BAR, max(0, int(progress.share * _BAR)))
    bar = f"[{'#' * done}{' ' * (_BAR - done)}] {100 * done // _BAR} %"
    text = f"advise: {bar}, {progress.evaluated:,} settings"
    best = progress.best
    if best is not None and best.fits:
        from advisor.request.layout_fields import degree_words

        degrees = degree_words(best.job.layout)
        text += f"; best so far {best.step_time_seconds:.2f} s: {degrees}, {best.setting.spec}"
    return f"{text} (Ctrl-C: stop here)"[:_WIDTH]
