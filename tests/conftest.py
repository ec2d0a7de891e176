"""What holds for every test."""

import gc
import os
import signal
from collections.abc import Iterator
from itertools import groupby

import pytest

# Megatron as it is installed, also where a newer release lies unpacked next to it.
os.environ.setdefault("MEGATRON_CORE", "")
os.environ.pop("COLUMNS", None)  # pages are as wide as they are for everybody
_AT_START = dict(os.environ)
gc.set_threshold(100_000)  # by default a quarter of the time looks through objects that all stay


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--one-in", type=int, default=1, help="run one test in so many of each file")


@pytest.hookimpl(trylast=True)  # after -m and -k
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """With --one-in N: the first test of each file, the N+1st, …, and all that are marked."""
    one_in = config.getoption("--one-in")
    items[:] = [
        item
        for _, of_file in groupby(list(items), key=lambda item: item.path)
        for place, item in enumerate(of_file)
        if place % one_in == 0 or item.get_closest_marker("every_python")
    ]


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
