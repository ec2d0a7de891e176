"""Start-up: the whole process of an answer against a process that does nothing, in pairs.

Run by `make bench`; the ratio is written into the benchmark's extra_info, nothing asserts it. Byte
code is written before the first pair, as it is for a user.
"""

import os
import resource
import statistics
import subprocess
import sys
from typing import Any

PAIRS = 25
NOTHING = (sys.executable, "-c", "pass")
ANSWER = (sys.executable, "-m", "advisor.cli.main", "--model", "llama3_70b", "--gpus", "32xH100")


def cpu_seconds(command: tuple[str, ...]) -> float:
    """User and system time of one whole process."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True, env=environment)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def test_bench_startup(benchmark: Any) -> None:
    cpu_seconds(ANSWER)
    pairs = [(cpu_seconds(NOTHING), cpu_seconds(ANSWER)) for _ in range(PAIRS)]
    nothing, answer = (statistics.median(times) for times in zip(*pairs, strict=True))
    benchmark.extra_info |= {
        "python -c pass, ms": round(nothing * 1000, 1),
        "advise, ms": round(answer * 1000, 1),
        "ratio": round(answer / nothing, 1),
    }
    benchmark.pedantic(cpu_seconds, args=(ANSWER,), rounds=5)
