"""What an exception or a log says about why a trial failed. Text and names only: no torch here."""

import errno
import re
from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from advisor.base.errors import UserError
from advisor.base.units import parse_bytes
from harness.trial.files import FULL
from harness.trial.result import TrialStatus

_OUT_OF_MEMORY: Final = (
    *("out of memory", "can't allocate memory", "cannot allocate memory"),
    *("cublas_status_alloc_failed", "std::bad_alloc", "cudaerrormemoryallocation"),
)
_NCCL: Final = (
    *("nccl error", "processgroupnccl", "distbackenderror"),
    *("ncclsystemerror", "ncclinternalerror", "ncclunhandledcudaerror", "ncclremoteerror"),
)
_SIZE: Final = r"([0-9.]+ (?:bytes|[KMGT]i?B))"
# torch >= 2.1: "Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.15 GiB of which
# 1.01 GiB is free." Before: "Tried to allocate 2.00 GiB (GPU 0; 15.78 GiB total capacity; 13.10
# GiB already allocated; 1.01 GiB free; ...)".
_ASKED: Final = re.compile(rf"tried to allocate (?:more than )?{_SIZE}", re.IGNORECASE)
_FREE: Final = re.compile(rf"{_SIZE} (?:is )?free\b", re.IGNORECASE)
# Under torch.cuda.set_per_process_memory_fraction: "… is free. 80.00 GiB allowed; Of the allocated
# memory 77.00 GiB is allocated by PyTorch, with 1.00 GiB allocated in private pools (e.g., CUDA
# Graphs), and 1.50 GiB is reserved by PyTorch but unallocated."
_ALLOWED: Final = re.compile(rf"{_SIZE} allowed\b", re.IGNORECASE)
_HELD: Final = re.compile(rf"{_SIZE} (?:is allocated by|is reserved by) PyTorch", re.IGNORECASE)
_GLOG_TALK: Final = re.compile(r"\[[IW]\d{3,4} [\d:.]+ ")
"""torch's C++ side writes its level and date: what it only tells (I) or warns of (W) is no cause,
though "destroy_process_group() was not called" names ProcessGroupNCCL at the end of many runs."""
_MESSAGE_WIDTH: Final = 400


class NonFiniteLossError(RuntimeError):
    """The loss of a step is NaN or infinite."""

    def __init__(self, step: int, loss: float) -> None:
        super().__init__(f"loss of step {step} is {loss}")


class Failure(Struct, frozen=True):
    """A status with its reason in one line; over_bytes where the text tells."""

    status: TrialStatus
    message: str
    over_bytes: int | None = None


def of_exception(error: BaseException) -> Failure:
    """What `error`, or one that led to it, says."""
    text = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
    return Failure(_status(error), one_line(text), over_bytes=over_bytes(str(error)))


def _status(error: BaseException) -> TrialStatus:
    if isinstance(error, UserError):
        return TrialStatus.SKIPPED
    if isinstance(error, NonFiniteLossError):
        return TrialStatus.NAN
    for cause in causes_of(error):
        names = " ".join(kind.__name__ for kind in type(cause).__mro__)
        no_memory = isinstance(cause, OSError) and cause.errno == errno.ENOMEM
        if isinstance(cause, MemoryError) or "OutOfMemoryError" in names or no_memory:
            return TrialStatus.OOM
        found = _of_words(f"{names} {cause}") if isinstance(cause, RuntimeError) else None
        if found is not None:
            return found
    return TrialStatus.FAILED


def causes_of(error: BaseException) -> list[BaseException]:
    """`error` and what it was raised from or during."""
    found: list[BaseException] = []
    current: BaseException | None = error
    while current is not None and current not in found:
        found.append(current)
        current = current.__cause__ or current.__context__
    return found


def of_log(lines: Sequence[str]) -> Failure | None:
    """The last line that names a known cause; None where none does."""
    for line in reversed(lines):
        if _GLOG_TALK.search(line):
            continue
        status = _of_words(line)
        if status is not None:
            return Failure(status, one_line(line), over_bytes=over_bytes(line))
        if "no space left on device" in line.lower():
            return Failure(TrialStatus.FAILED, one_line(line))
    return None


def _of_words(text: str) -> TrialStatus | None:
    """Memory before NCCL: a communicator that gets no memory says both."""
    lowered = text.lower()
    if any(words in lowered for words in _OUT_OF_MEMORY):
        return TrialStatus.OOM
    return TrialStatus.NCCL_ERROR if any(words in lowered for words in _NCCL) else None


def over_bytes(text: str) -> int | None:
    """Bytes asked for beyond what was free, of the GPU and of the process's own allowance, from
    torch's message; None where it does not say, or what is written there is no size."""
    asked, free, allowed = (one.search(text) for one in (_ASKED, _FREE, _ALLOWED))
    if asked is None or free is None:
        return None
    try:
        left = _bytes(free[1])
        if allowed is not None:  # a process with a limit of its own
            left = min(left, max(0, _bytes(allowed[1]) - sum(map(_bytes, _HELD.findall(text)))))
        return max(0, _bytes(asked[1]) - left)
    except ValueError:
        return None


def _bytes(quantity: str) -> int:
    number, _, unit = quantity.partition(" ")
    if float(number) == 0.0:
        return 0
    return parse_bytes(f"{number} {'B' if unit == 'bytes' else unit}", "out of memory")


def is_disk_full(error: BaseException) -> bool:
    """Whether `error` or what led to it is a full disk or a spent quota."""
    return any(isinstance(cause, OSError) and cause.errno in FULL for cause in causes_of(error))


def one_line(text: str) -> str:
    """`text` on one line of bounded length."""
    line = " ".join(text.split())
    return line if len(line) <= _MESSAGE_WIDTH else line[: _MESSAGE_WIDTH - 1] + "…"
