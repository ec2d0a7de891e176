"""What the numbers of a message say: which of the known causes of one text it is."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Final

from msgspec import Struct

from advisor.base.limits import MOST_COUNT_DIGITS
from advisor.diagnose.catalog import EVIDENCE, Case
from advisor.diagnose.out_of_memory import MOST_CASES, families_of, is_of, supported
from advisor.diagnose.scan import Finding
from advisor.diagnose.story import WORLD

_NOBODY: Final = "no rank that reported is behind: look at the ranks that reported nothing."


class Meaning(Struct, frozen=True, kw_only=True):
    """A sentence, and the reading that picks among a failure's cases."""

    text: str
    when: str = ""


def meaning_of(finding: Finding, head: str = "") -> Meaning:
    """What a finding means, empty where the cases say all; `head` is the log's beginning."""
    special = _SPECIAL.get(finding.failure.id)
    if special:
        return special(finding, head)
    readings = {number.name: number.text for number in finding.numbers}
    readings["frame"] = next(iter(finding.frames), "")
    with suppress(KeyError):  # the message lacks one of them
        return Meaning(text=finding.failure.meaning.format(**readings))
    return Meaning(text="")


def cases_of(finding: Finding, when: str, head: str) -> tuple[Case, ...]:
    """Two cases at most, of this reading of the numbers: of the same text, else of a framework of
    the log, else general ones, else any; the best known first."""
    failure, known_by = finding.failure, families_of(finding, head)
    said = [one.regex for one in failure.templates if one.regex.search(finding.excerpt)]
    left = [one for one in supported(finding, head) if not when or one.when in ("", when)]
    own = [one for one in left if is_of(one, known_by)]
    if not failure.memory:
        fitting = [o for o in left if o in own or o.when or o.shows or is_of(o, ("general",))]
        left = fitting or left
    alike = [one for one in left if any(r.search(" ".join(one.message.split())) for r in said)]
    near = sorted(alike or own or left, key=lambda one: list(EVIDENCE).index(one.evidence))
    near.sort(key=lambda one: (one.when != when, one not in own))
    return tuple(near[:MOST_CASES])


def _metadata(finding: Finding, _head: str) -> Meaning:
    """How the replayed tensor differs: grown, empty, another dtype, another number of rows."""
    said = {item.name: item.text for item in finding.numbers}
    saved, again = (_shape(said.get(name, "")) for name in ("saved_shape", "recomputed_shape"))
    pairs = [(a, b) for a, b in zip(saved or (), again or (), strict=False) if a != b]
    when, times = "rows", 0
    if said.get("saved_dtype") != said.get("recomputed_dtype"):
        when = "dtype"
    elif saved is None or again is None:
        when = "unseen"
    elif 0 in (*saved, *again):
        when = "empty"
    elif len(saved) != len(again) or len(pairs) != 1:
        when = "path"
    elif pairs[0][1] % pairs[0][0] == 0:
        when, times = "longer", pairs[0][1] // pairs[0][0]
    shapes = {"saved": list(saved or ()), "again": list(again or ()), "times": times}
    text = finding.failure.readings[when].format(**said, **shapes)
    known = any(case.when == when for case in finding.failure.cases)
    return Meaning(text=text, when=when if known else "")


def _shape(text: str) -> tuple[int, ...] | None:
    """Sizes of ``torch.Size([2, 1024])``; None where the text is no shape, or one of no tensor."""
    sizes = re.findall(r"\d+", text)
    if "Size" not in text or any(len(size) > MOST_COUNT_DIGITS for size in sizes):
        return None
    return tuple(map(int, sizes))


def _late_rank(finding: Finding, head: str) -> Meaning:
    """Who is late for a collective that timed out, from what the ranks of one process group said.
    Ranks that said nothing are named where all others wait at one number and the log tells how
    many ranks there are."""
    every = {r: {n: one.text for n, one in by.items()} for r, by in finding.by_rank.items()}
    groups = Counter(one["group"] for one in every.values() if "group" in one)
    group = max(groups, key=groups.__getitem__, default="")
    said = {rank: one for rank, one in every.items() if one.get("group", group) == group}
    sent = {rank: int(one["enqueued"]) for rank, one in said.items() if "enqueued" in one}
    waits = {rank: int(one["seq"]) for rank, one in said.items() if "seq" in one}
    works = {tuple(one.get(name, "") for name in ("seq", "op", "numel")) for one in said.values()}
    seq, op, numel = max(works, key=lambda one: int(one[0] or 0), default=("", "", ""))
    when, text = "barrier" if numel == "1" else "plain", ""
    whole, world = not group or "default_pg" in group, WORLD.search(head)
    silent = set(range(int(world[1]) if world and whole else 0)) - set(every)
    if len(waits) == len(said) and (late := _slowest(waits)):
        text = f"{late} is behind: it waits in number {min(waits.values())}, others in {seq}."
    elif len(sent) == len(said) and (late := _slowest(sent)):
        first, last = min(sent.values()), max(sent.values())
        text = f"{late} was late: the last work it enqueued is {first}, others' {last}."
    elif len(works) > 1 and len({work[0] for work in works}) == 1:
        text, when = f"The ranks ran different collectives as number {seq}.", "differs"
    elif seq:
        text = f"{_ranks(said)} waited in {op or 'work'} number {seq}; "
        text += f"{_ranks(silent)}, which did not report, came late." if silent else _NOBODY
    return Meaning(text=text, when=when)


def _slowest(numbers: Mapping[int, int]) -> str:
    """The ranks at the lowest number; empty where all are at one."""
    low = min(numbers.values(), default=0)
    late = [rank for rank, number in numbers.items() if number == low]
    return _ranks(late) if len(late) < len(numbers) else ""


def _ranks(ranks: Iterable[int]) -> str:
    return f"Rank {', '.join(map(str, sorted(ranks)[:8]))}"


_SPECIAL: Final[dict[str, Callable[[Finding, str], Meaning]]] = {
    "recomputed_metadata_differs": _metadata,
    "nccl_collective_timeout": _late_rank,
}
