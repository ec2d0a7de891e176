"""Configurations in the formats of all frameworks: nothing false of correct ones, and the faults.

Each is written after a public launch script or configuration of its framework. Those in `untuned_`
folders were written when the reader was done: it said nothing false of the ten correct ones and
found nine faults of ten (it read no `llama3_8b` in `pretrain_llama3_8b.py`).

Those in `not_modelled` hold switches that no prediction takes, those in `clean` none. Of the first
31 and 30, written before anything was looked for, none was named and 30 of the 31 were OK; of 32
and 30 more, written when that was done, 29 were named in full and one of the clean warned.
"""

from pathlib import Path

import pytest
import yaml

from advisor.base.rule import Level
from advisor.lint.left_out import NOT_MODELLED
from advisor.lint.target import LintReport, lint_target

FOLDER = Path(__file__).parent / "configurations"
CORRECT = sorted((*(FOLDER / "correct").iterdir(), *(FOLDER / "untuned_correct").iterdir()))
FAULTS, UNTUNED = yaml.safe_load(Path(__file__).with_name("faults.yaml").read_text()).values()


def bad(path: Path) -> dict[str, int]:
    """Rules that say ERROR or WARNING, with the line; not that predictions lack something."""
    findings = lint_target(str(path)).findings
    bad = (f for f in findings if f.level is not Level.NOTE and f.rule != NOT_MODELLED)
    return {f.rule: f.place.line for f in bad}


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


LEFT_OUT = yaml.safe_load(Path(__file__).with_name("not_modelled.yaml").read_text())
PYTHON = yaml.safe_load(Path(__file__).with_name("python_files.yaml").read_text())
CLEAN = sorted((*PYTHON["clean"], *(path.name for path in (FOLDER / "clean").iterdir())))


def report_of(kind: str, name: str, tmp_path: Path) -> LintReport:
    path = FOLDER / kind / name
    if name in PYTHON[kind]:
        path = tmp_path / name
        path.write_text(PYTHON[kind][name])
    return lint_target(str(path))


@pytest.mark.parametrize("name", LEFT_OUT)
def test_switches_that_are_not_modelled_are_named(name: str, tmp_path: Path) -> None:
    report = report_of("not_modelled", name, tmp_path)
    said = " ".join((report.verdict, *(finding.reason for finding in report.findings)))
    assert [switch for switch in LEFT_OUT[name] if switch not in said] == []
    assert not report.verdict.startswith("OK")
    assert report.exit_code == 1


@pytest.mark.parametrize("name", CLEAN)
def test_nothing_is_said_against_a_clean_file(name: str, tmp_path: Path) -> None:
    assert report_of("clean", name, tmp_path).exit_code == 0


def test_files_with_and_without_such_switches() -> None:
    files = {path.name for path in (FOLDER / "not_modelled").iterdir()}
    assert files | {*PYTHON["not_modelled"]} == set(LEFT_OUT)
    assert (len(LEFT_OUT), len(CLEAN)) >= (50, 45)
