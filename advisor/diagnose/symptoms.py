"""Failures without a text, so that no log can show them: found by a user's words."""

import re
from functools import cache
from typing import Final

from msgspec import convert

from advisor.base.configuration import load_yaml, packaged_configs
from advisor.diagnose.catalog import Case

_STEM: Final = 5
_SHOWN: Final = 5


@cache
def symptoms() -> tuple[Case, ...]:
    """All that are known; `message` is what is seen."""
    return convert(_file()["symptoms"], tuple[Case, ...])


def symptoms_of(text: str) -> tuple[Case, ...]:
    """Those that share most of a user's words; none where none shares any."""
    asked, kinds = _stems(text), convert(_file()["kinds"], dict[str, str])
    said = {x: f"{x.framework} {x.message} {x.context} {kinds[x.kind]}" for x in symptoms()}
    shared = {one: len(asked & _stems(words)) for one, words in said.items()}
    most = max(1, *shared.values())
    return tuple(one for one, number in shared.items() if number == most)[:_SHOWN]


def _file() -> dict[str, object]:
    return load_yaml(packaged_configs() / "failures" / "symptoms.yaml").values


def _stems(text: str) -> set[str]:
    """Words without their endings; those that say nothing are left out."""
    words = set(re.findall(r"[a-z0-9_]{3,}", text.lower()))
    return {word[:_STEM] for word in words - set(str(_file()["say_nothing"]).split())}
