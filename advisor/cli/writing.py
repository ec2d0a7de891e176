"""Where the answer of a command goes: a terminal, a pipe, or a file (`-o`)."""

import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

from advisor.base.errors import UserError
from advisor.base.output_file import check_output_file
from advisor.cli.arguments import OutputFormat, UsageError
from advisor.cli.outcome import STDOUT_IS_CLOSED, Outcome


def check_output(path: Path | None, output: OutputFormat) -> None:
    """UserError or UsageError where the answer cannot go to `path` (None: stdout), or is a page and
    would go to a terminal."""
    if path is not None:
        check_output_file("-o", path, "job.html")
    elif sys.stdout is None:
        raise UsageError(STDOUT_IS_CLOSED)
    elif output is OutputFormat.HTML and sys.stdout.isatty():
        raise UserError("--format", output, "cannot be shown in a terminal", "add -o FILE.html")


def into_file(outcome: Outcome, path: Path, render: Callable[[], str]) -> Outcome:
    """The outcome, with the text that `render` makes in `path`, whatever the terminal is like;
    UserError where that cannot be written."""
    with redirect_stdout(StringIO()):
        text = render()
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError("-o", path, f"cannot be written: {error.strerror}") from None
    return outcome._replace(talk=(*outcome.talk, f"advise: wrote {path}"))
