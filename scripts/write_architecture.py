"""Writes docs/architecture.md and its drawing, from the imports of the packages:
``python -m scripts.write_architecture``."""

import ast
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

from scripts.write_docs.folder_drawing import Graph, folder_drawing

ROOT = Path(__file__).parents[1]
PAGE, DRAWING = ROOT / "docs" / "architecture.md", ROOT / "docs" / "architecture.svg"

HEAD = """\
# Architecture: which folder does what

This page shows the folders of the code and what each builds on. It is for readers who want to
change the project. [How to change it](contributing.md) says which files a change touches.

Two packages are installed. `advisor` predicts, in pure Python. `harness` runs, measures and judges
training steps, and builds on `advisor`. `research` is not installed: it fits the constants that
come with `advisor`, and runs the campaigns and probes on a GPU. Each folder holds one idea. A folder imports only
from itself and from folders below it in the drawing, never upward and never in a circle
(`tests/test_architecture.py` checks that).

![folders and what they import](architecture.svg)

## How does a request become an answer?

1. `cli` or `api` reads the request. `request` makes a job of it.
2. `frameworks/<name>` turns each recompute setting into a neutral plan (`plan`): what runs again,
   and what is kept. Only these folders know a framework's words.
3. `layers` describes a layer as a short list of operators. `memory` walks over the list and adds up
   bytes, `time` adds up seconds.
4. `search` evaluates and ranks the settings of the job. `report` shows the answer.

`python -m scripts.write_architecture` writes the drawing and the tables below. The line of each
folder is the first line of its `__init__.py`.
"""


def folders(package: str) -> Graph:
    """Folders of a package and the folders of it that each imports from."""
    found: Graph = {}
    for path in sorted((ROOT / package).rglob("*.py")):
        parts = path.relative_to(ROOT).parts
        if len(parts) > 2:
            found.setdefault(parts[1], set()).update(_imported(path, package))
    return {name: others - {name} for name, others in found.items()}


def _imported(path: Path, package: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module]
        for name in names:
            first, _, rest = name.partition(".")
            if first == package and rest:
                yield rest.partition(".")[0]


def levels(graph: Graph) -> dict[str, int]:
    """How high each folder stands: one above the highest that it imports."""
    level: dict[str, int] = {}
    for name in TopologicalSorter(graph).static_order():
        level[name] = 1 + max((level[other] for other in graph[name]), default=-1)
    return level


def direct(graph: Graph) -> Graph:
    """The imports that follow from no others."""

    def below(name: str) -> set[str]:
        return graph[name].union(*(below(other) for other in graph[name]))

    return {
        name: others - set[str]().union(*(below(other) for other in others))
        for name, others in graph.items()
    }


def page() -> str:
    """docs/architecture.md as the imports have it."""
    parts = [HEAD]
    for package in ("advisor", "harness", "research"):
        graph = folders(package)
        level = levels(graph)
        parts.append(f"\n## {package}\n\n| folder | what it is | builds on |\n|---|---|---|\n")
        for name in sorted(graph, key=lambda name: (-level[name], name)):
            idea = ast.get_docstring(
                ast.parse((ROOT / package / name / "__init__.py").read_text(encoding="utf-8"))
            )
            line = " ".join((idea or "").split("\n\n")[0].split())
            others = ", ".join(sorted(direct(graph)[name])) or "nothing"
            parts.append(f"| `{name}` | {line} | {others} |\n")
    return "".join(parts)


def picture() -> str:
    """docs/architecture.svg as the imports have it."""
    graphs = {package: folders(package) for package in ("advisor", "harness")}
    return folder_drawing({name: (levels(graph), direct(graph)) for name, graph in graphs.items()})


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    DRAWING.write_text(picture(), encoding="utf-8")
    print(f"wrote {PAGE.relative_to(ROOT)} and {DRAWING.relative_to(ROOT)}")
