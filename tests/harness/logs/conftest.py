"""Logs as files."""

from collections.abc import Callable
from pathlib import Path

import pytest

from harness.logs.parse import ParsedLog, parse_logs
from harness.logs.records import LogFramework

Parse = Callable[..., ParsedLog]


@pytest.fixture
def parse(tmp_path: Path) -> Parse:
    """What a text, or bytes, say as a log file."""

    def made(content: str | bytes, framework: LogFramework | None = None) -> ParsedLog:
        path = tmp_path / "train.log"
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return parse_logs([path], framework)

    return made
