"""`--memory-snapshot FILE`: predicted memory as a snapshot that PyTorch's memory_viz page opens.

A pickle of dicts, lists, strings and whole numbers with the keys that
torch.cuda.memory._snapshot gives (torch 2.13 cuda/memory.py): device N is a rank of pipeline stage
N. Addresses are the lowest free ones: no allocator is replayed for them.
"""

import pickle
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from advisor.answer.answer import RankedEvaluation
from advisor.report.exports.address_space import AddressSpace
from advisor.report.exports.origin import Origin
from advisor.search.evaluate import Evaluator
from advisor.step.kept_layers import kept_layers
from advisor.step.live_memory import live_memory
from advisor.step.predicted_step import training_step
from advisor.step.step_blocks import BlockEvent, Detail, Kept, Place, block_events, kept_blocks
from advisor.step.step_parts import TrainingStep
from advisor.step.timeline import timeline

MOST_BLOCKS: Final = 60_000
"""Blocks of what passes keep, of all stages together: a file of some ten megabytes."""
MOST_OF_STAGE: Final = 15_000
"""As many blocks memory_viz draws one by one; it sums up the others."""
_PROTOCOL: Final = 4  # torch's own, and the latest that memory_viz's reader knows
_POOL: Final = (0, 0)
_WORDS: Final = {
    Detail.TENSOR: "one block a tensor",
    Detail.LAYER: "one block a layer, for tensors are too many",
    Detail.PASS: "one block a pass, for layers are too many",
}
Plain = dict[str, Any]


def write_snapshot(row: RankedEvaluation, path: Path, origin: Origin) -> str:
    """Write the memory of all stages of `row`; what a block stands for, in words."""
    snapshot = torch_snapshot(row, origin)
    path.write_bytes(pickle.dumps(snapshot, protocol=_PROTOCOL))
    words: str = snapshot["allocator_settings"]["blocks"]
    return words


def torch_snapshot(row: RankedEvaluation, origin: Origin) -> Plain:
    """As torch.cuda.memory._snapshot gives it; `allocator_settings` say where it comes from."""
    evaluation = row.evaluation
    evaluator = Evaluator(evaluation.job, evaluation.calibration)
    step = training_step(evaluation, evaluator)
    line = timeline(step)
    stages = range(len(step.stages))
    layers = [kept_layers(evaluation, evaluator, stage) for stage in stages]
    detail = next(one for one in Detail if _is_drawable(step, layers, one))
    frames, traces, segments = _Frames(), [], []
    for stage in stages:
        kept = _kept(step, stage, layers[stage], detail)
        events = list(block_events(step, line, live_memory(step, stage), stage, kept))
        trace, segment = _device(stage, events, frames)
        traces.append(trace)
        segments.append(segment)
    said = {**origin.words, "blocks": _WORDS[detail], "device": "its pipeline stage"}
    return {"segments": segments, "device_traces": traces, "allocator_settings": said}


def _kept(
    step: TrainingStep, stage: int, layers: Sequence[Any], detail: Detail
) -> list[tuple[Kept, ...]]:
    chunks = step.stages[stage].chunks
    return [kept_blocks(chunk, own, detail) for chunk, own in zip(chunks, layers, strict=True)]


def _is_drawable(step: TrainingStep, layers: Sequence[Sequence[Any]], detail: Detail) -> bool:
    """Whether blocks of a detail are not too many."""
    counts = [
        step.microbatches * sum(map(len, _kept(step, stage, own, detail)))
        for stage, own in enumerate(layers)
    ]
    few = max(counts) <= MOST_OF_STAGE and sum(counts) <= MOST_BLOCKS
    return few or detail is Detail.PASS


class _Frames:
    """Stacks of torch's form; each place stands in the file once."""

    def __init__(self) -> None:
        self._found: dict[Place, Plain] = {}
        self._texts: dict[str, str] = {}

    def of(self, places: Sequence[Place]) -> list[Plain]:
        """Innermost first."""
        return [self._frame(place) for place in places]

    def _frame(self, place: Place) -> Plain:
        if place not in self._found:
            self._found[place] = {
                "filename": self._text(place.source),
                "line": place.number,
                "name": self._text(place.name),
            }
        return self._found[place]

    def _text(self, text: str) -> str:
        plain = str(text)  # an enum's would stand in the file as a class
        return self._texts.setdefault(plain, plain)


def _device(stage: int, events: Sequence[BlockEvent], frames: _Frames) -> tuple[list[Plain], Plain]:
    """Events of a stage, and its one segment with what is alive at the end."""
    start = (stage + 1) << 44  # of their own: 16 TiB apart
    space, trace = AddressSpace(start), []
    alive: dict[int, tuple[int, list[Plain]]] = {}
    places: dict[int, int] = {}
    for event in events:
        block = event.block
        if event.freed:
            address = places.pop(id(block))
            size, stack = alive.pop(address)
            space.free(address, size)
            actions = ["free_requested", "free_completed"]
        else:
            address = places[id(block)] = space.allocate(block.num_bytes)
            stack = frames.of(block.places)
            alive[address] = block.num_bytes, stack
            actions = ["alloc"]
        for action in actions:
            there = _entry(action, address, block.num_bytes, event.seconds, stack)
            trace.append({**there, "category": str(block.kind)})
    first = _entry("segment_alloc", start, space.reached, 0.0, [])
    segment = {
        "device": stage,
        "address": start,
        "total_size": space.reached,
        "stream": 0,
        "segment_type": "large",
        "segment_pool_id": _POOL,
        "is_expandable": True,
        "frames": [],
        "blocks": list(_blocks(alive, start, space.reached)),
    }
    held = sum(size for size, _ in alive.values())
    segment |= dict.fromkeys(("allocated_size", "active_size", "requested_size"), held)
    return [first, *trace], segment


def _entry(action: str, address: int, size: int, seconds: float, stack: list[Plain]) -> Plain:
    return {
        "action": action,
        "addr": address,
        "size": size,
        "stream": 0,
        "time_us": round(seconds * 1e6),
        "pool_id": _POOL,
        "frames": stack,
    }


def _blocks(alive: dict[int, tuple[int, list[Plain]]], start: int, total: int) -> Iterator[Plain]:
    """What is alive and what is free between, in order of addresses."""
    at = start
    for address, (size, stack) in sorted(alive.items()):
        if address > at:
            yield _block("inactive", at, address - at, 0, [])
        yield _block("active_allocated", address, size, size, stack)
        at = address + size
    if at < start + total:
        yield _block("inactive", at, start + total - at, 0, [])


def _block(state: str, address: int, size: int, requested: int, stack: list[Plain]) -> Plain:
    return {
        "address": address,
        "size": size,
        "requested_size": requested,
        "state": state,
        "frames": stack,
    }
