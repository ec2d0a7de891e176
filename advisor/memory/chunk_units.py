"""The units of a chunk, and what each takes and gives back in either pass: a layer, a checkpoint
around layers, or an end of the model.

A unit begins by taking what the unit before hands to it, its input forward and its gradient
backward, and ends with what it keeps: what it hands on is the next one's. `unit_of` folds the
events of its operators, `unit_requests` asks the allocator for them one by one.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import groupby
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from advisor.base.dtypes import DType
from advisor.base.units import MIB
from advisor.layers.family import VisionEnd
from advisor.layers.operators import Module, Operator
from advisor.layers.shape import RankShape, tied_weight_gradient
from advisor.layers.transformer import (
    LAYER_INPUT,
    embedding_operators,
    head_groups,
    transformer_layer,
    vision_ends,
    vision_operators,
)
from advisor.memory import liveness
from advisor.memory.events import (
    GIVE,
    SPENT,
    TAKE,
    WORK,
    Event,
    Peak,
    Segment,
    fold,
    highest,
    in_a_row,
)
from advisor.memory.working_set import ShardingOverhead, WorkingSet
from advisor.models.layer_kind import FeedForward, Role
from advisor.plan.recompute_plan import (
    Checkpoint,
    RecomputePlan,
    computed_until_stop,
    copied_bytes,
    kept_tensors,
    offloaded_bytes,
    offloaded_names,
)
from advisor.plan.recompute_plan import Segment as Layers

Row = str | Layers
"""What a unit is: an end of the model by its name, or layers under one regime."""


class Unit(Struct, frozen=True, kw_only=True):
    """A unit's passes, folded: bytes of one rank and one microbatch.

    held: its backward where the caller keeps the incoming gradient to the end. layers: of one
    checkpoint by hooks, else 1. The chunk, and the units next to it, also need to know:
    entry: bytes of the input, which alone is alive when the unit begins.
    away: bytes on their way to the host, or back, while the next unit runs.
    joined: the gradients of all depths of multi-token prediction are one tensor, which lives until
    the first depth is through; its bytes beyond the unit's own.
    gradient_left: of what the backward leaves until the unit's next forward, the gradient that it
    hands on. A token dispatcher holds the probabilities of its last forward, and with them the
    graph they came from: in a replay that begins with the checkpoint's input, whose gradient stays.
    until_dispatch: of its forward up to where the dispatcher lets go of that.
    stays: bytes of gathered parameters that come with its forward and go with its backward.
    """

    name: str
    kept: int
    forward: Segment
    backward: Segment
    held: Segment
    layers: int = 1
    entry: int = 0
    away: int = 0
    joined: int = 0
    gradient_left: int = 0
    until_dispatch: Peak = Peak()
    stays: int = 0

    @property
    def highest_forward(self) -> int:
        """The most bytes alive in its forward, above what units before it keep."""
        return self.forward.peak.num_bytes

    @property
    def highest_backward(self) -> int:
        """The most bytes alive in its backward, above what units before it keep."""
        return self.kept + self.backward.peak.num_bytes

    @property
    def left(self) -> int:
        """Bytes that its backward leaves."""
        return self.kept + self.backward.net

    def gathered(self, overhead: ShardingOverhead) -> "Unit":
        """This unit next to what is gathered and reduced for it."""
        stays, place = self.layers * overhead.stays, _place(self.name)
        alone = self.entry + overhead.entry - self.forward.net
        gathers = Segment(0, Peak(alone, f"all-gather{place}"))
        forward = in_a_row((Segment(stays), self.forward.around(overhead.forward), gathers))
        if self.layers > 1:  # gathers one layer after another in between
            return replace(self, forward=forward, stays=stays)
        reduces = Segment(0, Peak(self.entry + overhead.exit, f"reduce-scatter{place}"))
        backward, held = (
            in_a_row((one.around(overhead.backward), reduces, Segment(overhead.left - stays)))
            for one in (self.backward, self.held)
        )
        return replace(self, forward=forward, backward=backward, held=held, stays=stays)


_NAMES: Final = {
    Role.LAYER: "layer",
    Role.VISION: "vision block",
    Role.FINAL_LAYERNORM: "final norm",
    Role.MULTI_TOKEN_PREDICTION: "multi-token prediction",
}


def _place(name: str) -> str:
    """Where an operator of a unit is, after its name; operators of most ends say so themselves."""
    if name == "multi-token prediction":
        return f" in {name}"
    own = ("embedding", "final norm", "head", "loss", *VisionEnd)
    return "" if name in own else f" in a {name}"


PROJECTORS: Final = (VisionEnd.PROJECTOR, VisionEnd.CONSTANT_PROJECTOR)
_FIRST: Final = ("embedding", "loss", VisionEnd.PATCH_EMBEDDING, VisionEnd.CONSTANT_PATCHES)
"""Units that are handed no hidden states."""


def _hidden(shape: RankShape, row: Row) -> int:
    """Bytes of what the unit before hands to this one: hidden states, of the tower in it."""
    sees = row in PROJECTORS if isinstance(row, str) else row.sees
    return (shape.tower if sees else shape).hidden(LAYER_INPUT).num_bytes


def rows_of(
    shape: RankShape,
    plan: RecomputePlan,
    first: bool,
    last: bool,
    working_set: WorkingSet | None = None,
) -> list[tuple[tuple[Row, ShardingOverhead | None], int]]:
    """The units of a chunk in order, each with what is gathered for it, and how many equal ones
    follow each other; `first` holds the embedding, and the vision tower of a model that sees,
    `last` norm, head and loss."""
    rows: list[tuple[Row, int]] = [("embedding", 1)] if first else []
    blocks = [(layers, layers.copies) for layers in plan.segments if layers.sees]
    if blocks:
        before, after = vision_ends(constant=blocks[0][0].layers[0].constant)
        rows += [(before, 1), *blocks, (after, 1)]
    rows += [(layers, layers.copies) for layers in plan.segments if not layers.sees]
    rows += [(name, 1) for name, _ in head_groups(shape)] if last else []
    if working_set is None:
        return [((row, None), copies) for row, copies in rows]
    each = [row for row, copies in rows for _ in range(copies)]
    alike = groupby(zip(each, working_set.of_each(each), strict=True))
    return [(row, sum(1 for _ in equal)) for row, equal in alike]


@lru_cache(maxsize=8192)
def unit_of(shape: RankShape, row: Row, overhead: ShardingOverhead | None = None) -> Unit:
    """One unit, by itself or next to what is gathered for it: an end of the model, a layer whose
    runs are replayed, or a checkpoint around all.

    A checkpoint keeps its input, [seq_length / cp (/ tp under SP), micro_batch_size, hidden_size]
    in the type of the activations; a layer what its operators save and no run replays, less what is
    offloaded. Sources: megatron-core 0.16.1 tensor_parallel/random.py and transformer_block.py,
    torch 2.13 utils/checkpoint.py."""
    if isinstance(row, str) or not row.whole:
        unit = _plain(shape, row)
    else:
        unit = _checkpoint(shape, row, overhead)
    return unit if overhead is None else unit.gathered(overhead)


@lru_cache(maxsize=8192)
def kept_bytes(shape: RankShape, plan: RecomputePlan) -> int:
    """Bytes that one microbatch keeps in the layers of a chunk on one rank: of a whole checkpoint
    its input, else what autograd saves of each layer under the plan's runs. Embedding, output layer
    and loss are left out, and so is what a running pass needs; no pass is walked through."""
    return sum(segment.copies * _kept(shape, segment) for segment in plan.segments)


def _kept(shape: RankShape, layers: Layers) -> int:
    if layers.whole:
        return kept_input(shape, layers)
    (operators,) = _layers_of(shape, layers)
    away = offloaded_bytes(operators, layers.runs, layers.offloaded) if layers.moves_to_host else 0
    return liveness.layer_kept_bytes(operators, layers.runs) - away


@lru_cache(maxsize=8192)
def bytes_on_host(shape: RankShape, plan: RecomputePlan) -> int:
    """Bytes of one microbatch that the layers of a chunk keep on the host until their backward."""
    return sum(segment.copies * _on_host(shape, segment) for segment in plan.segments)


def _on_host(shape: RankShape, layers: Layers) -> int:
    if layers.whole:
        return _hidden(shape, layers) if layers.input.offloaded else 0
    (operators,), runs = _layers_of(shape, layers), layers.runs
    return copied_bytes(operators, runs, layers.offloaded) if layers.moves_to_host else 0


@lru_cache(maxsize=4096)
def without_grad(shape: RankShape, row: Row, overhead: ShardingOverhead | None = None) -> Peak:
    """The most bytes of a unit's forward that keeps nothing, next to what is gathered for it: its
    input, [seq_length / cp (/ tp under SP), micro_batch_size, hidden_size], is alive in a caller's
    variable. A forward under torch.no_grad() replays nothing and checkpoints nothing."""
    found, each = overhead or ShardingOverhead(), _layers_of(shape, row)
    peaks = (fold(liveness.events_without_grad(operators)).peak for operators in each)
    gathers = Peak(_hidden(shape, row) + found.entry, "all-gather")
    return highest(gathers, *(peak.above(found.forward) for peak in peaks))


def kept_input(shape: RankShape, layers: Layers) -> int:
    """Bytes on the device of the one input that a checkpoint keeps: [seq_length / cp (/ tp under
    SP), micro_batch_size, hidden_size], cut by TP once more where distribute_saved_activations
    does, none where it waits on the host."""
    if layers.input.offloaded:
        return 0
    hidden = _hidden(shape, layers)
    return -(-hidden // shape.tp) if layers.shards_input else hidden


def _layers_of(shape: RankShape, row: Row) -> "_Each":
    """The operators of each layer of a unit, or of an end of the model."""
    if isinstance(row, VisionEnd):
        return [vision_operators(shape, row)]
    if isinstance(row, str):
        return [embedding_operators(shape) if row == "embedding" else dict(head_groups(shape))[row]]
    if row.whole:
        shape = shape.under_checkpoint
    return [transformer_layer(shape, kind) for kind in row.layers]


def _plain(shape: RankShape, row: Row) -> Unit:
    """An end of the model, or a layer by itself. What its modules offload has as much again on its
    way in either pass, or the layer before has; what its runs do, while the next layer runs. Left
    out: what comes back a second time."""
    name = row if isinstance(row, str) else _NAMES[row.layers[0].role]
    layers = Layers(()) if isinstance(row, str) else row
    (operators,), runs = _layers_of(shape, row), layers.runs
    found, hidden = liveness.footprint(operators, runs), _hidden(shape, row)
    if all(one.no_grad for one in operators):
        kept, entry = found.kept, 0 if name in _FIRST else hidden
        there, gone = Segment(kept, found.forward), Segment(-kept)
        return Unit(name=name, kept=kept, forward=there, backward=gone, held=gone, entry=entry)
    by_runs = offloaded_bytes(operators, runs, frozenset())
    by_modules = offloaded_bytes(operators, runs, layers.offloaded) - by_runs
    fetched = offloaded_bytes(operators, runs, layers.offloaded or layers.fetched) - by_runs
    kept, predicts = found.kept - by_runs - by_modules, name == "multi-token prediction"
    replays_router = any(Module.ROUTER in run.modules for run in runs)
    left = 2 * hidden if replays_router and _holds_graph(shape, layers) else 0
    back = found.held_backward if predicts else found.backward
    forward = found.forward.above(by_modules, _place(name))
    backward, held = (peak.above(fetched, _place(name)) for peak in (back, found.held_backward))
    return Unit(
        name=name,
        kept=kept,
        forward=Segment(kept, forward),
        backward=Segment(left - kept, backward.above(-kept)),
        held=Segment(left - kept, held.above(-kept)),
        entry=0 if name in _FIRST else hidden,
        away=by_runs,
        joined=(shape.model.mtp_num_layers or 0) * hidden if predicts else 0,
        until_dispatch=_until_dispatch(operators, found.there) if left else Peak(),
    )


def _until_dispatch(operators: tuple[Operator, ...], events: Sequence[Event]) -> Peak:
    """The most bytes of `events`, a forward, up to the first operator that sends tokens away."""
    sends = next(one.name for one in operators if one.module is Module.DISPATCH)
    end = next(n for n, (kind, name, _) in enumerate(events) if kind == WORK and name == sends)
    return fold(events[: end + 1]).peak


def _holds_graph(shape: RankShape, layers: Layers) -> bool:
    """Whether Megatron's token dispatcher is in one of `layers`."""
    has_experts = any(kind.feed_forward is FeedForward.MOE for kind in layers.layers)
    return has_experts and not shape.model.transformer_impl.is_eager


