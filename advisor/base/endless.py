"""Paths that a user names and that never end when they are read."""

import os
import stat
from pathlib import Path
from typing import Final

from advisor.base.errors import UserError
from advisor.base.fields import show_path

_DESCRIPTORS: Final = ("/dev/stdin", "/dev/fd/", "/proc/self/fd/")
"""What a shell gives another program to read: `<(command)`, `command | advise lint /dev/stdin`."""


def refuse_endless(path: Path, field: str) -> None:
    """UserError for a named pipe or a device, which nobody may ever write to or which never ends;
    one that does not exist is left to whoever opens it."""
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError):
        return
    if stat.S_ISREG(mode) or stat.S_ISDIR(mode) or str(path).startswith(_DESCRIPTORS):
        return
    raise UserError(field, show_path(path), "is a pipe or a device", "give a file")
