"""The units of a chunk, and what each takes and gives back in either pass: a layer, a checkpoint
around layers, or an end of the model.

A unit begins by taking what the unit before hands to it, its input forward and its gradient
backward, and ends with what it keeps: what it hands on is the next one's.
"""

from collections.abc import Iterator
from functools import lru_cache
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from advisor.layers.operators import Module
from advisor.layers.shape import RankShape
from advisor.layers.transformer import (
    LAYER_INPUT,
    embedding_operators,
    head_groups,
    transformer_layer,
)
from advisor.memory.events import Peak, Segment, at_point, fold, in_a_row, taken
from advisor.memory.liveness import (
    LayerFootprint,
    events_without_grad,
    footprint,
    gradients_before_replay,
    layer_kept_bytes,
    walk_forward,
)
from advisor.memory.working_set import ShardingOverhead, WorkingSet
from advisor.models.layer_kind import FeedForward, LayerKind, Role
from advisor.plan.recompute_plan import (
    Checkpoint,
    RecomputePlan,
    computed_until_stop,
    kept_tensors,
    offloaded_bytes,
)
from advisor.plan.recompute_plan import Segment as Layers


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
        stays, left = self.layers * overhead.stays, self.layers * overhead.left
        forward = (
            taken(stays),
            self.forward.around(overhead.forward),
            at_point(self.entry + overhead.entry - self.forward.net, "all-gather" + self.place),
        )
        if self.layers > 1:  # gathers one layer after another in between
            return replace(self, forward=in_a_row(forward), stays=stays)
        reduces = at_point(self.entry + overhead.exit, "reduce-scatter" + self.place)
        backward, held = (
            in_a_row((one.around(overhead.backward), reduces, taken(left - stays)))
            for one in (self.backward, self.held)
        )
        return replace(self, forward=in_a_row(forward), backward=backward, held=held, stays=stays)

    @property
    def place(self) -> str:
        """Where an operator of the unit is, after its name."""
        return _PLACES.get(self.name, f" in a {self.name}")


_NAMES: Final = {
    Role.LAYER: "layer",
    Role.FINAL_LAYERNORM: "final norm",
    Role.MULTI_TOKEN_PREDICTION: "multi-token prediction",
}
_PLACES: Final = {
    "multi-token prediction": " in multi-token prediction",
    **dict.fromkeys(("embedding", "final norm", "head", "loss"), ""),
}
"""Units whose operators say where they are, and one that has no article."""


def _unit(
    name: str, kept: int, forward: Peak, backward: Peak, held: Peak, *, left: int = 0
) -> Unit:
    """Of what a unit keeps and the most in its passes, all above what units before it keep."""
    place = _PLACES.get(name, f" in a {name}")
    return Unit(
        name=name,
        kept=kept,
        forward=Segment(kept, forward.above(0, place)),
        backward=Segment(left - kept, backward.above(-kept, place)),
        held=Segment(left - kept, held.above(-kept, place)),
    )


def units_of(
    shape: RankShape,
    plan: RecomputePlan,
    first: bool,
    last: bool,
    working_set: WorkingSet | None = None,
) -> list[tuple[Unit, int]]:
    """The units of a chunk in order, and how many equal ones follow each other; `first` holds the
    embedding, `last` norm, head and loss."""
    if working_set is None:
        units = [(unit_of(shape, layers), layers.copies) for layers in plan.segments]
    else:
        units = _gathered_layers(shape, plan, working_set)
    if first:
        beside = working_set and working_set.embedding
        units.insert(0, (_end(shape, "embedding", beside), 1))
    if last:
        named = {"head": working_set.head, "loss": working_set.loss} if working_set else {}
        units += [(_end(shape, name, named.get(name)), 1) for name, _ in head_groups(shape)]
    return units


def _gathered_layers(
    shape: RankShape, plan: RecomputePlan, found: WorkingSet
) -> list[tuple[Unit, int]]:
    """The first and the last unit of layers have an overhead of their own."""
    total = sum(layers.copies for layers in plan.segments)
    units, done = [], 0
    for layers in plan.segments:
        for number in _split(layers.copies, starts=done == 0, ends=done + layers.copies == total):
            ends = {1: found.first_layer, total: found.last_layer}
            overhead = ends[done + 1] if done + 1 in ends and number == 1 else found.layer
            units.append((unit_of(shape, layers, overhead), number))
            done += number
    return units


def _split(copies: int, *, starts: bool, ends: bool) -> Iterator[int]:
    """`copies` with the first and the last of all by themselves."""
    alone = min(copies, starts + ends)
    if starts and alone:
        yield 1
    if copies > alone:
        yield copies - alone
    if ends and alone - starts > 0:
        yield 1


@lru_cache(maxsize=8192)
def _end(shape: RankShape, name: str, overhead: ShardingOverhead | None) -> Unit:
    groups = {"embedding": embedding_operators(shape)} if name == "embedding" else None
    layer = footprint((groups or dict(head_groups(shape)))[name], ())
    unit = _unit(name, layer.kept, layer.forward, layer.backward, layer.held_backward)
    if name == "head":
        unit = replace(unit, entry=shape.hidden(LAYER_INPUT).num_bytes)
    return unit if overhead is None else unit.gathered(overhead)


