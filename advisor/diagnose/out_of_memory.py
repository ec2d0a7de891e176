"""Out of memory as somebody reads it who has seen it before: who asked, in which phase, what helps.

The memory of another process goes before fragmentation, and that before the request's owner.
"""

import re
from collections.abc import Iterator
from functools import cache
from typing import Final

from msgspec import Struct, convert
from msgspec.structs import replace

from advisor.base.units import counted, human_bytes
from advisor.diagnose.catalog import Case, Owner, load_owners, size_bytes
from advisor.diagnose.scan import Diagnosis, Finding

_BY_TRACEBACK: Final = "gpu"
OTHER_PROCESS: Final = "other_process"
FRAGMENTATION: Final = "fragmentation"
UNKNOWN: Final = "unknown"
_LISTED: Final = 4
_CASES: Final = 2
_CASE_FAMILIES: Final = {
    **{"Megatron-LM": "megatron", "Megatron Bridge": "bridge", "NeMo": "nemo", "TRL": "trl"},
    **{"DeepSpeed": "deepspeed"},
}

_SIZE: Final = r"(\d[\d.]* (?:bytes|[KMGT]iB))"
_SAYS: Final = {
    "tried": rf"Tried to allocate {_SIZE}",
    "capacity": rf"total capaci?ty of {_SIZE}|; {_SIZE} total capacity",
    "free": rf"of which {_SIZE} is free|; {_SIZE} free",
    "allocated": rf"allocated memory {_SIZE} is allocated|; {_SIZE} already allocated",
    "cached": rf"and {_SIZE} is reserved by PyTorch but unallocated",
    "process": rf"this process has {_SIZE} memory",
    "pool": rf"with {_SIZE} allocated in private pools",
}
"""torch's words: c10 CUDACachingAllocator of 1.13 to 2.13; 2.1 spells capacity its own way."""
_RESERVED: Final = rf"; {_SIZE} reserved in total"
_PROCESS: Final = re.compile(rf"Process (\d+) has {_SIZE} memory")
_EXPANDABLE: Final = "expandable_segments"
_OLD_TEXT: Final = re.compile(r"\(GPU \d+; ")  # up to torch 2.0
_ALLOC_CONF: Final = re.compile(r"PYTORCH(?:_CUDA|_HIP)?_ALLOC_CONF")
_TORCH: Final = re.compile(r"\b(?:py)?torch(?: version)?\s*(?:==|[:= ])\s*v?(\d+)\.(\d+)", re.I)

# Below a tenth of the device a cached block is the ordinary slack of the allocator's size classes:
# curing it gives the headroom of one request, not of a run.
_LARGE_CACHE: Final = 0.1
# NCCL and the CUDA context together were measured at an eighth of a device at most; what no process
# of the message holds, and is more than twice that, is another process's.
_UNNAMED: Final = 0.25
_SMALL: Final = 0.05  # of the device: contexts that other ranks or a display leave

_FAMILIES: Final = {
    "verl": r"\bverl[/.]|WorkerDict",
    "axolotl": r"\baxolotl[/.]",
    "llamafactory": r"\bllamafactory[/.]|LLaMA-Factory",
    "trl": r"/trl/",
    "bridge": r"megatron[/.]bridge|Megatron-Bridge|MODEL_TFLOP/s/GPU",
    "nemo": r"/nemo/|\bnemo\.(?:lightning|collections)|Training epoch \d+, iteration",
    "megatron": r"megatron/(?:core|training|legacy)|using world size: \d|_parallel_size \.{3,}",
    "torchtitan": r"torchtitan/|\[titan\]",
    "deepspeed": r"deepspeed/|\[logging\.py:\d+:log_dist\]|\[deepspeed\]",
    "accelerate": r"accelerate/",
    "trainer": r"transformers/trainer|\*{5} Running training \*{5}|'learning_rate':",
    "fsdp": r"distributed/(?:fsdp|_composable/fsdp)",
    "ddp": r"nn/parallel/distributed\.py",
}
_PHASES: Final = (
    ("while a checkpointed layer was replayed in the backward pass", "replay", "weak"),
    ("in the backward pass", "backward", "weak"),
)


