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


def write_over(path: Path, before: str, text: str) -> None:
    """Write a file anew in its encoding: at any instant it is whole, the old one or the new;
    UserError where that cannot be, or where it does not hold `before`."""
    path = path.resolve()
    new = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        data, codes = path.read_bytes(), ("utf-8", "utf-8-sig", "utf-16")
        code = next((one for one in codes if before.encode(one) == data), None)
        if code is None:
            raise UserError("file", path, "has changed, or is UTF-16 of another kind: not written")
        new.write_bytes(text.encode(code))
        shutil.copymode(path, new)
        os.replace(new, path)
    except OSError as error:
        raise UserError("file", path, f"cannot be written: {error.strerror}") from None
    finally:
        new.unlink(missing_ok=True)
