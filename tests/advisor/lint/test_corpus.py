"""Configurations in the formats of all frameworks: nothing false of correct ones, and the faults.

Each is written after a public launch script or configuration of its framework. Those in `untuned_`
folders were written when the reader was done: it said nothing false of the ten correct ones and
found nine faults of ten (it read no `llama3_8b` in `pretrain_llama3_8b.py`). Those in `clean` and
`faulty_partial` were written before options that were not read counted as unknown: 18 of 63 clean
files then got an ERROR. In `clean/elsewhere` options are in other files; formats in `not_read` are
none that is read. Those in `not_modelled` hold switches that no prediction takes: of the first 31,
written before anything was looked for, none was named and 30 were OK; of 32 more, written when that
was done, 29 were named in full.
"""

from itertools import product
from pathlib import Path

import pytest
import yaml

from advisor.base.errors import UserError
from advisor.base.rule import Level, Verdict
from advisor.frameworks.dialect_rows import may_read
from advisor.frameworks.readers import FAMILIES, reader_of
from advisor.lint.target import LintReport, _documents, lint_target

FOLDER = Path(__file__).parent / "configurations"
CORRECT = sorted((*(FOLDER / "correct").iterdir(), *(FOLDER / "untuned_correct").iterdir()))
_LISTS = yaml.safe_load(Path(__file__).with_name("faults.yaml").read_text())
FAULTS, UNTUNED, PARTIAL = _LISTS.values()
READ_BY_OTHERS = ("model.sh", "model_args.txt", "train_args.txt")
RECIPES = yaml.safe_load((FOLDER / "recipes.yaml").read_text())
CLEAN = sorted(
    path
    for path in (*(FOLDER / "clean").rglob("*.*"), *(FOLDER / name for name in RECIPES))
    if path.name not in READ_BY_OTHERS
    and {"not_read", "faulty_partial", "not_modelled"}.isdisjoint(path.parts)
)


def linted(path: Path, folder: Path) -> LintReport:
    """The report of a file, or of a recipe that is written into `folder`."""
    if path.suffix == ".py":
        text = RECIPES[str(path.relative_to(FOLDER))]
        path = folder / path.name
        path.write_text(text)
    return lint_target(str(path))


def bad(path: Path) -> dict[str, int]:
    """Rules that say ERROR or WARNING, with the line; not that predictions lack something."""
    findings = lint_target(str(path)).findings
    bad = (
        f for f in findings if f.level is not Level.NOTE and f.verdict is not Verdict.NOT_MODELLED
    )
    return {f.rule: f.place.line for f in bad}


@pytest.mark.parametrize("path", CORRECT, ids=lambda path: path.name)
def test_nothing_is_said_against_a_correct_configuration(path: Path) -> None:
    assert bad(path) == {}


@pytest.mark.parametrize("path", CLEAN, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_what_is_not_seen_is_not_held_against_anybody(path: Path, tmp_path: Path) -> None:
    report = linted(path, tmp_path)
    assert [f for f in report.findings if f.level is not Level.NOTE] == []
    elsewhere = path.parent.name == "elsewhere"
    assert not elsewhere or report.verdict[:2] != "OK"


def test_three_in_ten_clean_files_have_options_elsewhere() -> None:
    assert len(CLEAN) >= 60
    assert sum("elsewhere" in path.parts for path in CLEAN) >= 20
    for path in (FOLDER / "clean" / "not_read").iterdir():
        with pytest.raises(UserError, match="holds no setting of a known framework"):
            lint_target(str(path))


def test_faults_of_partial_files_are_found_with_their_fix(tmp_path: Path, record_property) -> None:
    folder = FOLDER / "faulty_partial"
    missed = []
    for name, (rule, line, fix) in PARTIAL.items():
        found = [f for f in linted(folder / name, tmp_path).findings if f.rule == rule]
        proven = not fix.startswith("state ")
        if not any(f.place.line == line and fix in f.fix for f in found):
            missed.append(name)
        assert all((f.level is not Level.NOTE) == proven for f in found), name
    record_property("partial_faults_found", f"{len(PARTIAL) - len(missed)} of {len(PARTIAL)}")
    assert len(missed) <= 0.1 * len(PARTIAL), missed


def test_a_note_says_its_condition() -> None:
    report = lint_target(str(FOLDER / "clean" / "elsewhere" / "source_common.sh"))
    note = next(f for f in report.findings if f.rule == "expert_overlap_needs_experts")
    assert note.reason.startswith("if expert_model_parallel_size is 1 here, which is not known: ")
    assert note.fix.startswith("state expert_model_parallel_size, or lint the file with ${MODEL_AR")


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


@pytest.mark.parametrize("name", LEFT_OUT)
def test_switches_that_are_not_modelled_are_named(name: str, tmp_path: Path) -> None:
    report = linted(FOLDER / "not_modelled" / name, tmp_path)
    said = " ".join((report.verdict, *(finding.reason for finding in report.findings)))
    assert [switch for switch in LEFT_OUT[name] if switch not in said] == []
    assert not report.verdict.startswith("OK")
    assert report.exit_code == 1


def test_every_file_with_such_switches_is_asked() -> None:
    files = {path.name for path in (FOLDER / "not_modelled").iterdir()}
    python = {Path(name).name for name in RECIPES if name.startswith("not_modelled")}
    assert files | python == set(LEFT_OUT)
    assert len(LEFT_OUT) >= 50


def test_a_reader_that_is_not_loaded_finds_nothing() -> None:
    """`asked` of configs/options tells by a few words which readers a document is for."""
    skipped = 0
    for path in (path for path in FOLDER.rglob("*.*") if path.suffix != ".txt"):
        try:
            documents = _documents(str(path), None)[1]
        except UserError:
            continue
        for document, family in product(documents, FAMILIES):
            if not may_read(family, document):
                skipped += 1
                assert not [*reader_of(family).read(document)], (path, family)
    assert skipped > 200
