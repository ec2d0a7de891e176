"""ORACLES=record writes the recording at the end of a run in which nothing failed; the release that
MEGATRON_CORE names has to be there."""

import os

import pytest

from .recorded import OTHER_RELEASE, write

if OTHER_RELEASE:  # else the tests would say that it is not installed, and be skipped
    import megatron.core  # noqa: F401


def pytest_itemcollected(item: pytest.Item) -> None:
    item.add_marker(pytest.mark.oracle)
    item.add_marker(pytest.mark.filterwarnings("ignore"))


def pytest_sessionfinish(exitstatus: int) -> None:
    mode = os.environ.get("ORACLES")
    assert mode != "record" or "PYTEST_XDIST_WORKER" not in os.environ, "record in one process"
    if mode == "record" and exitstatus == pytest.ExitCode.OK:
        write()
