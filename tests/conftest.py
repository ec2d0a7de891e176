"""What holds for every test."""

import gc
import os
import signal
from collections.abc import Iterator

import pytest

# Megatron as it is installed, also where a newer release lies unpacked next to it.
os.environ.setdefault("MEGATRON_CORE", "")
os.environ.pop("COLUMNS", None)  # pages are as wide as they are for everybody
_AT_START = dict(os.environ)


@pytest.fixture(autouse=True, scope="module")
def _what_was_there_before_stays() -> None:
    """What imports and earlier files have made stays: no collection, and no count of all tensors,
    looks through these million objects again."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _same_environment() -> Iterator[None]:
    """Megatron Core sets variables of Transformer Engine in its process: not for other tests."""
    yield
    for name in os.environ.keys() - _AT_START.keys():
        if name.startswith("NVTE_"):
            del os.environ[name]


def _hear_signals() -> None:
    """A process in the background, or under nohup, ignores them, and so would all that it starts:
    tests that send one would wait for nothing."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)


_hear_signals()
