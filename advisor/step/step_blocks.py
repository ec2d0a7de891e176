"""A step as blocks of memory of one rank that are allocated and freed, in order.

Their sum is that of advisor.step.timeline before, at the highest point of, and after every pass.
Within a pass the order is that of the layers; what it needs besides what it keeps is one block.
"""

from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import Final, NamedTuple

from msgspec import Struct

from advisor.plan.schedule import held_tensors
from advisor.step.layer_drawing import KeptLayer
from advisor.step.predicted_step import ChunkPass, TrainingStep
from advisor.step.timeline import LiveMemory, TimedPass, Timeline


class BlockKind(StrEnum):
    """What a block holds, as torch's memory profiler names it (torch 2.13 profiler/
    _memory_profiler.py, Category), and buffers."""

    PARAMETER = "parameter"
    GRADIENT = "gradient"
    OPTIMIZER_STATE = "optimizer_state"
    ACTIVATION = "activation"
    TEMPORARY = "temporary"
    BUFFER = "buffer"


class Detail(StrEnum):
    """What one block stands for: of what a pass keeps, a tensor, all of a layer, or all."""

    TENSOR = "tensor"
    LAYER = "layer"
    PASS = "pass"


class BlockPlace(NamedTuple):
    """A line of what stands for a stack: what, in which source, and a number (a layer's, a
    microbatch's)."""

    name: str
    source: str
    number: int = 0


class MemoryBlock(Struct, frozen=True, eq=False):
    """An allocation; places: from the tensor outwards."""

    num_bytes: int
    kind: BlockKind
    places: tuple[BlockPlace, ...]


class BlockEvent(NamedTuple):
    """`block` is allocated, or freed, at `seconds` from the step's begin."""

    seconds: float
    block: MemoryBlock
    freed: bool


_STATIC: Final = (BlockKind.PARAMETER, BlockKind.GRADIENT, BlockKind.OPTIMIZER_STATE)


class Kept(Struct, frozen=True):
    """A block that a pass keeps, without the pass."""

    num_bytes: int
    places: tuple[BlockPlace, ...]


def kept_blocks(chunk: ChunkPass, layers: Sequence[KeptLayer], detail: Detail) -> tuple[Kept, ...]:
    """What one microbatch keeps of a chunk, in blocks of a detail; they sum to ChunkPass.kept."""
    rest = chunk.kept - sum(layer.num_bytes for layer in layers)
    if detail is Detail.PASS or rest < 0:
        name = f"all that {chunk.layers} layers keep"
        return (Kept(chunk.kept, (BlockPlace(name, "chunk"),)),) if chunk.kept else ()
    found = [kept for layer in layers for kept in _of_layer(layer, detail)]
    ends = [*["embedding"] * chunk.embedding, *["output layer and loss"] * chunk.head]
    if rest:
        found.append(Kept(rest, (BlockPlace(" and ".join([*ends, "arguments"]), "chunk"),)))
    return tuple(found)


def _of_layer(layer: KeptLayer, detail: Detail) -> Iterator[Kept]:
    place = BlockPlace(layer.name, layer.source, layer.layer)
    if detail is Detail.LAYER:
        yield Kept(layer.num_bytes, (place,))
        return
    for tensor in layer.tensors:
        own = BlockPlace(tensor.name, tensor.module, layer.layer)
        operator = BlockPlace(tensor.operator, layer.source, layer.layer)
        yield Kept(tensor.num_bytes, (own, operator, place))


def block_events(
    step: TrainingStep,
    line: Timeline,
    live: LiveMemory,
    stage: int,
    kept: Sequence[tuple[Kept, ...]],
) -> Iterator[BlockEvent]:
    """Of one stage; `kept`: of each chunk, one microbatch."""
    walk, held = _Walk(step, stage, kept), held_tensors(*step.schedule, stage)
    yield from walk.static()
    for one, level, states in zip(line.stages[stage], live.levels, held, strict=True):
        yield from walk.begin(one, states)
        way = walk.backward if one.backward else walk.forward
        yield from way(one, level.highest)
    yield from walk.optimizer()


