"""Logs as files."""

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.logs.parse import ParsedLog, parse_logs
from harness.logs.records import LogFramework
from tests.harness.logs.snapshot_by_hand import recorded_by_hand

Parse = Callable[..., ParsedLog]


@pytest.fixture
def parse(tmp_path: Path) -> Parse:
    """What a text, or bytes, say as a log file."""

    def made(content: str | bytes, framework: LogFramework | None = None) -> ParsedLog:
        path = tmp_path / "train.log"
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return parse_logs([path], framework)

    return made


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
