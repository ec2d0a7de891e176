"""Out of memory: who asked, in which phase, what helps. All words stand in owners.yaml. Another
process goes before fragmentation, and that before the owner of the request."""

import re
from collections.abc import Collection
from functools import cache
from typing import Final

from msgspec import Struct, convert

from advisor.base.configuration import load_yaml, packaged_configs
from advisor.base.units import human_bytes
from advisor.diagnose.catalog import EVIDENCE, SIZE, Case, size_bytes
from advisor.diagnose.scan import Finding

_PROCESS: Final = re.compile(rf"Process (\d+) has ({SIZE}) memory")
_WORKER: Final = re.compile(r"\([\w.:<>-]+ pid=(\d+)")
_OLD_TEXT: Final = re.compile(r"\(GPU \d+; ")  # up to torch 2.0, which expands no segments
_ALLOC_CONF: Final = re.compile(r"PYTORCH(?:_[A-Z]+)?_ALLOC_CONF")
_TORCH: Final = re.compile(r"\b(?:py)?torch(?: version)?\s*(?:==|[:= ])\s*v?(\d+)\.(\d+)", re.I)
_OF_TORCH: Final = re.compile(r"(?:^|/)(?<!integration/)torch/|torchinductor")
_SETTLED: Final = re.compile(
    r"(?<!try setting )PYTORCH\w*_CONF\W{1,3}\S*expandable_segments:True"
    r"|expandable_segments not supported"
)
_FIRST: Final = ("limited", "contexts", "other_process", "beside", "fragmentation")
MOST_CASES: Final = 2
# Below this share of the device a cached block is the ordinary slack of the allocator's classes.
_LARGE_CACHE: Final = 0.1
# NCCL and the CUDA context together were measured at an eighth of a device at most: what no process
# of the message holds, and is twice that, is another process's.
_UNNAMED: Final = 0.25
# Of the device: 16 or more layers that keep one such tensor each would not have reached the
# backward pass.
_LARGE: Final = 1 / 16
_ROUNDING: Final = 0.01
_SMALL: Final = 0.05  # of the device: contexts that other ranks or a display leave