class Verdict(Struct, frozen=True, kw_only=True):
    """owner: its id. asked: who asked for the memory, in words; fix: what frees it, best first;
    numbers: what the message says of the device; when: readings that pick among known cases."""

    owner: str
    numbers: str = ""
    asked: str = ""
    fix: tuple[str, ...] = ()
    when: tuple[str, ...] = ()


class _Sizes(Struct, frozen=True, kw_only=True):
    """Bytes of the message, None where it does not tell. others: held by other processes."""

    tried: int | None = None
    capacity: int | None = None
    free: int | None = None
    allocated: int | None = None
    cached: int | None = None
    process: int | None = None
    pool: int | None = None
    others: int = 0
    pids: tuple[str, ...] = ()


def owner_of(diagnosis: Diagnosis) -> str:
    """The owner of the first out-of-memory of a log: `none` without one, `caught` where the run
    went on."""
    first = next((one for one in diagnosis.findings if one.failure.memory), None)
    if first is None:
        return "none"
    return "caught" if first.went_on else verdict_of(first, diagnosis.head).owner


def has_owner(finding: Finding) -> bool:
    """Whether an owner of owners.yaml is looked for; what happens on the host says its cases."""
    memory = finding.failure.memory
    return memory == _BY_TRACEBACK or any(memory == one.id for one in load_owners())


def verdict_of(finding: Finding, head: str) -> Verdict:
    """Who asked, and what helps; `head` is the log's beginning."""
    if not has_owner(finding):
        return Verdict(owner=finding.failure.memory)
    sizes = _sizes(finding.message)
    families = _families(finding, head)
    owner = _owner(finding)
    named = "" if owner is None else f"{owner.title}{_phase(finding, owner)}{_at(finding)}"
    frees = "" if owner is None else _fix(owner, families)
    if _is_other_process(sizes):
        return Verdict(
            owner=OTHER_PROCESS,
            numbers=_numbers(sizes),
            fix=(_stop_others(sizes),),
            when=(OTHER_PROCESS,),
        )
    cure = _allocator(finding.message, head)
    fits = _would_fit(sizes)
    if fits == FRAGMENTATION:
        return Verdict(
            owner=FRAGMENTATION,
            numbers=_numbers(sizes) + _IN_PIECES,
            asked=named,
            fix=(f"{cure}, fixed sequence lengths", frees),
            when=(FRAGMENTATION,),
        )
    edge = f"{cure} gives the headroom of this request alone" if fits == "edge" and cure else ""
    return Verdict(
        owner=UNKNOWN if owner is None else owner.id,
        numbers=_numbers(sizes) + _shortage(sizes, fits),
        asked=named,
        fix=(
            frees or _NO_FRAMES,
            _less_capture(sizes, owner, families),
            edge,
            _varies(finding, owner),
        ),
        when=((fits or UNKNOWN) if owner is None else owner.id,),
    )


def known_cases(finding: Finding, verdict: Verdict, head: str) -> tuple[Case, ...]:
    """At most two cases of the same owner or reading, of torch or a framework of the log."""
    families, cases = _families(finding, head), finding.failure.cases
    if len(cases) == 1 and not families:
        return cases
    known = (one for one in cases if one.when in verdict.when or len(cases) == 1)
    fitting = [
        one
        for one in known
        if (one.framework.startswith("PyTorch") or _family(one.framework) in families)
        and not (_OLD_TEXT.search(finding.message) and _EXPANDABLE in one.fix)
    ]
    return tuple(sorted(fitting, key=lambda one: one.evidence.rank)[:_CASES])


def _family(framework: str) -> str:
    return _CASE_FAMILIES.get(framework, framework)


_IN_PIECES: Final = (
    " Fragmentation: the reserved but unallocated memory would hold the request if it were in one "
    "piece."
)
_NO_FRAMES: Final = (
    "the log shows no traceback of the request: look for it in the other ranks' logs, or record a "
    "memory snapshot, before you change a setting"
)


def _sizes(message: str) -> _Sizes:
    message = message.partition("See documentation")[0]
    found = {name: _said(pattern, message) for name, pattern in _SAYS.items()}
    reserved, allocated = _said(_RESERVED, message), found["allocated"]
    if found["cached"] is None and reserved is not None and allocated is not None:
        found["cached"] = reserved - allocated
    known = convert(found, _Sizes)
    listed = {pid: size_bytes(size) or 0 for pid, size in _PROCESS.findall(message)}
    others, pids = _others(known, listed)
    return replace(known, others=others, pids=pids)


