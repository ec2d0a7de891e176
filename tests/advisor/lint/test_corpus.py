"""Configurations in the formats of all frameworks: nothing false of correct ones, and the faults.

Each is written after a public launch script or configuration of its framework. Those in `untuned_`
folders were written when the reader was done: it said nothing false of the ten correct ones and
found nine faults of ten (it read no `llama3_8b` in `pretrain_llama3_8b.py`).
"""

from pathlib import Path

import pytest
import yaml

from advisor.base.rule import Level
from advisor.lint.target import lint_target

FOLDER = Path(__file__).parent / "configurations"
CORRECT = sorted((*(FOLDER / "correct").iterdir(), *(FOLDER / "untuned_correct").iterdir()))
FAULTS, UNTUNED = yaml.safe_load(Path(__file__).with_name("faults.yaml").read_text()).values()


def bad(path: Path) -> dict[str, int]:
    """Rules that say ERROR or WARNING, with the line."""
    findings = lint_target(str(path)).findings
    return {f.rule: f.place.line for f in findings if f.level is not Level.NOTE}


@pytest.mark.parametrize("path", CORRECT, ids=lambda path: path.name)
def test_nothing_is_said_against_a_correct_configuration(path: Path) -> None:
    assert bad(path) == {}


def test_the_corpus_is_complete() -> None:
    assert len(CORRECT) >= 30
    assert {path.name for path in (FOLDER / "faulty").iterdir()} == set(FAULTS)
    assert len(FAULTS) >= 30


def test_nine_of_ten_faults_are_found(record_property) -> None:
    missed = [
        name for name, (rule, _) in FAULTS.items() if rule not in bad(FOLDER / "faulty" / name)
    ]
    found = len(FAULTS) - len(missed)
    record_property("faults_found", f"{found} of {len(FAULTS)}")
    print(f"{found} of {len(FAULTS)} faults found; missed: {missed}")
    assert found >= 0.9 * len(FAULTS), missed


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_shown_where_it_stands(name: str) -> None:
    rule, line = FAULTS[name]
    found = bad(FOLDER / "faulty" / name)
    if rule in found:
        assert found[rule] == line


def test_faults_that_the_reader_was_not_written_for() -> None:
    folder = FOLDER / "untuned_faulty"
    assert {path.name for path in folder.iterdir()} == set(UNTUNED)
    missed = [name for name, rule in UNTUNED.items() if rule not in bad(folder / name)]
    assert len(missed) <= 1, missed
