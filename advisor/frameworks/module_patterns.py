"""Paths and patterns of linear layers (peft's target_modules, AutoModel's wildcards)."""

import fnmatch
import re
from typing import Final

from advisor.job.tuning import ALL_LINEAR

_LINEAR: Final = (
    *(f"self_attn.{name}_proj" for name in "qkvo"),
    *(f"mlp.{name}_proj" for name in ("gate", "up", "down")),
)
_LAYERS: Final = ("model.layers", "model.language_model.layers", "language_model.model.layers")


def last_names(text: str) -> tuple[str, ...]:
    """Last names of the layers that a path, or a pattern of paths, means in every decoder layer;
    the text itself where it is a name, or means none or those of some layers."""
    if re.fullmatch(r"[\w-]+", text):
        return (text,)
    try:
        own = re.compile(rf"(.*\.)?(?:{fnmatch.translate(text) if text[0] == '*' else text})")
    except re.error:
        return (text,)
    each = {one: [[f"{at}.{n}.{one}" for n in (0, 1, 11)] for at in _LAYERS] for one in _LINEAR}
    found = [one for one, ways in each.items() if any(all(map(own.fullmatch, w)) for w in ways)]
    if text[0] == "*" and len(found) == len(_LINEAR):
        return (ALL_LINEAR,)
    return tuple(one.rpartition(".")[2] for one in found) or (text,)