def _checkpoint(shape: RankShape, layers: Layers, overhead: ShardingOverhead | None) -> Unit:
    """One checkpoint around all of `layers`. Its forward keeps nothing of them: the input is alive
    next to all but the first, or next to all where a copy of it is on its way to the host. Autocast
    caches 16-bit copies of linear layers' fp32 weights that are trained to the end of the
    forward."""
    hidden, number = _hidden(shape, layers), layers.num_layers
    reentrant, kept = layers.checkpoint is Checkpoint.REENTRANT, kept_input(shape, layers)
    one_by_one, each = not reentrant and number > 1, _layers_of(shape, layers)
    left = hidden if reentrant and _holds_graph(shape, layers) else 0
    linear = [w for one in each for operator in one for w in operator.weights if w.in_linear]
    wide = DType.FP32 if shape.autocast else shape.dtype
    cached = (w for w in linear if (w.dtype or wide) is DType.FP32 and not w.frozen)
    caches = shape.autocast or shape.tuning.autocast
    cast = sum(w.num_elements for w in cached) * shape.dtype.itemsize if caches else 0
    forward = [Segment(cast)]
    for index, one in enumerate(each):
        peak = fold(liveness.events_without_grad(one)).peak
        forward.append(Segment(0, peak.above(hidden * ((index > 0) + layers.input.more))))
    gathers, name = overhead if one_by_one else None, f"checkpoint of {number} layer"
    there, back, held = (
        in_a_row(segments).around(0, f" in a {name}{'s' * (number != 1)}")
        for segments in (
            (*forward, Segment(kept)),
            (*_again(shape, layers, gathers, held=reentrant), Segment(2 * left)),
            (*_again(shape, layers, gathers, held=True), Segment(2 * left)),
        )
    )
    return Unit(
        name=name + "s" * (number != 1),
        kept=kept,
        forward=there,
        backward=back,
        held=held,
        layers=number if one_by_one else 1,
        entry=hidden,
        gradient_left=left,
    )


