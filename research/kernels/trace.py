"""Reduces a profiler's trace of one step to figures: when the GPU waits, and for what.

The GPU is idle where no kernel and no copy of any stream runs. What ends such a gap was queued by
some call of the processor; until that call returned the processor was late, and what it did then is
the cause: a part of the model and an operation. After it the GPU was: `queued`.

All threads of the processor are taken as one: a backward's runs while the main one waits for it.
"""

import re
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache, partial
from typing import Any, Final, NamedTuple

from torch._C._autograd import DeviceType
from torch.profiler import record_function

RANGE: Final = "module:"
"""Begins the name of a range around a module's forward; modules of a layer go on with `layer`."""
_NODE: Final = "autograd::engine::evaluate_function: "
_CALL: Final = re.compile(r"cu(da)?[A-Z]")
_NOISE: Final = re.compile(
    r"void |at::native::|\(anonymous namespace\)::|transformer_engine::|std::"
)
_LISTED: Final = 30
_PARTS: Final = 20
_NAME_LENGTH: Final = 90

OUTSIDE: Final = "outside"
"""Phase of what no range and no node of autograd contains: optimizer, schedule."""
ITSELF: Final = "itself"
"""Of a module or function: its own Python, and C++ that is bound to it and calls no operator."""

Causes = Counter[tuple[str, str]]


class Span(NamedTuple):
    """Something that the processor or the GPU did, in nanoseconds. correlation: the same of a
    kernel and of the call that queued it."""

    name: str
    start: int
    end: int
    correlation: int = 0


class Stretch(NamedTuple):
    """What the processor did for a while: the innermost part of the model, the innermost event."""

    start: int
    end: int
    cause: str
    operation: str


class Gap(NamedTuple):
    """The GPU did nothing from `start` to `end`, when `kernel` began."""

    start: int
    end: int
    kernel: Span


def spans(result: Any) -> tuple[list[Span], list[Span]]:
    """Of torch.profiler.profile(...).profiler.kineto_results: the processor's and the GPU's. Ranges
    appear on both; on the GPU they are no work."""
    processor: list[Span] = []
    gpu: list[Span] = []
    for event in result.events():
        on_processor = event.device_type() == DeviceType.CPU
        if on_processor or not event.is_user_annotation():
            span = Span(event.name(), event.start_ns(), event.end_ns(), event.correlation_id())
            (processor if on_processor else gpu).append(span)
    return processor, gpu


@contextmanager
def ranges(roots: Iterable[Any]) -> Iterator[None]:
    """Inside, the forwards of all modules of `roots`, in replays too, are ranges with their names;
    in a layer from there on: layer.mlp.linear_fc1."""
    handles = []
    for root in roots:
        for name, module in root.named_modules():
            label = re.sub(r"^.*?layers\.\d+", "layer", name) or "model"
            opened: list[Any] = []
            begins = partial(_begin, opened, f"{RANGE}{label}")
            handles.append(module.register_forward_pre_hook(begins))
            ends = partial(_end, opened)
            handles.append(module.register_forward_hook(ends, always_call=True))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _begin(opened: list[Any], name: str, *_: Any) -> None:
    opened.append(record_function(name))
    opened[-1].__enter__()


def _end(opened: list[Any], *_: Any) -> None:
    opened.pop().__exit__(None, None, None)


def figures(processor: Iterable[Span], gpu: Iterable[Span]) -> dict[str, Any]:
    """Seconds and counts of the whole, by phase and by cause."""
    in_order = sorted(processor, key=lambda span: (span.start, -span.end))
    kernels = sorted(gpu, key=lambda span: span.start)
    line = list(stretches(in_order))
    found = gaps(kernels)
    begins, ends = kernels[0].start if kernels else 0, max((k.end for k in kernels), default=0)
    idle = sum(gap.end - gap.start for gap in found)
    queued, causes, counts = _causes(line, found, _calls(in_order))
    return {
        "gpu_busy_seconds": _seconds(ends - begins - idle),
        "profiled_idle_seconds": _seconds(idle),
        "profiled_late_seconds": _seconds(sum(causes.values())),
        "profiled_queued_seconds": _seconds(queued),
        "profiled_idle_by_part": _by_part(found, begins, ends),
        "kernels": len(kernels),
        "phases": _phases(line, in_order, kernels),
        "late_by_cause": _listed(causes, counts),
        "profiled_host_by_cause": _listed(*_host(line)),
        "kernels_by_name": _by_name(kernels),
    }


def gaps(kernels: Sequence[Span]) -> list[Gap]:
    """Where none of `kernels`, in order of their start, runs, between the first and the last."""
    found = []
    end = kernels[0].end if kernels else 0
    for kernel in kernels:
        if kernel.start > end:
            found.append(Gap(end, kernel.start, kernel))
        end = max(end, kernel.end)
    return found


def stretches(in_order: Iterable[Span]) -> Iterator[Stretch]:
    """The processor's time without overlaps: who was innermost, from spans by their start."""
    open_now: list[Stretch] = []
    now = 0
    for span in in_order:
        while open_now and open_now[-1].end <= span.start:
            _, end, cause, operation = open_now.pop()
            if end > now:
                yield Stretch(now, end, cause, operation)
                now = end
        if open_now and span.start > now:
            yield Stretch(now, span.start, open_now[-1].cause, open_now[-1].operation)
        now = max(now, span.start)
        open_now.append(_named(span, open_now[-1].cause if open_now else OUTSIDE))
    for _, end, cause, operation in reversed(open_now):
        if end > now:
            yield Stretch(now, end, cause, operation)
            now = end


