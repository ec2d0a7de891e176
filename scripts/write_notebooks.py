"""Runs the notebooks' texts (`notebooks/*.py`) and writes them with their outputs (`*.ipynb`).

    python scripts/write_notebooks.py [NAME ...]

What is written depends on the text and its outputs alone, so that a diff shows what changed.
"""

import os
import sys
from pathlib import Path
from typing import Any, Final

import jupytext
import nbformat
from nbclient import NotebookClient

ROOT: Final = Path(__file__).resolve().parents[1]
NOTEBOOKS: Final = ROOT / "notebooks"
_METADATA: Final = {
    "jupytext": {"formats": "ipynb,py:percent"},
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
}


def texts() -> list[Path]:
    """The notebooks' texts, in the order of their names."""
    return sorted(NOTEBOOKS.glob("*.py"))


def read_text(path: Path) -> Any:
    """A notebook of a text, with no outputs; its cells are numbered."""
    notebook = jupytext.read(path)
    notebook.metadata.clear()
    notebook.metadata.update(_METADATA)
    for number, cell in enumerate(notebook.cells, start=1):
        cell["id"] = str(number)
        cell["metadata"] = {}
    return notebook


def execute(notebook: Any, timeout_seconds: int = 120) -> Any:
    """Run all cells in a fresh kernel, in the notebooks' folder, on this checkout; the notebook
    with its outputs. CellExecutionError where a cell fails."""
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    client = NotebookClient(
        notebook,
        timeout=timeout_seconds,
        kernel_name="python3",
        record_timing=False,
        coalesce_streams=True,  # else how many a cell has depends on the speed of the machine
        resources={"metadata": {"path": str(NOTEBOOKS)}},
    )
    return client.execute(env=environment)


def main(names: list[str]) -> int:
    """Run and write the notebooks named, or all."""
    for path in texts():
        if not names or path.stem in names:
            notebook = execute(read_text(path))
            notebook.metadata.pop("language_info", None)
            nbformat.validate(notebook)
            path.with_suffix(".ipynb").write_text(nbformat.writes(notebook, version=4) + "\n")
            print(path.with_suffix(".ipynb"))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
