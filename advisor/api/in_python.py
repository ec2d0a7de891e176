"""Errors of a Python call in its own words: ``tp=3``, where the command says ``--tp = 3``."""

import re
from collections.abc import Mapping
from json import dumps
from pathlib import Path
from typing import Any, Final

from advisor.api.keywords import KNOWN, SHORT
from advisor.base.errors import UserError, show
from advisor.request.given import GROUPS

_OTHER: Final = {"from": "source", "as-typed": "quick", "o": "output"}
_WORDS: Final = (
    r"(?<![\w-])--?(no-)?([a-z][a-z-]*)",
    r"[ =](?!(?:and|or|of)\b)([\w./][\w./:+#-]*\b)",
)
_FLAG: Final = re.compile(f"{_WORDS[0]}(?:{_WORDS[1]})?")
_PAIR: Final = re.compile(rf"\b((?:{'|'.join(GROUPS)})\.\w+)=(\w[\w:+-]*(?:[.,]\w+)*)")


def in_python(error: UserError, given: Mapping[str, Any]) -> UserError:
    """The error of a call with these keywords, with names and values as Python writes them."""
    long = _keyword(error.field.rpartition(".")[2].lstrip("-")) or error.field
    name = long if long in given else next((one for one in given if SHORT.get(one) == long), long)
    texts = (_FLAG.sub(_flag, text) for text in (error.relation, error.nearest))
    relation, nearest = (_PAIR.sub(r'overrides={"\1": "\2"}', text) for text in texts)
    found = UserError(name, error.value, relation, nearest)
    if name in KNOWN and (value := error.value) is not None:
        typed = given.get(name)
        value = typed if value in (typed, show(typed)) else value  # before it was converted
        words = dumps(str(value)) if isinstance(value, str | Path) else repr(value)
        found.args = (f"{name}={words}{UserError('', None, relation, nearest)}",)
    return found


def _keyword(flag: str) -> str:
    """The keyword of a flag without its dashes; empty where it has none."""
    name = _OTHER.get(flag, flag.replace("-", "_"))
    return name if name in KNOWN else ""


def _flag(match: re.Match[str]) -> str:
    off, flag, value = match.groups(default="")
    name = _keyword(flag)
    if name in ("sp", "sequence_parallel", "quick", "front"):
        return f"{name}={not off} {value}".rstrip()
    if not name or not value:
        return name or match[0]
    return f"{name}={value if value.isdigit() and name in SHORT else dumps(value)}"