def _said(pattern: str, message: str) -> int | None:
    match = re.search(pattern, message)
    return size_bytes(match[match.lastindex or 0]) if match else None


def _others(sizes: _Sizes, listed: dict[str, int]) -> tuple[int, tuple[str, ...]]:
    """Bytes and numbers of other processes. In a container a process does not know its own number,
    and stands in the list itself; sizes beyond the device are the driver's for "not known"."""
    if sizes.capacity is None or sizes.free is None:
        return 0, ()
    used = sizes.capacity - sizes.free
    known = {pid: size for pid, size in listed.items() if 0 < size <= sizes.capacity}
    own = sizes.process
    if own is None:
        torch = (sizes.allocated or 0) + (sizes.cached or 0)
        if not known:
            rest = used - torch
            return (rest if torch and rest > _UNNAMED * sizes.capacity else 0), ()
        holds = [pid for pid, size in known.items() if size >= torch]
        if torch and holds:
            del known[min(holds, key=known.__getitem__)]
        return sum(known.values()), tuple(known)
    hidden = used - own if own <= used else 0
    return max(hidden, sum(known.values())), tuple(known)


def _is_other_process(sizes: _Sizes) -> bool:
    """Whether the request would have fitted without them."""
    if sizes.tried is None or sizes.capacity is None or sizes.free is None:
        return False
    return sizes.others >= max(sizes.tried - sizes.free, _SMALL * sizes.capacity)


def _stop_others(sizes: _Sizes) -> str:
    pids = sizes.pids[:_LISTED]
    which = f"{', '.join(pids)} (numbers of the host)" if pids else "nvidia-smi shows which"
    return (
        f"stop the other {'process' if len(sizes.pids) < 2 else 'processes'} on this GPU: {which}; "
        "or choose a GPU of its own (CUDA_VISIBLE_DEVICES). If they are ranks of this job, every "
        "rank needs its own device; if it is a rollout engine, lower its share"
    )


def _would_fit(sizes: _Sizes) -> str:
    """`fragmentation` or `edge` where the cached memory would hold the request, else `shortage`;
    empty where the message does not tell."""
    tried, cached, allocated, capacity = sizes.tried, sizes.cached, sizes.allocated, sizes.capacity
    if tried is None or cached is None or allocated is None or capacity is None:
        return ""
    if cached < tried or allocated + tried > capacity:
        return "shortage"
    return FRAGMENTATION if cached >= _LARGE_CACHE * capacity else "edge"


def _numbers(sizes: _Sizes) -> str:
    """What the message says, in one sentence for the request and one for the rest."""
    if sizes.tried is None or sizes.capacity is None or sizes.free is None:
        return ""
    allocated, cached = sizes.allocated or 0, sizes.cached or 0
    parts = [
        f"{human_bytes(sizes.tried)} requested on a device of {human_bytes(sizes.capacity)} with "
        f"{human_bytes(sizes.free)} free; {human_bytes(allocated)} in tensors, "
        f"{human_bytes(cached)} reserved but unallocated."
    ]
    if sizes.pool is not None:
        parts.append(f"{human_bytes(sizes.pool)} of the tensors sit in pools of CUDA graphs.")
    if sizes.process is not None and sizes.process > allocated + cached:
        rest = human_bytes(sizes.process - allocated - cached)
        parts.append(f"{rest} more are used by the CUDA context, NCCL and libraries.")
    if sizes.others:
        parts.append(f"{human_bytes(sizes.others)} are held by other processes.")
    return " ".join(parts)


def _shortage(sizes: _Sizes, fits: str) -> str:
    if fits == "edge":
        return (
            " At the edge: the reserved but unallocated memory would hold the request if it were "
            "in one piece, but tensors nearly fill the device."
        )
    if fits != "shortage":
        return ""
    tried = sizes.tried or 0
    over = (sizes.allocated or 0) + tried - (sizes.capacity or 0)
    if over > 0:
        return f" Shortage: the tensors exceed the device by {human_bytes(over)}."
    short = tried - (sizes.cached or 0) - (sizes.free or 0)
    if short > 0:
        return f" Shortage: even without fragmentation {human_bytes(short)} are missing."
    return (
        " Shortage: even without fragmentation this request would leave only "
        f"{human_bytes(-short)}, so the next one fails."
    )


