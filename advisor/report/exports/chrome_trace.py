"""`--trace FILE`: the predicted step as a trace that ui.perfetto.dev and chrome://tracing open.

A process a pipeline stage, of which one rank is shown. Its first thread has the passes and what
comes after the pipeline; its second what they are made of, and the bubble: all seconds of the
step. Live memory is a counter. Source: Trace Event Format, complete (X), counter (C) and metadata
(M) events; times in microseconds.
"""

import gzip
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from msgspec import Struct, json

from advisor.answer.answer import RankedEvaluation
from advisor.report.exports.export_origin import ExportOrigin
from advisor.report.figures import kit
from advisor.step.predicted_step import TrainingStep, training_step
from advisor.step.timeline import Timeline, live_memory, moments, seconds_of, tail_parts, timeline

SUFFIXES: Final = (".json", ".json.gz")
PASSES, PHASES = 1, 2
"""Threads of a stage's process; the first process is the step as a whole."""
_WHOLE: Final = 0
_TAIL: Final = {
    "accumulated": "gradient accumulation on the host",
    "reduced": "gradient reduction",
    "optimizer": kit.OPTIMIZER.name,
}
_PARTS: Final = {
    "communication": kit.COMMUNICATION.name,
    "offload": kit.OFFLOAD.name,
    "waiting": kit.WAITING.name,
    "stragglers": kit.STRAGGLERS.name,
}
_NOTES: Final = (
    "One rank per pipeline stage. Parts of a pass are drawn in a fixed order; their order within "
    "the pass is not predicted. Live memory is drawn with its peak in the middle of a pass."
)
Event = dict[str, Any]


class _Step(Struct, frozen=True):
    """A step and when its passes run."""

    step: TrainingStep
    line: Timeline


def write_trace(row: RankedEvaluation, path: Path, origin: ExportOrigin) -> None:
    """Write the step of `row`; compressed where `path` ends in .gz."""
    content = json.encode(chrome_trace(row, origin))
    packed = path.suffix.lower() == ".gz"
    path.write_bytes(gzip.compress(content, 6, mtime=0) if packed else content)


def chrome_trace(row: RankedEvaluation, origin: ExportOrigin) -> dict[str, Any]:
    """The document: `traceEvents`, and next to them where they come from."""
    step = training_step(row.evaluation)
    found = _Step(step, timeline(step))
    events = [*_whole(found, origin)]
    for stage in range(len(step.stages)):
        events += [*_names(stage), *_passes(found, stage), *_phases(found, stage)]
        events += _memory(found, stage)
    said = {**origin.by_name, "notes": _NOTES, "step_time_seconds": step.seconds}
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": said}


def _whole(found: _Step, origin: ExportOrigin) -> Iterator[Event]:
    """The step as one slice that says what all of it is."""
    yield from _named("process", _WHOLE, 0, f"predicted step: {origin.row}", _WHOLE)
    yield _metadata("thread_name", _WHOLE, PASSES, {"name": "step"})
    args = {**origin.by_name, "notes": _NOTES}
    yield from _span((_WHOLE, PASSES), "training step", (0.0, found.step.seconds), args)


def _names(stage: int) -> Iterator[Event]:
    process = stage + 1
    yield from _named("process", process, 0, f"stage {stage} (predicted)", process)
    for thread, name in ((PASSES, "passes"), (PHASES, "phases")):
        yield from _named("thread", process, thread, name, thread)


def _passes(found: _Step, stage: int) -> Iterator[Event]:
    place = (stage + 1, PASSES)
    for one in found.line.stages[stage]:
        chunk = found.step.stages[stage].chunks[one.chunk]
        way, most = "forward", chunk.most_forward
        if one.backward:
            way, most = "backward", chunk.most_backward
        args = {
            "microbatch": one.microbatch,
            "chunk": one.chunk,
            "layers": chunk.layers,
            "kept until its backward ends (bytes)": chunk.kept,
            "highest memory in": most.point,
        }
        yield from _span(place, f"{way} {one.microbatch}", (one.start, one.end), args)
    for part, start, end in tail_parts(found.step):
        yield from _span(place, _TAIL[part], (start, end), {})


def _phases(found: _Step, stage: int) -> Iterator[Event]:
    """Every second of the step, one slice after the other."""
    place, free = (stage + 1, PHASES), 0.0
    for one in found.line.stages[stage]:
        yield from _span(place, kit.BUBBLE.name, (free, one.start), {})
        way = "backward" if one.backward else "forward"
        start, numbers = one.start, {"microbatch": one.microbatch, "chunk": one.chunk}
        parts = seconds_of(found.step.stages[stage], one).parts
        for index, (name, seconds) in enumerate(parts):
            end = start + seconds * found.line.stretch
            end = one.end if index == len(parts) - 1 else min(end, one.end)
            shown = way if name == "compute" else _PARTS.get(name, name)
            yield from _span(place, shown, (start, end), {"of": way, **numbers})
            start = end
        free = one.end
    yield from _span(place, kit.BUBBLE.name, (free, found.step.pipeline_seconds), {})
    for part, start, end in tail_parts(found.step):
        yield from _span(place, _TAIL[part], (start, end), {})


def _memory(found: _Step, stage: int) -> Iterator[Event]:
    """Counters hold from one event to the next."""
    live = live_memory(found.step, stage)
    before: dict[str, int] = {}
    for moment in moments(found.step, found.line, stage, live):
        parts = {"static": moment.static, "kept": moment.kept, "running": moment.running}
        if parts == before:
            continue
        before = parts
        there = {"ph": "C", "pid": stage + 1, "ts": _nanoseconds(moment.seconds) / 1e3}
        yield {**there, "name": "live memory", "args": {"bytes": moment.num_bytes}}
        yield {**there, "name": "live memory by kind", "args": parts}


def _span(
    place: tuple[int, int], name: str, ends: tuple[float, float], args: dict[str, Any]
) -> Iterator[Event]:
    """A slice, none where it has no length. Ends are rounded to nanoseconds, as the tools hold
    them, so that no slice reaches into the next."""
    start, end = map(_nanoseconds, ends)
    if end > start:
        process, thread = place
        yield {
            "ph": "X",
            "name": name,
            "cat": "predicted",
            "pid": process,
            "tid": thread,
            "ts": start / 1e3,
            "dur": (end - start) / 1e3,
            "args": {"seconds": ends[1] - ends[0], **args},
        }


def _nanoseconds(seconds: float) -> int:
    return round(seconds * 1e9)


def _named(what: str, process: int, thread: int, name: str, place: int) -> Iterator[Event]:
    """The name of a process or thread, and its place among the others."""
    yield _metadata(f"{what}_name", process, thread, {"name": name})
    yield _metadata(f"{what}_sort_index", process, thread, {"sort_index": place})


def _metadata(name: str, process: int, thread: int, args: dict[str, Any]) -> Event:
    return {"ph": "M", "name": name, "pid": process, "tid": thread, "args": args}
