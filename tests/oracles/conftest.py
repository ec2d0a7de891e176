"""ORACLES=record writes the recording at the end of a run in which nothing failed."""

import os

import pytest

from .recorded import write


def pytest_sessionfinish(exitstatus: int) -> None:
    mode = os.environ.get("ORACLES")
    assert mode != "record" or "PYTEST_XDIST_WORKER" not in os.environ, "record in one process"
    if mode == "record" and exitstatus == pytest.ExitCode.OK:
        write()
