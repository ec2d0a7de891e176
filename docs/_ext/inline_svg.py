"""SVG files of the docs become part of the page, so that their colours follow its theme."""

from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx


def setup(app: Sphinx) -> dict[str, Any]:
    """What Sphinx calls."""
    app.connect("doctree-resolved", _inline)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def _inline(app: Sphinx, tree: nodes.document, page: str) -> None:
    for image in list(tree.findall(nodes.image)):
        path = Path(app.srcdir) / image["uri"]
        drawn = path.read_text(encoding="utf-8") if path.suffix == ".svg" else ""
        if drawn.startswith("<svg"):
            frame = f'<div class="drawing-frame">{drawn}</div>'
            image.replace_self(nodes.raw("", frame, format="html"))
