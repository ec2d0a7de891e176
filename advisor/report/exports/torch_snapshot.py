"""`--memory-snapshot FILE`: predicted memory as a snapshot that PyTorch's memory_viz page opens.

A pickle of dicts, lists, strings and whole numbers with the keys that
torch.cuda.memory._snapshot gives (torch 2.13 cuda/memory.py): device N is a rank of pipeline stage
N. Addresses are the lowest free ones: no allocator is simulated for them.
"""

import pickle
from bisect import bisect
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from advisor.answer.answer import RankedEvaluation
from advisor.report.exports.export_origin import ExportOrigin
from advisor.search.evaluate import Evaluator
from advisor.step.layer_drawing import KeptLayer, kept_layers
from advisor.step.predicted_step import TrainingStep, training_step
from advisor.step.step_blocks import BlockEvent, BlockPlace, Detail, Kept, block_events, kept_blocks
from advisor.step.timeline import live_memory, timeline


class AddressSpace:
    """Bytes from `start` on. reached: as many of them as were ever in use, with the gaps."""

    def __init__(self, start: int) -> None:
        self.reached = 0
        self._start = start
        self._gaps: list[tuple[int, int]] = []
        """Start and size in order of addresses; no two touch."""

    def allocate(self, size: int) -> int:
        """The address of a new block of `size` bytes."""
        for index, (address, room) in enumerate(self._gaps):
            if room >= size:
                rest = [(address + size, room - size)] if room > size else []
                self._gaps[index : index + 1] = rest
                return address
        address = self._start + self.reached
        self.reached += size
        return address

    def free(self, address: int, size: int) -> None:
        """Give back a block; gaps that touch become one."""
        index = bisect(self._gaps, (address, 0))
        if index < len(self._gaps) and self._gaps[index][0] == address + size:
            size += self._gaps.pop(index)[1]
        if index and sum(self._gaps[index - 1]) == address:
            address, before = self._gaps.pop(index - 1)
            size += before
            index -= 1
        self._gaps.insert(index, (address, size))


MOST_BLOCKS: Final = 15_000
"""Blocks of what passes keep on the stage with the highest peak: as many memory_viz draws one by
one, and sums up the others."""
MOST_OF_OTHERS: Final = 45_000
"""The same of all other stages together: a file of some ten megabytes."""
_PROTOCOL: Final = 4  # as torch's own
_POOL: Final = (0, 0)
Plain = dict[str, Any]


def write_snapshot(row: RankedEvaluation, path: Path, origin: ExportOrigin) -> str:
    """Write the memory of all stages of `row`; what a block stands for, in words."""
    snapshot = torch_snapshot(row, origin)
    path.write_bytes(pickle.dumps(snapshot, protocol=_PROTOCOL))
    words: str = snapshot["allocator_settings"]["blocks"]
    return words


def torch_snapshot(row: RankedEvaluation, origin: ExportOrigin) -> Plain:
    """As torch.cuda.memory._snapshot gives it; `allocator_settings` say where it comes from."""
    evaluation = row.evaluation
    evaluator = Evaluator(evaluation.job, evaluation.calibration)
    step = training_step(evaluation, evaluator)
    line, frames = timeline(step), _Frames()
    lives = [live_memory(step, stage) for stage in range(len(step.stages))]
    worst = max(range(len(lives)), key=lambda stage: lives[stage].peak)
    traces, segments, details = [], [], []
    for stage, live in enumerate(lives):
        most = MOST_BLOCKS if stage == worst else MOST_OF_OTHERS // (len(lives) - 1)
        layers = kept_layers(evaluation, evaluator, stage)
        detail, kept = _kept(step, stage, layers, min(most, MOST_BLOCKS))
        trace, segment = _device(stage, list(block_events(step, line, live, stage, kept)), frames)
        details.append(detail)
        traces.append(trace)
        segments.append(segment)
    said = {**origin.by_name, "device": "pipeline stage", "blocks": _words(details, worst)}
    return {"segments": segments, "device_traces": traces, "allocator_settings": said}


def _kept(
    step: TrainingStep, stage: int, layers: Sequence[tuple[KeptLayer, ...]], most: int
) -> tuple[Detail, list[tuple[Kept, ...]]]:
    """What microbatches keep of each chunk of a stage, as finely as `most` blocks allow."""
    for detail in Detail:
        chunks = zip(step.stages[stage].chunks, layers, strict=True)
        kept = [kept_blocks(chunk, own, detail) for chunk, own in chunks]
        if step.microbatches * sum(map(len, kept)) <= most:
            break
    return detail, kept


def _words(details: Sequence[Detail], worst: int) -> str:
    """What a block stands for: ``… is a layer on stage 0, a pass elsewhere``."""
    words = {Detail.TENSOR: "one tensor", Detail.LAYER: "one layer", Detail.PASS: "one pass"}
    there = words[details[worst]]
    others = [words[one] for one in Detail if one in details and one is not details[worst]]
    if not others:
        return f"each block of kept memory is {there}"
    elsewhere = f"{' or '.join(others)} on other stages"
    return f"each block of kept memory is {there} on stage {worst}, and {elsewhere}"


class _Frames:
    """Stacks of torch's form; each place stands in the file once."""

    def __init__(self) -> None:
        self._found: dict[BlockPlace, Plain] = {}
        self._texts: dict[str, str] = {}

    def stack(self, places: Sequence[BlockPlace]) -> list[Plain]:
        """Innermost first."""
        return [self._frame(place) for place in places]

    def _frame(self, place: BlockPlace) -> Plain:
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
    start = (stage + 1) << 40  # 1 TiB each, with 47 bits as those of a GPU
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
            stack = frames.stack(block.places)
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
