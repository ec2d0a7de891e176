"""Every command ends in an exit code and, where its input is wrong, one line: of 10,000 broken
inputs a tenth in each run, chosen by the commit. All of them, with their time and memory, and the
slow commands: tests/benchmarks/bench_fuzz.py.

    FUZZ_TENTH=3 python -m pytest tests/fuzz          one tenth again
"""

import os
import subprocess
from pathlib import Path

import pytest

from tests.fuzz.targets import ROOT, TENTHS, Target, run_broken, run_with, target_of, targets

CASES = 10_000
PARTS = 20
TARGETS = targets(slow=False)


def tenth() -> int:
    """That of FUZZ_TENTH, else of the commit; without git the first."""
    if given := os.environ.get("FUZZ_TENTH"):
        return int(given) % TENTHS
    words = ["git", "-C", str(ROOT), "rev-parse", "HEAD"]
    try:
        asked = subprocess.run(words, capture_output=True, text=True, check=False)
    except OSError:
        return 0
    return int(asked.stdout.strip() or "0", 16) % TENTHS


@pytest.mark.parametrize("part", range(PARTS))
def test_a_broken_input_is_reported_in_one_line(part: int, tmp_path: Path) -> None:
    chosen, failed = tenth(), []
    for number in range(chosen + TENTHS * part, CASES, TENTHS * PARTS):
        folder, target = tmp_path / str(number), target_of(number, TARGETS)
        folder.mkdir()
        try:
            run_broken(number, folder, target)
        except Exception as error:
            failed.append(f"case {number}, {target.name}: {type(error).__name__}: {error}")
    assert not failed, f"FUZZ_TENTH={chosen}: " + "\n".join(failed)


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_the_input_is_good_before_it_is_broken(target: Target, tmp_path: Path) -> None:
    assert run_with(target, tmp_path, target.files, target.words) != 2
