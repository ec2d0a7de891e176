"""Ten thousand broken inputs of every command: none ends in a traceback, or takes a gibibyte, or
five seconds of a processor more than the same command with its input unbroken.

Each process of a pool runs its share one after another, and says what it is about before it begins:
one that dies leaves the case after. Figures are printed: pytest -s shows them.
"""

import json
import multiprocessing
import os
import resource
import shutil
import signal
import time
from pathlib import Path
from typing import Any

from tests.fuzz.targets import run_broken, run_with, target_of, targets

CASES = int(os.environ.get("FUZZ_CASES", "10000"))
FIRST = int(os.environ.get("FUZZ_FIRST", "0"))
MOST_SECONDS = 5.0
MOST_BYTES = 2**30


class TooSlowError(BaseException):
    """No case catches it."""


def test_no_broken_input_ends_in_a_traceback(tmp_path: Path) -> None:
    workers = os.cpu_count() or 1
    fork = multiprocessing.get_context("fork")
    shares = [range(FIRST + start, FIRST + CASES, workers) for start in range(workers)]
    files = [tmp_path / f"{worker}.jsonl" for worker in range(workers)]
    pool = [
        fork.Process(target=_work, args=(share, file, tmp_path / file.stem))
        for share, file in zip(shares, files, strict=True)
    ]
    for process in pool:
        process.start()
    for process in pool:
        process.join()
    lines = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    begun = {line["begun"] for line in lines if "begun" in line}
    ended = {line["case"]: line for line in lines if "case" in line}
    failed = [line for line in ended.values() if line["error"]]
    slowest = max(ended.values(), key=lambda line: line["seconds"])
    largest = max(ended.values(), key=lambda line: line["bytes"])
    print(
        f"\n{len(ended)} cases, {len(failed)} failed, {len(begun - ended.keys())} died; "
        f"slowest {slowest['seconds']:.2f} s ({slowest['target']}, case {slowest['case']}), "
        f"largest {largest['bytes'] / 2**20:.0f} MiB ({largest['target']}, case {largest['case']})"
    )
    for line in failed:
        print(line)
    assert not begun - ended.keys(), "a process died in these cases"
    assert not failed
    assert len(ended) == CASES


def _work(share: range, file: Path, folder: Path) -> None:
    """Run a share of the cases; a line as each begins and ends."""
    known = targets(slow=True)
    folder.mkdir()
    os.chdir(folder)
    ordinary = {}
    for index, target in enumerate((*known, *known)):  # what is imported is not of the second time
        began = time.process_time()
        _in_folder(folder / f"warm{index}", target, None)
        ordinary[target.name] = time.process_time() - began
    grown = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (grown + MOST_BYTES, resource.RLIM_INFINITY))
    signal.signal(signal.SIGPROF, _too_slow)
    with file.open("w") as lines:
        for number in share:
            target = target_of(number, known)
            lines.write(json.dumps({"begun": number}) + "\n")
            lines.flush()
            limit = MOST_SECONDS + ordinary[target.name]
            reported = _measured(folder / str(number), target, number, limit)
            lines.write(json.dumps({"case": number, "target": target.name, **reported}) + "\n")
            lines.flush()


def _measured(folder: Path, target: Any, number: int, limit: float) -> dict[str, Any]:
    """Processor seconds, bytes that the process grew by at most, and what went wrong."""
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before, began, error = _status("VmRSS"), time.process_time(), ""
    signal.setitimer(signal.ITIMER_PROF, limit)
    try:
        _in_folder(folder, target, number)
    except BaseException as raised:
        error = f"{type(raised).__name__}: {raised}"[-1500:]
    signal.setitimer(signal.ITIMER_PROF, 0)
    seconds = time.process_time() - began
    return {"seconds": seconds, "bytes": max(0, _status("VmHWM") - before), "error": error}


def _in_folder(folder: Path, target: Any, number: int | None) -> None:
    folder.mkdir()
    try:
        if number is None:
            run_with(target, folder, target.files, target.words)
        else:
            run_broken(number, folder, target)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _status(name: str) -> int:
    """Bytes of a line of /proc/self/status."""
    text = Path("/proc/self/status").read_text()
    return int(text.partition(f"{name}:")[2].split()[0]) * 1024


def _too_slow(*_: object) -> None:
    raise TooSlowError