def _again(
    shape: RankShape, layers: Layers, overhead: ShardingOverhead | None, *, held: bool
) -> Iterator[Segment]:
    """The backward of a checkpoint: all layers run forward again, and then keep everything.

    One that is an autograd function (Checkpoint.REENTRANT: tensor_parallel/random.py
    CheckpointFunction, torch utils/checkpoint.py CheckpointFunction) replays while the incoming
    gradient waits, what it kept of its input replaced by the gathered input, and holds the replayed
    output and the incoming gradient to the end.

    One by saved-tensor hooks keeps its input until it is through, and replays when the first tensor
    is needed, next to the gradients that came so far, the last layer up to its last saved tensor
    where the replay stops early. It holds neither output nor gradient itself.

    Around several layers that are gathered one after another: the last one's parameters are there
    already, the all-gather of the one before has begun, that of the running one lives to the
    layer's end, and parameters stay until their layer has gone back. Source: torch 2.13
    distributed/fsdp/_fully_shard/_fsdp_param_group.py (post_forward, wait_for_unshard)."""
    hidden, number = _hidden(shape, layers), layers.num_layers
    reentrant, found = layers.checkpoint is Checkpoint.REENTRANT, overhead or ShardingOverhead()
    each = _layers_of(shape, layers)
    again = [liveness.footprint(operators, ()) for operators in each]
    first_input = 0 if LAYER_INPUT in kept_tensors(each[0], ()) else hidden
    alone, output = found.backward - found.ahead, hidden * reentrant
    yield Segment(first_input * (not reentrant) - kept_input(shape, layers))
    for index, layer in enumerate(again):
        gathered = alone + found.again * (min(index + 3, number) - (index == number - 1))
        replay = layer.forward.num_bytes + hidden
        if index == number - 1 and not reentrant:
            replay = _last_replay(each[-1], layers.checkpoint)
        yield Segment(layer.kept, Peak(replay + gathered, "replay"))
        if reentrant and index == 0:
            yield Segment(first_input)
    for index in range(number - 1, -1, -1):
        layer, ahead = again[index], index * found.again + (0 if index else found.ahead)
        back = layer.held_backward if held else layer.backward
        yield Segment(-layer.kept, back.above(alone + ahead + output - layer.kept))
        if overhead is not None:
            yield Segment(0, Peak(hidden + found.exit - found.ahead + ahead, "reduce-scatter"))
            yield Segment(found.left - found.stays)
    yield Segment(-first_input)


