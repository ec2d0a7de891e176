"""A file that is going to be written: checked before a long computation."""

import os
from pathlib import Path

from advisor.base.errors import UserError


def check_output_file(flag: str, path: Path, example: str) -> None:
    """UserError where the file that `flag` names cannot be written; example: a name for it."""
    folder = path.resolve().parent
    if path.is_dir():
        raise UserError(flag, path, "is a folder", f"write e.g. {flag} {path / example}")
    if not folder.is_dir():
        raise UserError(flag, path, f"there is no folder {path.parent}")
    if not os.access(path if path.exists() else folder, os.W_OK):
        raise UserError(flag, path, "is not writable")