class Owner(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Whose memory a request was, by patterns, and what frees it, by framework."""

    id: str
    title: str
    fixes: dict[str, str]
    anywhere: tuple[str, ...] = ()
    frames: tuple[str, ...] = ()
    inner: tuple[str, ...] = ()
    weak: tuple[str, ...] = ()
    large: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    by_batch: bool = False
    of_job: bool = True


class Knowledge(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """configs/failures/owners.yaml."""

    owners: tuple[Owner, ...]
    families: dict[str, str]
    says: dict[str, str]
    sentences: tuple[str, ...]
    verdicts: dict[str, str]
    remedies: dict[str, str]
    phases: dict[str, str]


class Verdict(Struct, frozen=True, kw_only=True):
    """owner: its id; means: what the message says of the device; asked: who asked, in words; fix:
    what frees the memory, best first; cases: two known ones of the same cause at most."""

    owner: str
    means: str = ""
    asked: str = ""
    fix: tuple[str, ...] = ()
    cases: tuple[Case, ...] = ()


@cache
def knowledge() -> Knowledge:
    """The file, read once; UserError or msgspec's ValidationError on a broken one."""
    return convert(load_yaml(packaged_configs() / "failures" / "owners.yaml").values, Knowledge)


def has_owner(finding: Finding) -> bool:
    """Whether an owner is looked for; what happens on the host says its cases."""
    return finding.failure.memory in ("gpu", *(owner.id for owner in knowledge().owners))


def needs_another_setting(finding: Finding) -> bool:
    """Whether it is the job itself that needs too much of the device."""
    if finding.went_on or not has_owner(finding):
        return False
    return all(one.of_job for one in knowledge().owners if one.id == verdict_of(finding, "").owner)


def verdict_of(finding: Finding, head: str) -> Verdict:
    """Who asked, and what helps, of one that has an owner; `head` is the log's beginning."""
    known, (sizes, pids) = knowledge(), _sizes(finding.message)
    large = sizes.get("tried", 0) > _LARGE * sizes.get("capacity", 0) > 0
    inner = next((one for one in finding.frames if not _OF_TORCH.search(one)), "torch's own")
    owner, known_by = _owner(finding, inner, large=large), families_of(finding, head)
    words = {name: human_bytes(max(size, 0)) for name, size in sizes.items()}
    words |= {"pids": ", ".join(pids) or "see nvidia-smi"}
    words |= {"allocator": (option := _allocator(finding.message, head))}
    more = {name for name, size in sizes.items() if size > 0 or name in ("free", "cached")}
    said = [text for text in known.sentences if set(re.findall(r"{(\w+)}", text)) <= more]
    kind = _kind(sizes)
    cause = kind if kind in _FIRST else owner.id if owner else "unknown"
    named = owner if kind != "other_process" else None
    less = sizes.get("pool", 0) >= sizes.get("tried", 1) and cause not in ("capture", kind)
    settled = "_settled" if kind == "fragmentation" and not option else ""
    fix = (
        known.remedies.get(f"large_{cause}", "").format(**words) if large else "",
        known.remedies.get(cause + settled, "").format(**words),
        known.remedies.get(f"{kind}_{cause}", ""),
        _fix(named, known_by) if named else "",
        _fix(_named("capture"), known_by) if less else "",
        known.remedies["edge"].format(**words) if kind == "edge" and option else "",
        known.remedies.get(_time(finding, named), "").format(step=finding.step),
    )
    return Verdict(
        owner=cause,
        means=" ".join((*said, known.verdicts.get(kind, ""))).format(**words).strip(),
        asked=named.title.format(frame=inner) + _at(finding) if named else "",
        fix=tuple(filter(None, fix)),
        cases=_cases(finding, (cause, "" if owner else kind), head),
    )


def _sizes(message: str) -> tuple[dict[str, int], Collection[str]]:
    """Bytes that the message tells, and what follows from them; numbers of other processes."""
    sizes, listed = dict[str, int](), dict[str, int]()
    for name, pattern in knowledge().says.items():
        match = re.search(pattern.replace("SIZE", f"({SIZE})"), message)
        size = size_bytes(match[match.lastindex or 0]) if match else None
        if size is not None:
            sizes[name] = size
    if "reserved" in sizes and "allocated" in sizes:
        sizes["cached"] = sizes["reserved"] - sizes["allocated"]
    if {"tried", "capacity", "free", "allocated", "cached"} <= sizes.keys():
        sizes["over"] = sizes["allocated"] + sizes["tried"] - sizes["capacity"]
        sizes["short"] = sizes["tried"] - sizes["cached"] - sizes["free"]
        sizes["spare"] = -sizes["short"]
        listed, sizes["process"] = _processes(message, sizes)
        others = _others(sizes, [one for one in listed.values() if one <= sizes["capacity"]])
        sizes["largest"] = max(listed.values()) if len(listed) > 1 else 0
        sizes["outside"] = sizes["process"] - sizes["allocated"] - sizes["cached"]
        sizes["others"] = others if others > _ROUNDING * sizes["capacity"] else 0
    return sizes, listed


def _processes(message: str, sizes: dict[str, int]) -> tuple[dict[str, int], int]:
    """Bytes of the other processes by number, and of this one. In a container a process does not
    know its own number and stands in the list itself: as Ray's prefix says, or by its tensors."""
    listed = {pid: size_bytes(size) or 0 for pid, size in _PROCESS.findall(message)}
    if "process" in sizes:
        return listed, sizes["process"]
    held = sizes.get("allocated", 0) + sizes.get("cached", 0)
    able = {pid: size for pid, size in listed.items() if size >= held}
    worker = _WORKER.match(message)
    own = worker[1] if worker and worker[1] in able else min(able, key=able.__getitem__, default="")
    return listed, listed.pop(own, 0)


def _others(sizes: dict[str, int], listed: list[int]) -> int:
    """Bytes of other processes; sizes beyond the device are the driver's for "not known"."""
    used = sizes["capacity"] - sizes["free"]
    if 0 < sizes["process"] <= used:
        return max(used - sizes["process"], sum(listed))
    left = used - sizes["allocated"] - sizes["cached"]
    return sum(listed) or (left if left > _UNNAMED * sizes["capacity"] else 0)


def _kind(sizes: dict[str, int]) -> str:
    """What the amounts mean, by its name among the verdicts; empty where they are not told."""
    if "others" not in sizes:
        return ""
    tried, capacity, cached = sizes["tried"], sizes["capacity"], sizes["cached"]
    if sizes["free"] > tried + _SMALL * capacity:
        return "limited"
    if 0 < sizes["largest"] < _SMALL * capacity and sizes["others"] >= tried - sizes["free"]:
        return "contexts"
    if sizes["others"] >= max(tried - sizes["free"], _SMALL * capacity):
        return "other_process"
    if sizes["outside"] > _UNNAMED * capacity:
        return "beside"
    if sizes["over"] > 0:
        return "oversized" if tried > capacity else "exceeds"
    if cached >= tried:
        return "fragmentation" if cached >= _LARGE_CACHE * capacity else "edge"
    return "short" if sizes["short"] > 0 else "last"


def _owner(finding: Finding, inner: str, *, large: bool) -> Owner | None:
    """The owner that a frame names wherever it is, or the failure, or else the innermost frame."""
    frames, memory = finding.frames, finding.failure.memory
    found = _matching(frames, "anywhere") or _matching((finding.message,), "after")
    found = found or (_named(memory) if memory != "gpu" else None)
    for frame in frames:
        found = found or _matching((frame,), "frames")
        found = found or (_matching((frame,), "inner") if frame is inner else None)
    found = found or (_matching((inner,), "large") if large else None)
    return found or _matching(frames, "weak") or _matching((finding.message,), "weak")


def _named(name: str) -> Owner:
    return next(owner for owner in knowledge().owners if owner.id == name)


def _matching(frames: tuple[str, ...], kind: str) -> Owner | None:
    """The first owner with a pattern of this kind that one of the frames has."""
    patterns = ((owner, "|".join(getattr(owner, kind))) for owner in knowledge().owners)
    found = (one for one, words in patterns if words and any(re.search(words, f) for f in frames))
    return next(found, None)


def _at(finding: Finding) -> str:
    """The phase and the step, where they are known."""
    weak = _matching(finding.frames, "weak")
    phase = knowledge().phases.get(weak.id, "") if weak else ""
    step = f", after step {finding.step:,}" if finding.step else ", in the first step"
    return phase + ("" if finding.step is None else step)


def _time(finding: Finding, owner: Owner | None) -> str:
    """What the steps before tell: Adam's states came with the first, later a batch was larger."""
    if not (owner and owner.by_batch and finding.step):
        return ""
    late = "later_experts" if owner.id == "experts" else "later"
    return "second_step" if finding.step == 1 else late


def _fix(owner: Owner, known_by: tuple[str, ...]) -> str:
    """The remedy of the first framework of the log that the owner has one for."""
    return next((fix for name, fix in owner.fixes.items() if name in known_by), owner.fixes["any"])


def families_of(finding: Finding, head: str) -> tuple[str, ...]:
    """The frameworks that a traceback shows, then those of the log's beginning."""
    return tuple(dict.fromkeys((*families("\n".join(finding.frames)), *families(head))))


@cache
def families(text: str) -> tuple[str, ...]:
    """The frameworks that a text shows."""
    return tuple(name for name, words in knowledge().families.items() if re.search(words, text))


def _allocator(message: str, head: str) -> str:
    """The option against fragmentation, as the log's torch spells it; empty where it is on, or the
    platform has none."""
    if _SETTLED.search(head):
        return ""
    release, variable = _TORCH.search(head), _ALLOC_CONF.search(message)
    old = _OLD_TEXT.search(message) or (release and (int(release[1]), int(release[2])) < (2, 1))
    option = "max_split_size_mb:512" if old else "expandable_segments:True"
    platform = re.search(r"\b(HIP|NPU|XPU|MUSA) out of memory", message)
    default = f"PYTORCH_{platform[1] if platform else 'CUDA'}_ALLOC_CONF"
    return f"{variable[0] if variable else default}={option}"


def _cases(finding: Finding, when: tuple[str, ...], head: str) -> tuple[Case, ...]:
    """Cases of the same cause: of a framework of the log, or, where it names none, of torch."""
    old = _OLD_TEXT.search(finding.message)
    known_by = families_of(finding, head)
    fitting = [
        one
        for one in supported(finding, head)
        if one.when in ("", *when)
        and is_of(one, ("general", *known_by))
        and not (known_by and one.when and one.framework == "PyTorch")
        and not (old and "expandable_segments" in one.fix)
    ]
    return tuple(sorted(fitting, key=lambda one: list(EVIDENCE).index(one.evidence))[:MOST_CASES])


def supported(finding: Finding, head: str) -> tuple[Case, ...]:
    """Cases of a failure that the log supports: it shows what they ask for, and they are of no
    other framework than its own, unless all are."""
    cases, known_by = finding.failure.cases, families_of(finding, head)
    log = "\n".join((head, finding.excerpt, finding.message, *finding.frames))
    shown = tuple(one for one in cases if not one.shows or re.search(one.shows, log))
    near = tuple(one for one in shown if is_of(one, ("general", *known_by)))
    return near or shown if known_by else shown


def is_of(case: Case, known_by: tuple[str, ...]) -> bool:
    """Whether a case is of one of these frameworks."""
    return not set(families(case.framework)).isdisjoint(known_by)
