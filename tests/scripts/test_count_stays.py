"""Stays and returns of a request on its way to its first byte (scripts/count_stays.py)."""

import re
import subprocess
import sys
from pathlib import Path

from scripts.count_stays import Call, Counts, counts_of

ROOT = Path(__file__).parents[2]
BEFORE = Counts(stays=61, files=22, returns=39)
"""Of commit 59effbd1, before a request became a job in one pass."""


def test_a_stay_is_a_run_of_calls_in_one_file_and_a_return_one_in_a_file_left_before() -> None:
    calls = [Call("a", "f"), Call("a", "g"), Call("b", "f"), Call("a", "g"), Call("c", "f")]
    assert counts_of(calls) == Counts(stays=4, files=3, returns=1)


def test_stays_and_returns_are_at_most_half_of_what_they_were() -> None:
    run = subprocess.run(
        [sys.executable, "scripts/count_stays.py"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    stays, _, returns = map(int, re.findall(r"\d+", run.stdout))
    assert 2 * stays <= BEFORE.stays
    assert 2 * returns <= BEFORE.returns
