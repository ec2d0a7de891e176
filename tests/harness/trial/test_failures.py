"""Messages of torch and NCCL as they are printed, and what they mean."""

import errno

import pytest

from harness.trial import failures
from harness.trial.failures import is_disk_full, of_exception, of_log, over_bytes
from harness.trial.result import TrialStatus

NEW = (
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.15 GiB of "
    "which 1.50 GiB is free. Including non-PyTorch memory, this process has 77.6 GiB memory in use."
)
OLD = (
    "CUDA out of memory. Tried to allocate 512.00 MiB (GPU 0; 15.78 GiB total capacity; 13.10 GiB "
    "already allocated; 256.00 MiB free; 14.2 GiB reserved in total by PyTorch)"
)
CAPPED = (
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 139.80 GiB of "
    "which 60.00 GiB is free. Process 7 has 79.50 GiB memory in use. 80.00 GiB allowed; Of the "
    "allocated memory 77.00 GiB is allocated by PyTorch, and 1.50 GiB is reserved by PyTorch but "
    "unallocated. If reserved but unallocated memory is large try setting …"
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (NEW, 2**29),
        (CAPPED, 2**29),
        (CAPPED.replace("60.00 GiB", "1.00 GiB"), 2**30),
        (CAPPED.replace("77.00 GiB", "79.00 GiB"), 2**31),
        (OLD, 2**28),
        (NEW.replace("1.50 GiB", "0 bytes"), 2**31),
        (NEW.replace("1.50 GiB", "8.00 GiB"), 0),
        (NEW.replace("2.00 GiB", "20 bytes").replace("1.50 GiB", "16 bytes"), 4),
        ("CUDA error: out of memory", None),
        ("Tried to allocate 2.00 GiB", None),
        ("", None),
    ],
)
def test_how_far_over(text: str, expected: int | None) -> None:
    assert over_bytes(text) == expected


def test_the_cause_is_looked_for_after_an_exception() -> None:
    error = ValueError("checkpoint failed")
    error.__cause__ = RuntimeError(NEW)
    assert of_exception(error).status is TrialStatus.OOM


def test_memory_comes_before_nccl() -> None:
    text = "NCCL error: unhandled cuda error, Cuda failure 2 'out of memory'"
    assert of_exception(RuntimeError(text)).status is TrialStatus.OOM


@pytest.mark.parametrize(
    ("lines", "status"),
    [
        (["fine", "RuntimeError: CUDA error: out of memory", "bye"], "oom"),
        (["CUBLAS_STATUS_ALLOC_FAILED when calling"], "oom"),
        (["[Rank 0] Watchdog caught collective operation timeout: ProcessGroupNCCL"], "nccl_error"),
        (["OSError: [Errno 28] No space left on device"], "failed"),
        (["out of memory", "NCCL error in"], "nccl_error"),
        (["Traceback", "ValueError: no"], None),
        (["[rank0]:[W115 10:18:40.91 ProcessGroupNCCL.cpp:1496] Warning: not destroyed"], None),
        (["[rank0]:[E115 10:18:40.91 ProcessGroupNCCL.cpp:616] watchdog timeout"], "nccl_error"),
        ([], None),
    ],
)
def test_the_last_known_line_of_a_log_counts(lines: list[str], status: str | None) -> None:
    found = of_log(lines)
    assert (found.status if found else None) == status


def test_messages_are_one_bounded_line() -> None:
    failure = of_exception(ValueError("a\n  b\n" + "x" * 1000))
    assert failure.message.startswith("ValueError: a b xxx")
    assert len(failure.message) == 400


def test_out_of_memory_as_the_system_says_it() -> None:
    assert of_exception(OSError(errno.ENOMEM, "no")).status is TrialStatus.OOM
    assert of_exception(OSError(errno.ENOENT, "no")).status is TrialStatus.FAILED


def test_full_disks() -> None:
    assert is_disk_full(OSError(errno.EDQUOT, "quota"))
    assert not is_disk_full(OSError(errno.EACCES, "no"))
    assert not is_disk_full(failures.NonFiniteLossError(1, float("nan")))
