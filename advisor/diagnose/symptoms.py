"""Failures without a text, so that no log can show them: found by a user's words."""

import re
from collections import Counter
from functools import cache
from typing import Final

from msgspec import convert

from advisor.base.configuration import load_yaml, packaged_configs
from advisor.diagnose.catalog import Case

_STEM: Final = 5
_NEAR: Final = 0.6  # of the best score
_SHOWN: Final = 5


@cache
def symptoms() -> tuple[Case, ...]:
    """All that are known; `message` is what is seen."""
    return convert(_file()["symptoms"], tuple[Case, ...])


def symptoms_of(text: str) -> tuple[Case, ...]:
    """Those that share most of a user's words, rare ones first; none where none is near."""
    kinds = convert(_file()["kinds"], dict[str, str])
    held = [_stems(" ".join((one.message, one.context, kinds[one.kind]))) for one in symptoms()]
    known = Counter(word for words in held for word in words)
    asked = _stems(text) & known.keys()
    shared = [asked & words for words in held]
    scores = [sum(1 / known[word] for word in words) for words in shared]
    ranked = sorted(zip(scores, shared, symptoms(), strict=True), key=lambda one: -one[0])
    return tuple(
        row
        for score, words, row in ranked[:_SHOWN]
        if score >= _NEAR * ranked[0][0] and len(words) >= min(2, len(asked)) > 0
    )


def _file() -> dict[str, object]:
    return load_yaml(packaged_configs() / "failures" / "symptoms.yaml").values


def _stems(text: str) -> set[str]:
    """Words without their endings; those that say nothing are left out."""
    words = set(re.findall(r"[a-z0-9_]{3,}", text.lower()))
    return {word[:_STEM] for word in words - set(str(_file()["say_nothing"]).split())}