def _last_replay(operators: tuple[Operator, ...], checkpoint: Checkpoint) -> int:
    """The most bytes of the replay of the last layer of a checkpoint by hooks, next to the
    gradients that came before it."""
    forward = liveness.footprint(operators, ()).forward
    if checkpoint is Checkpoint.EARLY_STOP:
        kept = kept_tensors(operators, ())
        forward = fold(liveness.walk_forward(computed_until_stop(operators), kept).events).peak
    return forward.num_bytes + liveness.gradients_before_replay(operators)


NEGLIGIBLE = MIB
"""Requests up to here come of the small pool, whose segments of 2 MiB leave little."""
Request = tuple[int, int]
"""The number of a name, and the bytes requested for it; 0 gives them back, and negative bytes are
requested and given back at once. A name that is live is not requested again, and one that is not is
not given back. Numbers from OTHER_STREAM on are requested on another stream."""
_Name = tuple[int, str]
"""The layer of the unit, and the storage's own name; of what a layer hands on, the next layer's
"input" and "gradient"."""
_Named = tuple[_Name, int]
INPUT, GRADIENT, STRIDE, OTHER_STREAM = 0, 1, 1 << 20, 1 << 19
"""Numbers of a unit's input and its gradient; those of the next unit lie a stride after, of what
another stream allocates half a stride."""
SENT, SENT_BEFORE, ROOT = OTHER_STREAM + 2, OTHER_STREAM + 2 - STRIDE, 3
"""Numbers of the all-gather's output of a unit's forward, which goes when the next unit's is there,
and of what is there in all units of a pass."""