def _named(span: Span, parent: str) -> Stretch:
    """cause: a phase, a space, a name."""
    name, start, end, _ = span
    if name.startswith(RANGE):
        module = name.removeprefix(RANGE)
        phase = "forward" if module.startswith("layer") else "ends"
        phase = "replay" if parent.startswith(("backward", "replay")) else phase
        return Stretch(start, end, f"{phase} {module}", ITSELF)
    if name.startswith(_NODE):
        return Stretch(start, end, f"backward {name.removeprefix(_NODE)}", ITSELF)
    return Stretch(start, end, parent, _operation(name))


@lru_cache
def _operation(name: str) -> str:
    return name if "::" in name or _CALL.match(name) else ITSELF


def _calls(processor: Iterable[Span]) -> dict[int, Span]:
    """Calls of CUDA by their number."""
    return {
        span.correlation: span
        for span in processor
        if span.name.startswith("cu") and _CALL.match(span.name)
    }


def _causes(
    line: Sequence[Stretch], found: Iterable[Gap], calls: dict[int, Span]
) -> tuple[int, Causes, Causes]:
    """Nanoseconds of gaps after what ends them was queued, those before by cause and operation, and
    how many gaps had a part of each."""
    starts = [stretch.start for stretch in line]
    queued = 0
    causes, counts = Causes(), Causes()
    for gap in found:
        call = calls.get(gap.kernel.correlation)
        late_until = gap.end if call is None else min(gap.end, max(gap.start, call.end))
        queued += gap.end - late_until
        explained, seen = 0, set()
        for index in range(max(0, bisect_right(starts, gap.start) - 1), len(line)):
            stretch = line[index]
            if stretch.start >= late_until:
                break
            shared = min(stretch.end, late_until) - max(stretch.start, gap.start)
            if shared > 0:
                key = (stretch.cause, stretch.operation)
                causes[key] += shared
                explained += shared
                seen.add(key)
        if late_until - gap.start > explained:
            causes[OUTSIDE, ITSELF] += late_until - gap.start - explained
            seen.add((OUTSIDE, ITSELF))
        counts.update(seen)
    return queued, causes, counts


def _by_part(found: Iterable[Gap], begins: int, ends: int) -> list[float]:
    """Seconds of the gaps that begin in each of equal parts of the step, in order."""
    parts = [0] * _PARTS
    for gap in found:
        parts[(gap.start - begins) * _PARTS // (ends - begins)] += gap.end - gap.start
    return [_seconds(ns) for ns in parts]


def _phases(
    line: Sequence[Stretch], processor: Iterable[Span], kernels: Iterable[Span]
) -> dict[str, dict[str, float]]:
    """By phase: kernels that it queued and their seconds, operators of torch (those within others
    left out) and profiled seconds of the processor."""
    found: dict[str, dict[str, float]] = defaultdict(
        lambda: {"kernels": 0, "kernel_seconds": 0.0, "operators": 0, "profiled_host_seconds": 0.0}
    )
    starts = [stretch.start for stretch in line]

    def phase(moment: int) -> str:
        index = bisect_right(starts, moment) - 1
        inside = index >= 0 and line[index].end >= moment
        return line[index].cause.split()[0] if inside else OUTSIDE

    for stretch in line:
        of = found[stretch.cause.split()[0]]
        of["profiled_host_seconds"] += _seconds(stretch.end - stretch.start)
    calls = _calls(processor)
    for kernel in kernels:
        call = calls.get(kernel.correlation)
        of = found[OUTSIDE if call is None else phase(call.start)]
        of["kernels"] += 1
        of["kernel_seconds"] += _seconds(kernel.end - kernel.start)
    end = 0
    for span in processor:
        if span.name.startswith("aten::") and span.start >= end:
            found[phase(span.start)]["operators"] += 1
            end = span.end
    return {name: dict(of) for name, of in found.items()}


def _host(line: Iterable[Stretch]) -> tuple[Causes, Causes]:
    """Nanoseconds of the processor by cause and operation, and how often it came to it."""
    spent, counts = Causes(), Causes()
    for start, end, *key in line:
        spent[key[0], key[1]] += end - start
        counts[key[0], key[1]] += 1
    return spent, counts


def _listed(spent: Causes, counts: Causes) -> list[dict[str, Any]]:
    return [
        {"cause": key[0], "operation": key[1], "seconds": _seconds(ns), "count": counts[key]}
        for key, ns in spent.most_common(_LISTED)
    ]


def _by_name(kernels: Iterable[Span]) -> list[dict[str, Any]]:
    """The kernels that take longest in all, their names cut."""
    seconds, counts = Counter[str](), Counter[str]()
    for kernel in kernels:
        name = _NOISE.sub("", kernel.name)[:_NAME_LENGTH]
        seconds[name] += kernel.end - kernel.start
        counts[name] += 1
    return [
        {"kernel": name, "seconds": _seconds(ns), "count": counts[name]}
        for name, ns in seconds.most_common(_LISTED)
    ]


def _seconds(nanoseconds: int) -> float:
    return nanoseconds * 1e-9
