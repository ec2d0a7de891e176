"""The units of a chunk, and what each takes and gives back in either pass: a layer, a checkpoint
around layers, or an end of the model.

A unit begins by taking what the unit before hands to it, its input forward and its gradient
backward, and ends with what it keeps: what it hands on is the next one's.
"""

from collections.abc import Iterator
from functools import lru_cache
from itertools import groupby
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from advisor.layers.operators import Module, Operator
from advisor.layers.shape import RankShape
from advisor.layers.transformer import (
    LAYER_INPUT,
    embedding_operators,
    head_groups,
    transformer_layer,
)
from advisor.memory.events import Peak, Segment, at_point, fold, in_a_row, taken
from advisor.memory.liveness import (
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
        there = (
            taken(stays),
            self.forward.around(overhead.forward),
            at_point(self.entry + overhead.entry - self.forward.net, f"all-gather{self.place}"),
        )
        changed = replace(self, forward=in_a_row(there), stays=stays)
        if self.layers > 1:  # gathers one layer after another in between
            return changed
        reduces = at_point(self.entry + overhead.exit, f"reduce-scatter{self.place}")
        backward, held = (
            in_a_row((one.around(overhead.backward), reduces, taken(left - stays)))
            for one in (self.backward, self.held)
        )
        return replace(changed, backward=backward, held=held)

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


def rows_of(
    shape: RankShape, plan: RecomputePlan, first: bool, last: bool
) -> list[tuple[Row, int]]:
    """The units of a chunk in order, and how many equal ones follow each other; `first` holds the
    embedding, `last` norm, head and loss."""
    rows: list[tuple[Row, int]] = [("embedding", 1)] if first else []
    rows += [(layers, layers.copies) for layers in plan.segments]
    return rows + ([(name, 1) for name, _ in head_groups(shape)] if last else [])


def units_of(
    shape: RankShape,
    plan: RecomputePlan,
    first: bool,
    last: bool,
    working_set: WorkingSet | None = None,
) -> list[tuple[Unit, int]]:
    """The units of those rows, next to what is gathered for each."""
    rows = rows_of(shape, plan, first, last)
    if working_set is None:
        return [(unit_of(shape, row), copies) for row, copies in rows]
    each = [row for row, copies in rows for _ in range(copies)]
    alike = groupby(zip(each, working_set.of_each(each), strict=True))
    return [(unit_of(shape, *row), sum(1 for _ in equal)) for row, equal in alike]


def end_operators(shape: RankShape, name: str) -> tuple[Operator, ...]:
    """The operators of an end of the model."""
    return embedding_operators(shape) if name == "embedding" else dict(head_groups(shape))[name]


@lru_cache(maxsize=8192)
def unit_of(shape: RankShape, row: Row, overhead: ShardingOverhead | None = None) -> Unit:
    """One unit, by itself or next to what is gathered for it: an end of the model, a layer whose
    runs are replayed, or a checkpoint around all.

    A checkpoint keeps its input, [seq_length / cp (/ tp under SP), micro_batch_size, hidden_size]
    in the type of the activations; a layer what its operators save and no run replays, less what is
    offloaded. Sources: megatron-core 0.16.1 tensor_parallel/random.py and transformer_block.py,
    torch 2.13 utils/checkpoint.py.
    """
    if isinstance(row, str):
        unit = _end(shape, row)
    else:
        unit = _checkpoint(shape, row, overhead) if row.whole else _layer(shape, row)
    return unit if overhead is None else unit.gathered(overhead)


def kept_by_copy(shape: RankShape, layers: Layers) -> int:
    """Bytes that one copy of `layers` keeps of one microbatch, as its unit has them; found without
    a walk through its passes."""
    if layers.whole:
        return kept_input(shape, layers)
    operators = transformer_layer(shape, layers.layers[0])
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


def keeps_input(shape: RankShape, layers: Layers) -> bool:
    """Whether the input of its first layer stays on the device until the backward."""
    if layers.whole:
        return not layers.input.offloaded
    return LAYER_INPUT in kept_tensors(transformer_layer(shape, layers.layers[0]), layers.runs)


def _end(shape: RankShape, name: str) -> Unit:
    found = footprint(end_operators(shape, name), ())
    entry = shape.hidden(LAYER_INPUT).num_bytes if name == "head" else 0
    return _unit(name, found.kept, found.forward, found.backward, found.held_backward, entry=entry)


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
    return _unit(
        _NAMES[kind.role],
        found.kept - by_runs - by_modules,
        found.forward.above(by_modules),
        (found.held_backward if predicts else found.backward).above(by_modules),
        found.held_backward.above(by_modules),
        left=2 * hidden if replays_router and _holds_graph(shape, layers) else 0,
        entry=hidden,
        away=by_runs,
        joined=(shape.model.mtp_num_layers or 0) * hidden if predicts else 0,
    )


def _unit(
    name: str, kept: int, forward: Peak, backward: Peak, held: Peak, left: int = 0, **more: int
) -> Unit:
    """Of what a unit keeps and the most in its passes, all above what units before it keep."""
    place = _PLACES.get(name, f" in a {name}")
    return Unit(
        name=name,
        kept=kept,
        forward=Segment(kept, forward.above(0, place)),
        backward=Segment(left - kept, backward.above(-kept, place)),
        held=Segment(left - kept, held.above(-kept, place)),
        **more,
    )


def _holds_graph(shape: RankShape, layers: Layers) -> bool:
    """Whether Megatron's token dispatcher is in one of `layers`."""
    has_experts = any(kind.feed_forward is FeedForward.MOE for kind in layers.layers)
    return has_experts and not shape.model.transformer_impl.is_eager


def _checkpoint(shape: RankShape, layers: Layers, overhead: ShardingOverhead | None) -> Unit:
    """One checkpoint around all of `layers`."""
    hidden, number = shape.hidden(LAYER_INPUT).num_bytes, layers.num_layers
    reentrant = layers.checkpoint is Checkpoint.REENTRANT
    left = hidden if reentrant and _holds_graph(shape, layers) else 0
    name = f"checkpoint of {number} layer{'s' * (number != 1)}"
    kept, one_by_one = kept_input(shape, layers), not reentrant and number > 1
    gathers = overhead if one_by_one else None
    cached = sum(_cast_bytes(shape, kind) for kind in layers.layers) if shape.autocast else 0
    forward = in_a_row((taken(cached), *_without_grad(shape, layers), taken(kept)))
    backward, held = (
        in_a_row((*_again(shape, layers, gathers, held=held), taken(2 * left)))
        for held in (reentrant, True)
    )
    forward, backward, held = (
        Segment(one.net, one.peak.above(0, f" in a {name}")) for one in (forward, backward, held)
    )
    return Unit(
        name=name,
        kept=kept,
        forward=forward,
        backward=backward,
        held=held,
        layers=number if one_by_one else 1,
        entry=hidden,
        gradient_left=left,
    )


def _cast_bytes(shape: RankShape, kind: LayerKind) -> int:
    """Bytes of the weights of a layer's linear layers as they compute: autocast caches these 16-bit
    copies to the end of the forward."""
    weights = (weight for operator in transformer_layer(shape, kind) for weight in operator.weights)
    return sum(w.num_elements for w in weights if w.in_linear) * shape.dtype.itemsize


def _without_grad(shape: RankShape, layers: Layers) -> Iterator[Segment]:
    """The forward of a checkpoint, which keeps nothing of its layers; its input is alive next to
    all but the first, or next to all where a copy of it is on its way to the host."""
    hidden = shape.hidden(LAYER_INPUT).num_bytes
    for index, kind in enumerate(layers.layers):
        peak = fold(events_without_grad(transformer_layer(shape, kind))).peak
        yield at_point(peak.num_bytes + hidden * ((index > 0) + layers.input.more), peak.point)


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
    distributed/fsdp/_fully_shard/_fsdp_param_group.py (post_forward, wait_for_unshard).
    """
    hidden, number = shape.hidden(LAYER_INPUT).num_bytes, layers.num_layers
    reentrant, found = layers.checkpoint is Checkpoint.REENTRANT, overhead or ShardingOverhead()
    again = [footprint(transformer_layer(shape, kind), ()) for kind in layers.layers]
    first = kept_tensors(transformer_layer(shape, layers.layers[0]), ())
    first_input, output = 0 if LAYER_INPUT in first else hidden, hidden * reentrant
    alone = found.backward - found.ahead
    yield taken(first_input * (not reentrant) - kept_input(shape, layers))
    for index, replay in enumerate(_replays(shape, layers)):
        gathered = alone + found.again * (min(index + 3, number) - (index == number - 1))
        yield Segment(again[index].kept, Peak(replay + gathered, "replay"))
        if reentrant and index == 0:
            yield taken(first_input)
    for index in range(number - 1, -1, -1):
        layer, ahead = again[index], index * found.again + (0 if index else found.ahead)
        back = layer.held_backward if held else layer.backward
        yield Segment(-layer.kept, back.above(alone + ahead + output - layer.kept))
        if overhead is not None:
            yield at_point(hidden + found.exit - found.ahead + ahead, "reduce-scatter")
            yield taken(found.left - found.stays)
    yield taken(-first_input)


def _replays(shape: RankShape, layers: Layers) -> list[int]:
    """The most bytes of each layer's replay, next to the gradients that wait: that of the output,
    or in the last layer of a checkpoint by hooks those that came before it."""
    hidden, each = shape.hidden(LAYER_INPUT), [transformer_layer(shape, k) for k in layers.layers]
    found = [footprint(one, ()).forward.num_bytes + hidden.num_bytes for one in each]
    if layers.checkpoint is not Checkpoint.REENTRANT:
        last = footprint(each[-1], ()).forward
        if layers.checkpoint is Checkpoint.EARLY_STOP:
            kept = kept_tensors(each[-1], ())
            last = fold(walk_forward(computed_until_stop(each[-1]), kept).events).peak
        found[-1] = last.num_bytes + gradients_before_replay(each[-1])
    return found
