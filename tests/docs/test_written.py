"""Tables and drawings that the model computes stand in the docs as it computes them now.

``DOCS=record python -m pytest tests/docs`` writes them anew.
"""

import os

import pytest

from advisor.request.origin import changes
from scripts.write_docs.choices import growing
from scripts.write_docs.parts import DOCS, DRAWINGS, TABLES, names_in, written

RECORD = os.environ.get("DOCS") == "record"
PAGES = [page for page in sorted(DOCS.glob("*.md")) if names_in(page.read_text())]


@pytest.mark.parametrize("name", DRAWINGS)
def test_a_drawing_is_what_the_model_says(name: str) -> None:
    path = DOCS / name
    if RECORD:
        path.write_text(DRAWINGS[name](), encoding="utf-8")
    assert path.read_text(encoding="utf-8") == DRAWINGS[name]()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_tables_of_a_page_are_what_the_model_says(page) -> None:
    text = page.read_text(encoding="utf-8")
    if RECORD:
        page.write_text(written(text), encoding="utf-8")
    assert page.read_text(encoding="utf-8") == written(text)


def test_every_table_stands_on_one_page() -> None:
    found = [name for page in PAGES for name in names_in(page.read_text())]
    assert sorted(found) == sorted(TABLES)


def test_longer_sequences_differ_in_nothing_else() -> None:
    first = {}
    for job in (choice.none.job for choice in growing()):
        usual = first.setdefault(job.model, job)
        assert set(changes(job, usual)) == ({"job.seq_length"} if job is not usual else set())