@lru_cache(maxsize=4096)
def unit_requests(
    shape: RankShape, row: Row, overhead: ShardingOverhead | None = None, root: int = 0
) -> tuple[tuple[Request, ...], tuple[Request, ...], int]:
    """Forward and backward of one unit, the numbers of its names as if it were the first, and the
    bytes of gathered parameters that stay in between. What is gathered is one request of either
    stream a pass. root: see WorkingSet. Left out: requests up to NEGLIGIBLE bytes, the copies of
    autocast, graphs that are left, and what a checkpoint does with its input."""
    each, found = _layers_of(shape, row), overhead or ShardingOverhead()
    layers = Layers(()) if isinstance(row, str) else row
    forward, backward = (_checkpoint_passes if layers.whole else _passes)(each, layers)
    number, gathered = len(each), found.backward - found.ahead - root
    if number > 1:
        gathered += number * found.again - found.ahead
    gathering, ahead, stays, left, sending, before = ((-1, str(number)) for number in range(6))
    come = [(sending, found.sent), (before, 0), (stays, number * found.stays)]
    come.append((gathering, max(found.forward - found.sent - root, 0)))
    waits = tied_weight_gradient(shape) if row == "head" and overhead is not None else 0
    gone = [(gathering, 0), (ahead, 0), (stays, 0), (left, number * found.left + waits)]
    ends = (0, "input"), (0, "gradient"), (number, "input"), (number, "gradient")
    numbers = dict(zip(ends, (INPUT, GRADIENT, STRIDE + INPUT, STRIDE + GRADIENT), strict=True))
    numbers |= {sending: SENT, before: SENT_BEFORE}
    elsewhere = {ahead} | {
        (index, name) for index, one in enumerate(each) for o in one for name in o.second_stream
    }

    def number_of(name: _Name) -> int:
        return numbers.setdefault(name, len(numbers) + OTHER_STREAM * (name in elsewhere))

    there, back = (
        tuple([(number_of(name), size) for name, size in requests])
        for requests in (
            (*come, *forward, (gathering, 0)),
            ((gathering, gathered), (ahead, found.ahead), *backward, *gone),
        )
    )
    return there, back, number * found.stays


