"""The model that a recipe, a script or a checkpoint has in its name."""

import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Final

from advisor.models.presets import hub_ids, model_names

_PROVIDER: Final = re.compile(
    r"(?<![A-Za-z0-9])([A-Za-z]{1,32}\d{0,4}?[A-Za-z]{0,32}\d{0,4})"
    r"(?:MoE)?(?:Model)?(?:Provider|Config)_?(\d+B(?:_?A\d+B)?)"
)
"""From the beginning of a word, of names of some length: logs hold lines of a megabyte."""
_PATH: Final = re.compile(r"(?<![\w./~-])[\w.~-]*/[\w./~-]+|^[\w.-]+$")


def named_model(texts: Iterable[str]) -> str:
    """The preset whose name, or id of the Hugging Face hub, the texts hold, the longest one; empty
    where there is none.

    >>> named_model(["examples/pretrain_llama3_70b.py"])
    'llama3_70b'
    """
    return max([name for text in texts for name in _in_text(text)], key=len, default="")


def _in_text(text: str) -> list[str]:
    plain = _PATH.sub(lambda word: _hub_ids().get(Path(word[0]).name.lower(), word[0]), text)
    plain = re.sub(r"(?<=\d)\.(?=\d)", "", plain.lower().replace("-", "_"))
    plain += " " + " ".join(
        f"{family}_{size}".lower().removesuffix("moe").replace("moe_", "_")
        for family, size in _PROVIDER.findall(text)
    )
    plain += " " + re.sub(r"(?<=[a-z])_(?=\d)", "", plain)  # llama_2_7b is llama2_7b
    return [
        name
        for name, spelling in _names()
        if spelling in plain
        and re.search(rf"(?<![a-z0-9]){re.escape(spelling)}(?![a-z0-9])", plain)
    ]


_hub_ids = cache(hub_ids)


@cache
def _names() -> tuple[tuple[str, str], ...]:
    return tuple((name, name.lower().replace(".", "")) for name in model_names())
