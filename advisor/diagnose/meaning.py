"""What the numbers of a message say: which of the known causes of one text it is."""

import re
from collections.abc import Callable
from contextlib import suppress
from math import prod
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from advisor.base.limits import MOST_COUNT_DIGITS
from advisor.base.units import human_bytes
from advisor.diagnose.late_rank import who_was_late
from advisor.diagnose.scan import Finding

_EXPANDABLE: Final = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
_SAVE_MEMORY: Final = "recompute more, reduce the micro batch, or shard more (TP, PP, DP)"

# Below a tenth of the device a cached block is the ordinary slack of the allocator's size classes:
# curing it gives the headroom of one request, not of a run.
_LARGE_CACHE: Final = 0.1


class Meaning(Struct, frozen=True, kw_only=True):
    """A sentence, what to do about it, and the reading that picks among a failure's cases."""

    text: str
    fix: str = ""
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


def _out_of_memory(finding: Finding) -> Meaning:
    """Fragmentation or shortage, from the request against what was cached, free and allocated."""
    number = finding.number
    tried, capacity, free = (number(f"{name}_bytes") for name in ("tried", "capacity", "free"))
    allocated, cached = number("allocated_bytes"), number("reserved_unallocated_bytes")
    reserved = number("reserved_bytes")
    if cached is None and reserved is not None and allocated is not None:
        cached = reserved - allocated
    if tried is None or capacity is None or free is None or allocated is None or cached is None:
        return Meaning(
            text="The message does not say how much memory was free, allocated and reserved.",
            fix=f"{_SAVE_MEMORY}; {_EXPANDABLE} if reserved memory is far above allocated memory.",
        )
    said = (
        f"{human_bytes(tried)} requested on a device of {human_bytes(capacity)} with "
        f"{human_bytes(free)} free; {human_bytes(allocated)} in tensors, {human_bytes(cached)} "
        f"reserved but unallocated.{_for_comparison(finding, allocated, cached)}"
    )
    verdict = _verdict(
        tried=tried, capacity=capacity, free=free, allocated=allocated, cached=cached
    )
    return replace(verdict, text=f"{said} {verdict.text}")


def _for_comparison(finding: Finding, allocated: float, cached: float) -> str:
    """What the process held that is no tensor of its own making, where the message tells."""
    process, pool = finding.number("process_bytes"), finding.number("pool_bytes")
    parts = []
    if pool is not None:
        parts.append(f" {human_bytes(pool)} of the tensors sit in pools of CUDA graphs.")
    if process is not None and process > allocated + cached:
        other = human_bytes(process - allocated - cached)
        parts.append(f" {other} more are used by the CUDA context, NCCL and libraries.")
    return "".join(parts)


def _verdict(
    *, tried: float, capacity: float, free: float, allocated: float, cached: float
) -> Meaning:
    """Enough cached for the request is fragmentation if it is much; anything less a shortage."""
    if allocated + tried > capacity:
        over = human_bytes(allocated + tried - capacity)
        return Meaning(
            text=f"Shortage: the tensors exceed the device by {over}; no allocator setting helps.",
            fix=f"{_SAVE_MEMORY}.",
            when="shortage",
        )
    if cached >= tried and cached >= _LARGE_CACHE * capacity:
        return Meaning(
            text="Fragmentation: the reserved but unallocated memory would hold the request if "
            "it were in one piece.",
            fix=f"{_EXPANDABLE}, fixed sequence lengths; if that is not enough: {_SAVE_MEMORY}.",
            when="fragmentation",
        )
    if cached >= tried:
        return Meaning(
            text="At the edge: the reserved but unallocated memory would hold the request if "
            "it were in one piece, but tensors nearly fill the device.",
            fix=f"{_EXPANDABLE}; for more headroom: {_SAVE_MEMORY}.",
            when="edge",
        )
    if cached + free >= tried:
        spare = human_bytes(cached + free - tried)
        return Meaning(
            text="Shortage: little memory is reserved but unallocated. Even without "
            f"fragmentation this request would leave only {spare}, so the next one fails.",
            fix=f"{_SAVE_MEMORY}; {_EXPANDABLE} may hide it for some steps.",
            when="shortage",
        )
    short = human_bytes(tried - cached - free)
    return Meaning(
        text=f"Shortage: even without fragmentation {short} are missing.",
        fix=f"{_SAVE_MEMORY}.",
        when="shortage",
    )


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
    "cuda_out_of_memory": _out_of_memory,
    "cuda_out_of_memory_graph_pools": _out_of_memory,
    "recomputed_metadata_differs": _metadata,
    "nccl_collective_timeout": lambda one: Meaning(**who_was_late(one)),
}
