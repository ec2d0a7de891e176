"""The command `harness`: hands its arguments to a subcommand, maps errors to exit codes."""

import importlib
import io
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, TextIO

from advisor.report.command_help import help_page, read_page
from advisor.report.text import on_screen

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

USAGE: Final = 2
RUN_FAILED: Final = 4
INTERRUPTED: Final = 130

COMMAND: Final = read_page(__file__, "harness")

_NAMES: Final = "run compare golden report calibrate rehearse sweep ingest accuracy snapshot"
MODULES: Final = {name: f"harness.cli.{name}" for name in _NAMES.split()} | {
    "completion": "harness.cli.shells"
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; stdout carries the result, stderr the talk. Returns the exit code."""
    arguments = sys.argv[1:] if argv is None else list(argv)
    if argv is None and sys.stdout is not None:
        sys.stdout = _pipe(sys.stdout)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # a terminal without UTF-8 shows a question mark
            stream.reconfigure(errors="replace")
    try:
        return _dispatch(arguments)
    except SystemExit as end:  # --help of a command
        return int(end.code or 0)
    except KeyboardInterrupt:
        return INTERRUPTED
    except OSError as error:  # a full disk, a folder that is read-only
        where = f"{error.filename}: " if error.filename else ""
        return fail(f"{arguments[0]}: {where}{error.strerror or error}", RUN_FAILED)
    except ModuleNotFoundError as error:
        from advisor.base.errors import not_installed

        if line := not_installed(error):
            return fail(line)
        traceback.print_exc()
        return RUN_FAILED
    except Exception:  # Python would exit with 1, which CI reads as a regression
        traceback.print_exc()
        return RUN_FAILED


class _Pipe(io.FileIO):
    """A pipe whose reader may leave early (`| head`): that loses the rest, not the exit code."""

    def write(self, data: "ReadableBuffer", /) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            return memoryview(data).nbytes


def _pipe(stream: TextIO) -> TextIO:
    """`stream` as one that does not fail where nobody reads it; PYTHONUNBUFFERED is by the line."""
    buffer = io.BufferedWriter(_Pipe(stream.fileno(), "w", closefd=False))
    by_line = stream.isatty() or bool(getattr(stream, "write_through", False))
    return io.TextIOWrapper(buffer, stream.encoding, line_buffering=by_line)


def _dispatch(arguments: list[str]) -> int:
    from advisor.base.errors import UserError, nearest_names, show

    if "_ARGCOMPLETE" in os.environ:
        from harness.cli.shells import answer_shell

        answer_shell(COMMAND, MODULES)
    if not arguments or arguments[0] in ("-h", "--help"):
        print(on_screen(help_page(COMMAND)), end="")
        return 0 if arguments else USAGE
    name, *rest = arguments
    if name == "--version":
        from advisor.base.distribution import installed_version

        print("harness", installed_version())
        return 0
    if name not in MODULES:
        return fail(f"{show(name)}: is not a command; {nearest_names(name, MODULES)}")
    command: Callable[[list[str]], int] = importlib.import_module(MODULES[name]).main
    try:
        return command(rest)
    except UserError as error:
        return fail(f"{name}: {str(error).removeprefix(f'harness {name}: ')}")


def fail(message: str, code: int = USAGE) -> int:
    """One line on stderr, whatever the message was made of; the exit code."""
    print("harness", " ".join(message.split()), file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
