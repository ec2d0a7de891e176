"""Ties a process to its parent: when the parent dies, however it dies, so does the process.
``python -m harness.execution.launchers.parent_death COMMAND...`` ties itself, then becomes the
command: the tie outlives exec. Linux only; elsewhere the next run ends what is left."""

import ctypes
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

TETHER: Final = "HARNESS_TETHER"
"""Set by the harness for the processes of a trial."""
_PR_SET_PDEATHSIG: Final = 1  # linux/prctl.h


def die_with_parent(number: int = signal.SIGKILL) -> None:
    """Ask the kernel for a signal when the parent ends; nothing where we were started by hand."""
    if os.environ.get(TETHER) != "1" or not sys.platform.startswith("linux"):
        return
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)


def main(argv: Sequence[str]) -> None:
    """Become the command `argv`, tied to our parent."""
    die_with_parent()
    os.execv(argv[0], list(argv))


if __name__ == "__main__":
    main(sys.argv[1:])