_Each = list[tuple[Operator, ...]]
"""The operators of each layer."""


def _passes(each: _Each, layers: Layers) -> tuple[list[_Named], list[_Named]]:
    """Layers that run forward one after another, and back; what modules offload waits on the host
    between the passes."""
    forward, backward = list[_Named](), list[_Named]()
    for index, operators in enumerate(each):
        found = liveness.footprint(operators, layers.runs)
        kept = kept_tensors(operators, layers.runs)
        away = offloaded_names(operators, layers.runs, layers.offloaded)
        moved = [(GIVE, name, NEGLIGIBLE + 1) for name in kept if name in away]  # of any size
        forward += _requests(index, (*found.there, *moved), operators)
        backward[:0] = _requests(index, found.back, operators)
    return forward, backward


def _checkpoint_passes(each: _Each, layers: Layers) -> tuple[list[_Named], list[_Named]]:
    """One checkpoint around all of them: its forward keeps the input alone, and its backward begins
    with the forward again; a reentrant one holds output and gradient to the end."""
    again, backward = _passes(each, Layers(()))
    enters: _Named = ((0, "input"), 0)
    leaves: list[_Named] = [((len(each), "input"), 0), ((len(each), "gradient"), 0)]
    held = leaves if layers.checkpoint is Checkpoint.REENTRANT else leaves[:1]
    forward = [
        one
        for index, operators in enumerate(each)
        for one in _requests(index, liveness.events_without_grad(operators), operators)
    ]
    if layers.input.offloaded:
        forward.append(enters)
    else:
        forward = [one for one in forward if one != enters]
    return forward, [*again, *(one for one in backward if one not in held), *leaves, enters]


def _requests(
    index: int, events: Iterable[Event], operators: tuple[Operator, ...]
) -> Iterator[_Named]:
    """What the allocator is asked for in the layer of that index: an operator's own bytes are
    requested and given back."""
    enters, leaves = liveness.handed(operators)
    ends = {
        enters: (index, "input"),
        f"gradient of {enters}": (index, "gradient"),
        leaves: (index + 1, "input"),
        f"gradient of {leaves}": (index + 1, "gradient"),
    }
    blocks = {one.name: one.workspace_block for one in operators if one.workspace_block}
    for kind, name, num_bytes in events:
        block = blocks.get(name.rpartition(" ")[2], 0) if kind == WORK else 0
        if num_bytes > block > 0:
            sizes = [*[block] * (num_bytes // block), num_bytes % block]
            named = [((index, f"{name} {at}"), size) for at, size in enumerate(sizes) if size]
            yield from (*named, *((one, 0) for one, _ in named))
        elif num_bytes > NEGLIGIBLE and kind != SPENT:
            size = num_bytes if kind == TAKE else -num_bytes if kind == WORK else 0
            yield ends.get(name) or (index, name), size
