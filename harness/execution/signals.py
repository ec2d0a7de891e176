"""Ctrl-C and its kin as one exception that never arrives in the middle of a critical section."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


class Stop(BaseException):
    """The user, the job's scheduler or a closed terminal wants us to end."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number

    @property
    def exit_code(self) -> int:
        """What a shell reports for this signal: 130 for Ctrl-C."""
        return 128 + self.number


class StopSignals:
    """Raises Stop on SIGINT, SIGTERM or SIGHUP, at once or at the end of a `held` block. Signals
    can only be handled in the main thread; in another one this does nothing."""

    def __init__(self) -> None:
        self._held = 0
        self._received: list[int] = []
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> "StopSignals":
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                # what is ignored on purpose (nohup) stays ignored
                if signal.getsignal(number) is not signal.SIG_IGN:
                    self._previous[number] = signal.signal(number, self._receive)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _receive(self, number: int, _: FrameType | None) -> None:
        self._received.append(number)
        if not self._held:
            raise Stop(number)

    @contextmanager
    def held(self) -> Iterator[None]:
        """A signal that arrives inside is raised at the end, unless an exception is on its way."""
        self._held += 1
        before = len(self._received)
        try:
            yield
        finally:
            self._held -= 1
        if not self._held and len(self._received) > before:
            raise Stop(self._received[-1])


@contextmanager
def stops_as_usual() -> Iterator[None]:
    """Inside, Ctrl-C ends in KeyboardInterrupt and SIGTERM in SystemExit; the same call goes on."""
    try:
        yield
    except Stop as stop:
        if stop.number == signal.SIGINT:
            raise KeyboardInterrupt from None
        raise SystemExit(stop.exit_code) from None