@lru_cache(maxsize=8192)
def unit_of(shape: RankShape, layers: Layers, overhead: ShardingOverhead | None = None) -> Unit:
    """One copy of `layers`, by itself or next to what is gathered for it: a layer whose runs are
    replayed, or a checkpoint around all.

    A checkpoint keeps its input, [seq_length / cp (/ tp under SP), micro_batch_size, hidden_size]
    in the type of the activations; a layer what its operators save and no run replays, less what is
    offloaded. Sources: megatron-core 0.16.1 tensor_parallel/random.py and transformer_block.py,
    torch 2.13 utils/checkpoint.py.
    """
    unit = _checkpoint(shape, layers, overhead) if layers.whole else _layer(shape, layers)
    return unit if overhead is None else unit.gathered(overhead)


def kept_by_copy(shape: RankShape, layers: Layers) -> int:
    """Bytes that one copy of `layers` keeps of one microbatch, as its unit has them; found without
    a walk through its passes."""
    if layers.whole:
        return kept_input(shape, layers)
    (kind,) = layers.layers
    operators = transformer_layer(shape, kind)
    kept = layer_kept_bytes(operators, layers.runs)
    if layers.moves_to_host:
        kept -= offloaded_bytes(operators, layers.runs, layers.offloaded)
    return kept


