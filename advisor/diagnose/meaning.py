"""What the numbers of a message say: which of the known causes of one text it is."""

import re
from collections.abc import Callable
from contextlib import suppress
from math import prod
from typing import Final

from msgspec import Struct

from advisor.base.limits import MOST_COUNT_DIGITS
from advisor.diagnose.catalog import Case
from advisor.diagnose.late_rank import who_was_late
from advisor.diagnose.out_of_memory import MOST_CASES, families_of, is_of
from advisor.diagnose.scan import Finding


class Meaning(Struct, frozen=True, kw_only=True):
    """A sentence, and the reading that picks among a failure's cases."""

    text: str
    when: str = ""


def meaning_of(finding: Finding) -> Meaning:
    """The meaning of a finding; an empty text where the cases say all."""
    special = _SPECIAL.get(finding.failure.id)
    if special:
        return special(finding)
    readings = {number.name: number.text for number in finding.numbers}
    with suppress(KeyError):  # the message lacks one of them
        return Meaning(text=finding.failure.meaning.format(**readings))
    return Meaning(text="")


def cases_of(finding: Finding, when: str, head: str) -> tuple[Case, ...]:
    """Two cases at most, of this reading of the numbers: of the same text, else of a framework of
    the log, else any; the best known first."""
    failure, known_by = finding.failure, families_of(finding, head)
    said = [one.regex for one in failure.templates if one.regex.search(finding.excerpt)]
    left = [one for one in failure.cases if not when or one.when in ("", when)]
    own = [one for one in left if is_of(one, known_by)]
    alike = [one for one in left if any(r.search(" ".join(one.message.split())) for r in said)]
    near = sorted(alike or own or left, key=lambda one: one.evidence.rank)
    near.sort(key=lambda one: (one.when != when, one not in own))
    return tuple(near[:MOST_CASES])


def _metadata(finding: Finding) -> Meaning:
    """How the replayed tensor differs: grown, empty, another dtype, another number of rows."""
    texts = {item.name: item.text for item in finding.numbers}
    dtypes = texts.get("saved_dtype", ""), texts.get("recomputed_dtype", "")
    saved, again = (_shape(texts.get(name, "")) for name in ("saved_shape", "recomputed_shape"))
    if dtypes[0] != dtypes[1]:
        return Meaning(
            text=f"The forward pass saved {dtypes[0]}, the replay {dtypes[1]}: the replay ran "
            "under a different autocast state.",
            when="dtype",
        )
    if saved is None or again is None:
        return Meaning(text="The message does not show the shapes; the next lines of the log may.")
    said = f"Saved {list(saved)}, replayed {list(again)}: "
    if prod(saved) == 0 or prod(again) == 0:
        return Meaning(
            text=f"{said}one of the two is empty, like a partitioned (ZeRO-3) parameter.",
            when="empty",
        )
    differing = [(a, b) for a, b in zip(saved, again, strict=False) if a != b]
    if len(saved) != len(again) or len(differing) != 1:
        return Meaning(text=f"{said}the replay took another code path.")
    before, after = differing[0]
    if after % before == 0:
        return Meaning(
            text=f"{said}one dimension is {after // before} times as long, like a key/value "
            "cache that is filled again.",
            when="longer",
        )
    return Meaning(
        text=f"{said}one dimension differs, like the tokens of an expert when the router decides "
        "differently.",
        when="rows",
    )


def _shape(text: str) -> tuple[int, ...] | None:
    """Sizes of ``torch.Size([2, 1024])``; None where the text is no shape, or one of no tensor."""
    sizes = re.findall(r"\d+", text)
    if "Size" not in text or any(len(size) > MOST_COUNT_DIGITS for size in sizes):
        return None
    return tuple(map(int, sizes))


_SPECIAL: Final[dict[str, Callable[[Finding], Meaning]]] = {
    "recomputed_metadata_differs": _metadata,
    "nccl_collective_timeout": lambda one: Meaning(**who_was_late(one)),
}
