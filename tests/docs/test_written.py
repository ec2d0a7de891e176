"""Tables and drawings that the model computes stand in the docs as it computes them now.

``DOCS=record python -m pytest tests/docs`` writes them anew. Of the jobs to choose for, one in
three is answered, in turns; with ``DOCS=live``, all.
"""

import os
import re
from pathlib import Path

import pytest

from advisor.request.origin import changes
from scripts.write_docs import choices
from scripts.write_docs.choices import growing
from scripts.write_docs.parts import DOCS, DRAWINGS, TABLES, names_in, written
from tests.turns import TURN

MODE = os.environ.get("DOCS", "")
PAGES = [page for page in sorted(DOCS.glob("*.md")) if names_in(page.read_text())]
LISTS = {name: getattr(choices, name) for name in ("PUBLISHED", "GROWING", "STACKS")}
COUNTS = {"choose.svg": len(LISTS["PUBLISHED"] + LISTS["GROWING"])}
COUNTS["choose.md"] = COUNTS["choose.svg"] + len(LISTS["STACKS"])
OF_A_JOB = re.compile(r"^\| `.+$|[\w.]+, \d+ \w+(?:, [\d,]+ tokens)?: [^;.<]+", re.MULTILINE)
"""A row of a table, or of a drawing in words."""


@pytest.fixture(autouse=True)
def _one_job_in_three(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, jobs in LISTS.items() if not MODE else ():
        monkeypatch.setattr(choices, name, jobs[TURN % 3 :: 3])


def _stands(path: Path, made: str) -> None:
    """A file says what is made now; where that is of a third of the jobs, the same of each."""
    if MODE == "record":
        path.write_text(made, encoding="utf-8")
    text = path.read_text(encoding="utf-8")
    if MODE or path.name not in COUNTS:
        assert text == made
        return
    there, now = OF_A_JOB.findall(text), OF_A_JOB.findall(made)
    assert [row for row in there if row in now] == now
    assert len(there) == COUNTS[path.name]
    assert len(now) >= len(there) // 3 - 1


@pytest.mark.parametrize("name", DRAWINGS)
def test_a_drawing_is_what_the_model_says(name: str) -> None:
    _stands(DOCS / name, DRAWINGS[name]())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_tables_of_a_page_are_what_the_model_says(page: Path) -> None:
    _stands(page, written(page.read_text(encoding="utf-8")))


def test_every_table_stands_on_one_page() -> None:
    found = [name for page in PAGES for name in names_in(page.read_text())]
    assert sorted(found) == sorted(TABLES)


def test_longer_sequences_differ_in_nothing_else() -> None:
    first = {}
    for job in (choice.none.job for choice in growing()):
        usual = first.setdefault(job.model, job)
        assert set(changes(job, usual)) == ({"job.seq_length"} if job is not usual else set())
