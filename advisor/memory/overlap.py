"""The backward of one microbatch next to the forward of another, layer by layer.

Source: megatron-core 0.16.1 and 0.19.2 pipeline_parallel/combined_1f1b.py,
models/common/model_chunk_schedule_plan.py (run), models/gpt/fine_grained_callables.py. Each layer
is cut where its tokens leave: attention, norm, router and permutation; the exchange; the experts;
the way back. In turns: the one's attention forward, the other's experts backward, the one's
experts forward, the other's attention backward. What the one frees the other keeps, layer for
layer, and the ends of the model have nobody next to them. Left out: a stream of their own for the
exchange, whose frees wait (docs/reserved.md).
"""

from functools import lru_cache

from msgspec import Struct
from msgspec.structs import replace

from advisor.layers.operators import Module, Operator, total_bytes
from advisor.layers.shape import RankShape, tied_weight_gradient
from advisor.layers.transformer import LAYER_INPUT, transformer_layer
from advisor.memory.chunk import ChunkFootprint, sent_bytes
from advisor.memory.chunk_units import rows_of, unit_of
from advisor.memory.events import Peak, highest
from advisor.models.layer_kind import FeedForward
from advisor.plan.recompute_plan import RecomputePlan, Segment, kept_tensors


class _Layer(Struct, frozen=True):
    """Bytes of a layer, one microbatch: what its first half keeps, up to where tokens leave; the
    most that its forward has; what its backward has at its highest without that half and gradients
    between the halves; and what is held next to the other's first half: the gradient of the
    experts' output, which the schedule has while they go back, and what weight gradients put off
    are made of."""

    first_half: int
    forward: int
    backward: int
    held: int


def more_in_turns(shape: RankShape, plans: tuple[RecomputePlan, ...], *, delayed: bool) -> int:
    """The most bytes that the backward of a layer has more where the forward of another microbatch
    runs in turns with it, in the layers of any of `plans`: what that has kept up to its exchange
    while the experts go back, or all that its experts need where these have gone. delayed: weight
    gradients wait for the exchange, with what they are made of."""
    segments = {segment for plan in plans for segment in plan.segments if not segment.whole}
    layers = [_layer(shape, segment, delayed) for segment in segments]
    first = max((layer.first_half for layer in layers), default=0)
    running = max((layer.forward for layer in layers), default=0)
    return max((max(first + layer.held, running - layer.backward) for layer in layers), default=0)


def overlapped(
    alone: ChunkFootprint,
    shape: RankShape,
    plan: RecomputePlan,
    ends: tuple[bool, bool],
    layer: int,
) -> ChunkFootprint:
    """`alone`, the footprint of a chunk, where the backward of each layer has `layer` bytes more,
    in turns with the forward of another microbatch, and that of the ends the hidden states that
    begin it."""
    layers, hidden = layers_backward(shape, plan, *ends), shape.hidden(LAYER_INPUT).num_bytes
    point = f"{layers.point}, during the forward of another microbatch"
    backward = highest(alone.backward.above(hidden), Peak(layers.num_bytes + layer, point))
    return replace(alone, backward=backward)


@lru_cache(maxsize=8192)
def layers_backward(shape: RankShape, plan: RecomputePlan, first: bool, last: bool) -> Peak:
    """The highest backward of a layer of the chunk if all that layers and embedding keep stays
    meanwhile."""
    rows = rows_of(shape, plan, first, False)
    kept = sum(unit_of(shape, *row).kept * copies for row, copies in rows)
    waiting = 0 if last else sent_bytes(shape, plan)
    if first and last:
        waiting = tied_weight_gradient(shape)
    peaks = (unit_of(shape, segment).backward.peak for segment in plan.segments)
    return highest(Peak(), *(peak.above(kept + waiting) for peak in peaks))


@lru_cache(maxsize=1024)
def _layer(shape: RankShape, segment: Segment, delayed: bool) -> _Layer:
    (kind,) = segment.layers
    operators, unit = transformer_layer(shape, kind), unit_of(shape, segment)
    cut = _cut(operators, moe=kind.feed_forward is FeedForward.MOE)
    first = [tensor for one in operators[:cut] for tensor in (*one.inputs, *one.saved)]
    here, kept = {tensor.storage.name for tensor in first}, kept_tensors(operators, segment.runs)
    first_half = sum(tensor.num_bytes for name, tensor in kept.items() if name in here)
    leaving = operators[cut].inputs if cut < len(operators) else ()
    between = total_bytes((*leaving, *operators[-1].outputs))
    experts = [operator for operator in operators if operator.module is Module.EXPERT_FC2]
    held = sum(total_bytes(operator.outputs) for operator in experts)
    if delayed:
        held += sum(total_bytes(operator.saved) for operator in experts)
    return _Layer(
        first_half=first_half,
        forward=unit.highest_forward,
        backward=unit.highest_backward - first_half - between,
        held=held,
    )


def _cut(operators: tuple[Operator, ...], *, moe: bool) -> int:
    """The operator that sends the tokens away; in a dense layer the norm after attention."""
    for index, operator in enumerate(operators):
        leaves = operator.module is Module.DISPATCH and operator.forward_collectives
        if leaves if moe else operator.module is Module.PRE_MLP_LAYERNORM:
            return index
    return len(operators)
