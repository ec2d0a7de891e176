"""A YAML document over those that it names under `defaults` (Hydra, NeMo-RL's recipes)."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from msgspec.structs import replace

from advisor.base.documents import read_text
from advisor.base.errors import show_path
from advisor.base.limits import MOST_CONFIG_BYTES
from advisor.base.place import Place
from advisor.reading.document_tree import Tree, read_tree
from advisor.reading.words import word

DEFAULTS: Final = "defaults"
_DEEPEST: Final = 8


def with_inherited(tree: Tree, folder: Path, depth: int = 0) -> Tree:
    """The document, whose mappings go over those of the files that it names, where these lie in
    `folder` or below; the others stay named."""
    for path in _named(tree, folder) if depth < _DEEPEST else ():
        text = read_text(path, MOST_CONFIG_BYTES)
        below = read_tree(word(text, Place(show_path(path), 1, 1)), path.suffix)
        if below is not None:
            below = with_inherited(below, path.parent, depth + 1)
            values = {**_over(tree.values, below.values), DEFAULTS: below.get(DEFAULTS)}
            tree = replace(tree, values=values, places={**below.places, **tree.places})
    return tree


def _named(tree: Tree, folder: Path) -> Iterator[Path]:
    named = tree.get(DEFAULTS)
    for name in named if isinstance(named, list) else [named]:
        if isinstance(name, str) and name.endswith((".yaml", ".yml")) and (folder / name).is_file():
            yield folder / name


def _over(above: Any, below: Any) -> Any:
    if not (isinstance(above, Mapping) and isinstance(below, Mapping)):
        return above
    both = {name: _over(value, below[name]) for name, value in above.items() if name in below}
    return {**below, **above, **both}
