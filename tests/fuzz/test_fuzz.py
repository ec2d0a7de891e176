"""Every command ends in an exit code and, where its input is wrong, one line; thousands of cases
more, with their time and memory, are those of tests/benchmarks/bench_fuzz.py."""

from pathlib import Path

import pytest

from tests.fuzz.targets import Target, run_broken, run_with, targets

CASES = 6
TARGETS = targets(slow=False)


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_a_broken_input_is_reported_in_one_line(target: Target, tmp_path: Path) -> None:
    for number in range(CASES):
        folder = tmp_path / str(number)
        folder.mkdir()
        run_broken(number, folder, target)


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_the_input_is_good_before_it_is_broken(target: Target, tmp_path: Path) -> None:
    assert run_with(target, tmp_path, target.files, target.words) != 2
