"""A file that is going to be written: checked before a long computation."""

import os
import shutil
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


def write_over(path: Path, text: str) -> None:
    """Write a file of UTF-8 anew: at any instant it is the old one or the new, with the same
    rights. OSError where that cannot be."""
    path = path.resolve()
    new = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        new.write_bytes(text.encode())
        shutil.copymode(path, new)
        os.replace(new, path)
    finally:
        new.unlink(missing_ok=True)
