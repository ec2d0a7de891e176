"""`-o FILE`: the answer goes to a file."""

from pathlib import Path
from typing import TextIO

from advisor.base.errors import UserError
from advisor.cli.arguments import OutputFormat


def check_written(path: Path | None, output: OutputFormat, screen: TextIO) -> None:
    """UserError where the answer cannot go to `path`, or is a page and would go to a terminal."""
    if path is None:
        if screen is not None and screen.isatty():
            raise UserError("--format", output, "is a page, not text", "add -o FILE.html")
        return
    if path.is_dir():
        raise UserError("-o", path, "is a folder", f"write e.g. -o {path / 'job.html'}")
    if not path.resolve().parent.is_dir():
        raise UserError("-o", path, f"there is no folder {path.parent}")


def write(text: str, path: Path) -> None:
    """Write `text` to `path`; UserError where that fails."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError("-o", path, f"cannot be written: {error.strerror}") from None
