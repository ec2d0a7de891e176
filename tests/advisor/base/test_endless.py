"""Files that never end, and those that only look so."""

import os
from pathlib import Path

import pytest

from advisor.base.documents import read_text
from advisor.base.errors import UserError
from advisor.base.lines import read_pieces


def test_pipes_and_devices_are_refused(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path in (pipe, Path("/dev/zero")):
        with pytest.raises(UserError, match="is a pipe or a device; give a file"):
            read_text(path)
        with pytest.raises(UserError, match="is a pipe or a device; give a file"):
            next(read_pieces(path, 10))


def test_what_a_shell_hands_over_is_read() -> None:
    ours, theirs = os.pipe()
    os.write(theirs, b"text")
    os.close(theirs)
    try:
        assert read_text(Path(f"/dev/fd/{ours}")) == "text"
    finally:
        os.close(ours)