def _owner(finding: Finding) -> Owner | None:
    """The owner that the failure names, or the traceback."""
    owners = {one.id: one for one in load_owners()}
    if finding.failure.memory in owners:
        implied = owners[finding.failure.memory]
        return _by_frames(finding.frames, "anywhere") or implied
    found = _by_frames(finding.frames, "anywhere")
    for frame in finding.frames if found is None else ():
        found = found or _by_frames((frame,), "frames")
    return found or _by_frames(finding.frames, "weak")


def _by_frames(frames: tuple[str, ...], kind: str) -> Owner | None:
    """The first owner one of whose patterns of this kind a frame matches."""
    return next(
        (
            owner
            for owner, pattern in _patterns(kind)
            if any(pattern.search(frame) for frame in frames)
        ),
        None,
    )


@cache
def _patterns(kind: str) -> tuple[tuple[Owner, re.Pattern[str]], ...]:
    patterns = ((owner, getattr(owner, kind)) for owner in load_owners())
    return tuple((owner, re.compile("|".join(texts))) for owner, texts in patterns if texts)


def _phase(finding: Finding, owner: Owner) -> str:
    """The phase that the frames show, where the owner's title does not say it."""
    for words, name, kind in _PHASES:
        pattern = next(pattern for one, pattern in _patterns(kind) if one.id == name)
        if any(pattern.search(frame) for frame in finding.frames):
            return "" if owner.id in (name, "replay", "backward") else f", {words}"
    return ""


def _at(finding: Finding) -> str:
    """Where in the training it came."""
    if finding.step is None:
        return ""
    return ", in the first step" if finding.step == 0 else f", after step {finding.step:,}"


def _less_capture(sizes: _Sizes, owner: Owner | None, families: tuple[str, ...]) -> str:
    """Graphs hold what another one asks for."""
    capture = next(one for one in load_owners() if one.id == "capture")
    holds = sizes.pool is not None and sizes.pool >= (sizes.tried or 0)
    return _fix(capture, families) if holds and owner is not capture else ""


def _varies(finding: Finding, owner: Owner | None) -> str:
    """What the steps before it say: the first fits before Adam's states are there, and after many
    a batch or an expert was larger than all before."""
    if owner is None or owner.id not in ("logits", "replay", "backward", "activations", "experts"):
        return ""
    if finding.step == 1:
        return (
            "the first step fitted because Adam's states came at its end: shard them, or keep them "
            "smaller"
        )
    if finding.step is None or finding.step < 2:
        return ""
    what = "the router sent more tokens here" if owner.id == "experts" else "a longer batch came"
    return f"{counted(finding.step, 'step')} fitted: perhaps {what}, or memory grows with the steps"


def _fix(owner: Owner, families: tuple[str, ...]) -> str:
    """The remedy of the first framework of the log that the owner has one for."""
    return next((fix for name, fix in owner.fixes.items() if name in families), owner.fixes["any"])


def _families(finding: Finding, head: str) -> tuple[str, ...]:
    """Frameworks that the traceback names; without one, those that the log's head does."""
    shown = "\n".join(finding.frames)
    return tuple(_named(shown)) or tuple(_named(head))


def _named(text: str) -> Iterator[str]:
    return (name for name, pattern in _FAMILIES.items() if re.search(pattern, text))


def _allocator(message: str, head: str) -> str:
    """The allocator's option against fragmentation, as the torch of the log spells it."""
    release = _TORCH.search(head)
    version = (int(release[1]), int(release[2])) if release else None
    variable = _ALLOC_CONF.search(message)
    name = variable[0] if variable else "PYTORCH_CUDA_ALLOC_CONF"
    if _OLD_TEXT.search(message) or (version is not None and version < (2, 1)):
        return f"{name}=max_split_size_mb:512"
    return f"{name}={_EXPANDABLE}:True"