class _Walk:
    """What is alive on the way through a step."""

    def __init__(self, step: TrainingStep, stage: int, kept: Sequence[tuple[Kept, ...]]) -> None:
        self._step, self._own, self._kept = step, step.stages[stage], kept
        self._root = BlockPlace("training step (predicted, not measured)", f"stage {stage}", stage)
        self._live = 0
        self._states: list[MemoryBlock] = []
        self._left: dict[int, MemoryBlock] = {}
        self._flying: dict[tuple[int, int], list[MemoryBlock]] = {}

    def static(self) -> Iterator[BlockEvent]:
        """Weights, gradients, optimizer states, buffers: from the begin to beyond the end."""
        for index, term in enumerate(self._own.static):
            kind = _STATIC[index] if index < len(_STATIC) else BlockKind.BUFFER
            places = (BlockPlace(term.name, term.source),)
            yield from self._allocate(0.0, term.num_bytes, kind, places)

    def begin(self, one: TimedPass, states: int) -> Iterator[BlockEvent]:
        """Hidden states that the schedule holds, and what is gone once the chunk runs again."""
        while len(self._states) > states:
            yield self._free(one.start, self._states.pop(0))
        yield from self._free_left(one.start, one.chunk)
        while len(self._states) < states and self._own.sent:
            place = BlockPlace("hidden state between stages", "schedule")
            for event in self._allocate(one.start, self._own.sent, BlockKind.TEMPORARY, (place,)):
                self._states.append(event.block)
                yield event

    def forward(self, one: TimedPass, highest: int) -> Iterator[BlockEvent]:
        """What is kept, layer by layer, then the rest of the highest point."""
        of_pass = BlockPlace(f"forward of microbatch {one.microbatch}", "chunk", one.chunk)
        kept = self._kept[one.chunk]
        blocks = self._flying[one.chunk, one.microbatch] = []
        for number, each in enumerate(kept):
            seconds = one.start + (one.end - one.start) * number / len(kept)
            places = (*each.places, of_pass)
            for event in self._allocate(seconds, each.num_bytes, BlockKind.ACTIVATION, places):
                blocks.append(event.block)
                yield event
        point = self._own.chunks[one.chunk].most_forward.point
        yield from self._peak(one.end, highest, point, of_pass)

    def backward(self, one: TimedPass, highest: int) -> Iterator[BlockEvent]:
        """The highest point besides all that is kept, which then goes from the last layer on."""
        chunk = self._own.chunks[one.chunk]
        of_pass = BlockPlace(f"backward of microbatch {one.microbatch}", "chunk", one.chunk)
        yield from self._peak(one.start, highest, chunk.most_backward.point, of_pass)
        blocks = self._flying.pop((one.chunk, one.microbatch))
        for number, block in enumerate(reversed(blocks), 1):
            yield self._free(one.start + (one.end - one.start) * number / len(blocks), block)
        place = BlockPlace("left until the chunk runs again", "chunk", one.chunk)
        for event in self._allocate(one.end, chunk.left, BlockKind.TEMPORARY, (place, of_pass)):
            self._left[one.chunk] = event.block
            yield event

    def optimizer(self) -> Iterator[BlockEvent]:
        """What passes left goes; what the optimizer needs comes and goes."""
        end = self._step.seconds
        begin = end - self._step.tail.optimizer
        for block in self._states:
            yield self._free(begin, block)
        for chunk in list(self._left):
            yield from self._free_left(begin, chunk)
        most = self._own.optimizer
        place = BlockPlace(most.point, "optimizer")
        for event in self._allocate(begin, most.num_bytes, BlockKind.TEMPORARY, (place,)):
            yield event
            yield self._free(end, event.block)

    def _peak(
        self, seconds: float, highest: int, point: str, of_pass: BlockPlace
    ) -> Iterator[BlockEvent]:
        missing = highest - self._live
        assert missing >= 0, "more is kept than the pass has at its highest"
        places = (BlockPlace(point, "highest point of the pass"), of_pass)
        for event in self._allocate(seconds, missing, BlockKind.TEMPORARY, places):
            yield event
            yield self._free(seconds, event.block)

    def _free_left(self, seconds: float, chunk: int) -> Iterator[BlockEvent]:
        if chunk in self._left:
            yield self._free(seconds, self._left.pop(chunk))

    def _allocate(
        self, seconds: float, num_bytes: int, kind: BlockKind, places: tuple[BlockPlace, ...]
    ) -> Iterator[BlockEvent]:
        """Nothing where there are no bytes."""
        if num_bytes:
            self._live += num_bytes
            yield BlockEvent(seconds, MemoryBlock(num_bytes, kind, (*places, self._root)), False)

    def _free(self, seconds: float, block: MemoryBlock) -> BlockEvent:
        self._live -= block.num_bytes
        return BlockEvent(seconds, block, True)
