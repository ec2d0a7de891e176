"""The snapshot that was added up by hand, as an object and as a file."""

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.harness.logs.snapshots.recorded import recorded_by_hand


@pytest.fixture
def recorded() -> dict[str, Any]:
    """Of its own for each test."""
    return recorded_by_hand()


@pytest.fixture
def snapshot_path(tmp_path: Path, recorded: dict[str, Any]) -> Path:
    """As torch dumps it."""
    path = tmp_path / "rank0.pickle"
    path.write_bytes(pickle.dumps(recorded))
    return path


@pytest.fixture
def write(tmp_path: Path) -> Callable[[object], Path]:
    """A file of any object."""

    def written(content: object) -> Path:
        (tmp_path / "s.pickle").write_bytes(pickle.dumps(content))
        return tmp_path / "s.pickle"

    return written
