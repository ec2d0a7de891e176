"""Every notebook runs, on the public API alone; its text and its page say the same.

`python scripts/write_notebooks.py` writes the pages again.
"""

import ast
import importlib.util
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

nbformat = pytest.importorskip("nbformat")
pytest.importorskip("jupytext")
pytest.importorskip("nbclient")
pytest.importorskip("ipykernel")
pytest.importorskip("matplotlib")
pytest.importorskip("pandas")

ROOT = Path(__file__).parents[2]
TEXTS = sorted((ROOT / "notebooks").glob("*.py"))
PICTURES = {"advisor.report.figures", "advisor.report.figures.point_labels"}
"""Colours, style and labels of our own pictures: a notebook's look like those of the pages."""
ADDRESS = re.compile(r" at 0x[0-9a-f]+>")


def _writer() -> ModuleType:
    spec = importlib.util.spec_from_file_location("writer", ROOT / "scripts/write_notebooks.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


WRITER = _writer()


def _page(text: Path) -> Any:
    return nbformat.read(text.with_suffix(".ipynb"), as_version=4)


def test_there_are_pairs_and_the_index_names_them() -> None:
    pages = sorted(path.stem for path in (ROOT / "notebooks").glob("*.ipynb"))
    assert [text.stem for text in TEXTS] == pages
    index = (ROOT / "docs/notebooks.md").read_text(encoding="utf-8")
    assert sorted(re.findall(r"\]\(\.\./notebooks/(\w+)\.ipynb\)", index)) == pages


@pytest.mark.parametrize("text", TEXTS, ids=lambda path: path.stem)
def test_text_and_page_have_the_same_cells(text: Path) -> None:
    def cells(notebook: Any) -> list[tuple[str, str]]:
        return [(cell.cell_type, cell.source) for cell in notebook.cells]

    page = _page(text)
    nbformat.validate(page)
    assert cells(page) == cells(WRITER.read_text(text))


@pytest.mark.parametrize("text", TEXTS, ids=lambda path: path.stem)
def test_a_notebook_runs_and_shows_what_its_page_shows(text: Path) -> None:
    """Printed text is compared; tables and pictures come of the same numbers."""
    done = WRITER.execute(WRITER.read_text(text))
    assert _said(done, "stderr") == [], "no warnings"
    assert _said(done) == _said(_page(text)), "python scripts/write_notebooks.py writes the page"
    shown = str(done.cells)
    assert not ADDRESS.search(shown), "an object's address is no output: end the cell with a call"
    assert "image/png" in shown


def _said(notebook: Any, stream: str = "stdout") -> list[str]:
    """What the cells print."""
    outputs = [one for cell in notebook.cells for one in cell.get("outputs", ())]
    return [one.text for one in outputs if one.get("name") == stream]


@pytest.mark.parametrize("text", TEXTS, ids=lambda path: path.stem)
def test_a_notebook_imports_the_public_front_and_the_pictures_kit_alone(text: Path) -> None:
    found: set[str] = set()
    for node in ast.walk(ast.parse(text.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add(str(node.module))
    ours = {name for name in found if name.split(".")[0] in ("advisor", "harness")}
    assert ours - {"advisor", "harness"} <= PICTURES
    assert "advisor.report.figures" in ours
    assert "_" not in {name[0] for name in _attributes(text)}, "nothing private is used"


def _attributes(text: Path) -> set[str]:
    tree = ast.parse(text.read_text(encoding="utf-8"))
    return {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}


@pytest.mark.parametrize("text", TEXTS, ids=lambda path: path.stem)
def test_a_notebook_is_short_and_says_what_it_needs(text: Path) -> None:
    notebook = WRITER.read_text(text)
    assert 10 <= len(notebook.cells) <= 40
    first = notebook.cells[0].source
    assert first.startswith("# ")
    assert "**The question.**" in first
    assert "**What you need.** `pip install" in first
