"""Drawings and tables of the docs that the model computes: what stands between the comments
``<!-- written: NAME -->`` and ``<!-- end -->``, and the SVG files."""

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

from scripts.write_docs import api_page, choices, dialects, heads, modules
from scripts.write_docs.choice_drawing import choice_drawing
from scripts.write_docs.layer_drawing import layer_drawing
from scripts.write_docs.post_training_drawing import post_training_drawing

DOCS: Final = Path(__file__).parents[2] / "docs"
DRAWINGS: Final[dict[str, Callable[[], str]]] = {
    "layer.svg": layer_drawing,
    "choose.svg": choice_drawing,
    "post_training.svg": post_training_drawing,
}
TABLES: Final[dict[str, Callable[[], str]]] = {
    "activations of the first stage": modules.first_stage,
    "modules of a dense layer": lambda: modules.table(modules.DENSE),
    "modules of a layer with experts": lambda: modules.table(modules.EXPERTS),
    "memory of heads": heads.table,
    "choices of published jobs": lambda: choices.table(choices.published, "job"),
    "choices by sequence length": lambda: choices.table(choices.growing, "job"),
    "choices by framework": lambda: choices.table(choices.stacks, "framework"),
    "what is faster near these jobs": choices.nearby,
    "words of dialects of fine-tuning": lambda: dialects.table(dialects.TRAINERS),
    "words of dialects of reinforcement learning": lambda: dialects.table(dialects.ENGINES),
    **{name: partial(api_page.call, name) for name in api_page.CALLS},
    "keywords": api_page.keywords,
    "types of an answer": partial(api_page.types, *api_page.ANSWERS),
    "types of a result": partial(
        api_page.types, *api_page.RESULTS, known=api_page.types_of(*api_page.ANSWERS)
    ),
}
_PART: Final = re.compile(r"(?<=<!-- written: )(.+?)( -->\n\n)(.*?)(\n*<!-- end -->)", re.DOTALL)


def names_in(text: str) -> list[str]:
    """The tables that a page holds."""
    return [match[1] for match in _PART.finditer(text)]


def written(text: str) -> str:
    """A page with its tables as they are computed now."""
    return _PART.sub(lambda match: f"{match[1]} -->\n\n{TABLES[match[1]]()}\n\n<!-- end -->", text)
