"""The command `advise`: reads the command line, prints the answer, maps errors to exit codes. 0: it
fits. 1: nothing fits. 2: the request is wrong, one line says why. 70: a fault of the advisor."""

import gc
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import TextIO

from advisor.cli.outcome import FAULT, INTERRUPTED, STDOUT_IS_CLOSED, WRONG


def command() -> int:
    """The program. A process that has printed all need not take apart what it has loaded."""
    try:
        code = main()
    except Exception as error:
        from advisor.base.errors import not_installed

        if isinstance(error, ModuleNotFoundError) and (line := not_installed(error)):
            return _fail(line)
        import traceback

        traceback.print_exc()
        print("advise: this is a bug in the advisor: please report it", file=sys.stderr)
        return FAULT
    with suppress(OSError):
        sys.stderr.flush()  # stdout is
    os._exit(code)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; stdout carries the result, stderr the talk. Returns the exit code."""
    collects = gc.isenabled()
    gc.disable()  # a run this short leaves no garbage: looking for it costs up to a tenth
    try:
        return _run(sys.argv[1:] if argv is None else list(argv))
    except KeyboardInterrupt:
        return INTERRUPTED
    finally:
        if collects:
            gc.enable()


def _run(arguments: list[str]) -> int:
    from advisor.base.errors import UserError
    from advisor.cli.arguments import UsageError
    from advisor.cli.commands import run

    if sys.stderr is None:  # closed by the caller
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # without UTF-8: a question mark, no traceback
            stream.reconfigure(errors="replace")
    if "_ARGCOMPLETE" in os.environ:
        from advisor.cli.subcommands import answer_shell

        answer_shell()
    try:
        outcome = run(arguments)
        for line in outcome.talk:
            _say(line)
        return _write(outcome.text, outcome.exit_code)
    except (UserError, UsageError) as error:
        return _fail(str(error))
    except OSError as error:
        return _fail(f"{error.filename or 'system'}: {error.strerror or error}")


def _write(text: str, exit_code: int) -> int:
    """Print the result; a reader that has seen enough (`| head`) is no error."""
    if not text:
        return exit_code
    if sys.stdout is None:
        return _fail(STDOUT_IS_CLOSED)
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except OSError as error:
        _to_nowhere(sys.stdout)
        if not isinstance(error, BrokenPipeError):
            return _fail(f"stdout: cannot write the answer: {error.strerror}")
    return exit_code


def _fail(message: str) -> int:
    """One line on stderr, whatever the message was made of."""
    _say(f"advise: {' '.join(message.split())}")
    return WRONG


def _say(line: str) -> None:
    """A line on stderr; where nobody can read it, it is left out."""
    try:
        print(line, file=sys.stderr)
    except OSError:
        _to_nowhere(sys.stderr)


def _to_nowhere(stream: TextIO) -> None:
    """The interpreter flushes again when it ends: give it somewhere to write."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


if __name__ == "__main__":
    sys.exit(command())