def kept_input(shape: RankShape, layers: Layers) -> int:
    """Bytes on the device of the one input that a checkpoint keeps: [seq_length / cp (/ tp under
    SP), micro_batch_size, hidden_size], cut by TP once more where distribute_saved_activations
    does, none where it waits on the host."""
    if layers.input.offloaded:
        return 0
    hidden = shape.hidden(LAYER_INPUT).num_bytes
    return -(-hidden // shape.tp) if layers.shards_input else hidden


def _layer(shape: RankShape, layers: Layers) -> Unit:
    """A layer by itself. What its modules offload has as much again on its way in either pass; what
    its runs do is on its way while the next layer runs."""
    (kind,) = layers.layers
    operators, runs = transformer_layer(shape, kind), layers.runs
    found, hidden = footprint(operators, runs), shape.hidden(LAYER_INPUT).num_bytes
    by_runs = offloaded_bytes(operators, runs, frozenset())
    by_modules = offloaded_bytes(operators, runs, layers.offloaded) - by_runs
    predicts = kind.role is Role.MULTI_TOKEN_PREDICTION
    replays_router = any(Module.ROUTER in run.modules for run in runs)
    unit = _unit(
        _NAMES[kind.role],
        found.kept - by_runs - by_modules,
        found.forward.above(by_modules),
        (found.held_backward if predicts else found.backward).above(by_modules),
        found.held_backward.above(by_modules),
        left=2 * hidden if replays_router and _holds_graph(shape, layers) else 0,
    )
    joined = (shape.model.mtp_num_layers or 0) * hidden if predicts else 0
    return replace(unit, entry=hidden, away=by_runs, joined=joined)


def _holds_graph(shape: RankShape, layers: Layers) -> bool:
    """Whether Megatron's token dispatcher is in one of `layers`."""
    has_experts = any(kind.feed_forward is FeedForward.MOE for kind in layers.layers)
    return has_experts and not shape.model.transformer_impl.is_eager


def _checkpoint(shape: RankShape, layers: Layers, overhead: ShardingOverhead | None) -> Unit:
    """One checkpoint around all of `layers`."""
    hidden, number = shape.hidden(LAYER_INPUT).num_bytes, layers.num_layers
    reentrant = layers.checkpoint is Checkpoint.REENTRANT
    cached = sum(_cast_bytes(shape, kind) for kind in layers.layers) if shape.autocast else 0
    left = hidden if reentrant and _holds_graph(shape, layers) else 0
    unit = Unit(
        name=f"checkpoint of {number} layer{'s' * (number != 1)}",
        kept=kept_input(shape, layers),
        forward=Segment(),
        backward=Segment(),
        held=Segment(),
        layers=1 if reentrant else number,
        entry=hidden,
        gradient_left=left,
    )
    forward = in_a_row((*_without_grad(shape, layers), taken(unit.kept)))
    if reentrant:
        held = backward = in_a_row((*_reentrant(shape, layers), taken(2 * left)))
    else:
        ways = (in_a_row(_hooked(shape, layers, overhead, held=held)) for held in (False, True))
        backward, held = ways
    return replace(
        unit,
        forward=in_a_row((taken(cached), _placed(forward, unit, layers.input.beside * hidden))),
        backward=_placed(backward, unit),
        held=_placed(held, unit),
    )


def _placed(segment: Segment, unit: Unit, beside: int = 0) -> Segment:
    return Segment(segment.net, segment.peak.above(beside, unit.place))


def _cast_bytes(shape: RankShape, kind: LayerKind) -> int:
    """Bytes of the weights of a layer's linear layers as they compute: autocast caches these 16-bit
    copies to the end of the forward."""
    weights = (weight for operator in transformer_layer(shape, kind) for weight in operator.weights)
    return sum(w.num_elements for w in weights if w.in_linear) * shape.dtype.itemsize


def _without_grad(shape: RankShape, layers: Layers) -> Iterator[Segment]:
    """The forward of a checkpoint, which keeps nothing of its layers; its input is alive next to
    all but the first."""
    hidden = shape.hidden(LAYER_INPUT).num_bytes
    for index, kind in enumerate(layers.layers):
        peak = fold(events_without_grad(transformer_layer(shape, kind))).peak
        yield Segment(0, peak.above(hidden if index else 0))


def _layers_of(shape: RankShape, layers: Layers) -> list[LayerFootprint]:
    return [footprint(transformer_layer(shape, kind), ()) for kind in layers.layers]


def _input_beside(shape: RankShape, kind: LayerKind) -> int:
    """Bytes of a checkpoint's input that its first layer does not keep itself."""
    kept = kept_tensors(transformer_layer(shape, kind), ())
    return 0 if LAYER_INPUT in kept else shape.hidden(LAYER_INPUT).num_bytes


def _reentrant(shape: RankShape, layers: Layers) -> Iterator[Segment]:
    """The backward of a checkpoint that is an autograd function (tensor_parallel/random.py
    CheckpointFunction, torch utils/checkpoint.py CheckpointFunction).

    The gathered input replaces what was kept of it. The forward of all layers runs again, while the
    incoming gradient waits; they then keep everything. The replayed output and the incoming
    gradient are held to the end, and the layers go back.
    """
    hidden, beside = shape.hidden(LAYER_INPUT).num_bytes, _input_beside(shape, layers.layers[0])
    again = _layers_of(shape, layers)
    yield taken(-kept_input(shape, layers))
    for index, layer in enumerate(again):
        yield Segment(layer.kept, Peak(layer.forward.num_bytes + hidden, "replay"))
        if index == 0:
            yield taken(beside)
    for layer in reversed(again):
        yield Segment(-layer.kept, layer.held_backward.above(hidden - layer.kept))
    yield taken(-beside)


def _hooked(
    shape: RankShape, layers: Layers, overhead: ShardingOverhead | None, *, held: bool
) -> Iterator[Segment]:
    """The backward of a checkpoint by saved-tensor hooks, which keeps its input until it is
    through.

    The first tensor that is needed has all layers run forward again, the last one up to its last
    saved tensor where the replay stops early, while the gradients wait that came so far; neither
    the output nor its gradient is held by the checkpoint itself.

    Around several layers that are gathered one after another: the last one's parameters are there
    already, the all-gather of the one before has begun, that of the running one lives to the
    layer's end, and parameters stay until their layer has gone back. Source: torch 2.13
    distributed/fsdp/_fully_shard/_fsdp_param_group.py (post_forward, wait_for_unshard).
    """
    hidden, beside = shape.hidden(LAYER_INPUT).num_bytes, _input_beside(shape, layers.layers[0])
    again, number = _layers_of(shape, layers), layers.num_layers
    found = overhead if overhead and number > 1 else ShardingOverhead()
    alone = found.backward - found.ahead
    yield taken(beside - kept_input(shape, layers))
    for index, layer in enumerate(again):
        runs_last = index == number - 1
        gathered = alone + found.again * (min(index + 3, number) - runs_last)
        replay, waiting = layer.forward, hidden
        if runs_last:
            replay, waiting = _last_replay(shape, layers)
        yield Segment(layer.kept, Peak(replay.num_bytes + waiting + gathered, "replay"))
    for index in range(number - 1, -1, -1):
        layer, ahead = again[index], index * found.again + (0 if index else found.ahead)
        back = layer.held_backward if held else layer.backward
        yield Segment(-layer.kept, back.above(alone + ahead - layer.kept))
        if found is overhead:
            yield at_point(hidden + found.exit - found.ahead + ahead, "reduce-scatter")
            yield taken(found.left - found.stays)
    yield taken(-beside)


def _last_replay(shape: RankShape, layers: Layers) -> tuple[Peak, int]:
    """Of the last layer of a checkpoint by hooks the replay, up to its last saved tensor where it
    stops early, and the gradients that came before it."""
    operators = transformer_layer(shape, layers.layers[-1])
    waiting = gradients_before_replay(operators)
    if layers.checkpoint is not Checkpoint.EARLY_STOP:
        return footprint(operators, ()).forward, waiting
    kept = kept_tensors(operators, ())
    return fold(walk_forward(computed_until_stop(operators), kept).events).peak, waiting


def keeps_input(shape: RankShape, layers: Layers) -> bool:
    """Whether the input of its first layer stays on the device until the backward."""
    if layers.whole:
        return not layers.input.offloaded
    return LAYER_INPUT in kept_tensors(transformer_layer(shape, layers.layers[0]), layers.runs)
