"""A signal to stop, as Python programs know it."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager

from harness.execution.signals import Stop


@contextmanager
def stops_as_usual() -> Iterator[None]:
    """Inside, Ctrl-C ends in KeyboardInterrupt and SIGTERM in SystemExit; what is finished is on
    disk by then, and the same call goes on from there."""
    try:
        yield
    except Stop as stop:
        if stop.number == signal.SIGINT:
            raise KeyboardInterrupt from None
        raise SystemExit(stop.exit_code) from None
