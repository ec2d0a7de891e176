"""Why a run ended, out of what was said after its last step."""

import pytest

from harness.logs.causes import Causes
from harness.trial.result import TrialStatus
from tests.harness.logs import lines
from tests.harness.logs.conftest import Parse

OOM = (
    "[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a "
    "total capacity of 79.15 GiB of which 1.50 GiB is free."
)


@pytest.mark.parametrize(
    ("text", "status", "says"),
    [
        (OOM, "oom", "Tried to allocate"),
        (f"NCCL error in: a\n{OOM}\nNCCL error in: b", "oom", "Tried to allocate"),
        ("[rank0]:[E115 10:00:00.1 ProcessGroupNCCL.cpp:616] Watchdog", "nccl_error", "Watchdog"),
        (
            "slurmstepd: error: *** STEP 1.0 ON n1 CANCELLED AT 2026 DUE TO TIME LIMIT ***",
            "timeout",
            "TIME LIMIT",
        ),
        ("slurmstepd: error: Detected 1 oom-kill event(s) in StepId=1.0.", "oom", "oom-kill"),
        ("CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", "oom", "CUBLAS"),
        (
            'Traceback (most recent call last):\n  File "x.py"\nValueError: no such data',
            "failed",
            "ValueError: no such data",
        ),
        ("Segmentation fault (core dumped)", "failed", "Segmentation"),
        ("found NaN in local forward loss calculation. Device: 0, node: n1", "nan", "NaN"),
        (
            "AssertionError: recompute_num_layers must be None unless "
            "recompute_granularity is full",
            None,
            "",
        ),
        ("ValueError: a warning somebody printed", None, ""),
        ("[rank0]:[W115 10:00:00.1 ProcessGroupNCCL.cpp:1496] not destroyed", None, ""),
        ("all is well", None, ""),
    ],
)
def test_the_cause(text: str, status: str | None, says: str) -> None:
    causes = Causes()
    for line in text.splitlines():
        causes.read(line.strip())
    found = causes.cause()
    assert (found.status if found else None) == status
    assert found is None or says in found.message


def test_what_was_survived_is_no_cause(parse: Parse) -> None:
    assert parse(lines.megatron(1) + OOM + "\n" + lines.megatron(2)).cause is None
    cause = parse(lines.megatron(1) + OOM + "\n").cause
    assert (cause.status, cause.over_bytes) == (TrialStatus.OOM, 2**29)


def test_a_known_failure_is_reported_in_its_own_words(parse: Parse) -> None:
    """The advisor's catalogue knows it; the exception's last line would say less."""
    text = (
        'Traceback (most recent call last):\n  File "t.py", line 1\n'
        "ValueError: When using recompute_granularity: selective recompute_method must be None."
        "\n"
    )
    cause = parse(text).cause
    assert cause.status is TrialStatus.FAILED
    assert "selective" in cause.message
