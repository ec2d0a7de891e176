"""Failures without a text, so that no log can show them: found by a user's words."""

import re
from collections import Counter
from functools import cache
from math import log
from typing import Final

from msgspec import convert

from advisor.base.configuration import load_yaml, packaged_configs
from advisor.diagnose.catalog import Case

_FILE: Final = load_yaml(packaged_configs() / "failures" / "symptoms.yaml").values
_STEM: Final = 5
_SHOWN: Final = 3
_NEAR: Final = 0.75  # of the best one's weight
_ENOUGH: Final = 0.48  # of the weight of a user's words


@cache
def symptoms() -> tuple[Case, ...]:
    """All that are known; `message` is what is seen."""
    return convert(_FILE["symptoms"], tuple[Case, ...])


def symptoms_of(text: str) -> tuple[Case, ...]:
    """Those that share most of a user's words, of which rare ones say more; none where too little
    is shared."""
    asked, kinds = _stems(text), convert(_FILE["kinds"], dict[str, str])
    said = {x: _stems(f"{x.framework} {x.message} {x.context} {kinds[x.kind]}") for x in symptoms()}
    often = Counter(stem for stems in said.values() for stem in stems)
    says = {stem: log(1 + len(said) / (1 + often[stem])) for stem in asked}
    shared = {one: sum(says[stem] for stem in asked & stems) for one, stems in said.items()}
    least = max(_NEAR * max(shared.values()), _ENOUGH * sum(says.values()), 1)
    near = sorted((one for one in shared if shared[one] >= least), key=lambda one: -shared[one])
    return tuple(near[:_SHOWN])


def _stems(text: str) -> set[str]:
    """Words without their endings; those that say nothing are left out."""
    words = set(re.findall(r"[a-z][a-z0-9_]+|[0-9]{3,}", text.lower()))
    return {word[:_STEM] for word in words - set(str(_FILE["say_nothing"]).split())}
