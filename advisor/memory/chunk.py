"""One model chunk, one microbatch: its units in a row, folded or as requests."""

from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Final

from msgspec import Struct

from advisor.base.dtypes import DType
from advisor.layers.family import VisionEnd, family_of
from advisor.layers.operators import Module
from advisor.layers.shape import RankShape, embedding_weights, tied_weight_gradient
from advisor.layers.transformer import (
    LAYER_INPUT,
    trains_tower,
    transformer_layer,
    vision_ends,
    vision_operators,
)
from advisor.memory import chunk_units, liveness
from advisor.memory.events import Peak, Segment, highest, in_a_row
from advisor.memory.working_set import WorkingSet
from advisor.models.layer_kind import Role
from advisor.plan.recompute_plan import RecomputePlan, kept_tensors
from advisor.plan.recompute_plan import Segment as Layers


class ChunkFootprint(Struct, frozen=True, kw_only=True):
    """What one microbatch of one chunk keeps, and the most it needs in either pass (kept bytes
    included), above what was alive before its forward. left: what its backward leaves until the
    next forward of the chunk, whose peak with that is `forward_again`. unsure: by how much kept may
    differ, one sigma."""

    kept: int
    forward: Peak
    backward: Peak
    left: int = 0
    forward_again: Peak = Peak()
    unsure: int = 0


class AttentionMask(Struct, frozen=True):
    """Bytes of the boolean mask that comes with a microbatch: this rank's [b, 1, s / cp, s], and
    the whole one that it is cut from (megatron-core 0.19.2 utils.py, get_batch_on_this_cp_rank)."""

    num_bytes: int = 0
    uncut_bytes: int = 0

    @property
    def while_cut(self) -> int:
        """Bytes while the one is copied out of the other."""
        return self.num_bytes + self.uncut_bytes if self.uncut_bytes > self.num_bytes else 0


NO_MASK: Final = AttentionMask()


@lru_cache(maxsize=2048)
def chunk_footprint(
    shape: RankShape,
    plan: RecomputePlan,
    first: bool,
    last: bool,
    attention_mask: AttentionMask = NO_MASK,
    working_set: WorkingSet | None = None,
) -> ChunkFootprint:
    """Footprint of a chunk under `plan`; `first` holds the embedding, `last` norm, head and loss.

    attention_mask: on a chunk that gets one, or of no bytes. It lives through the forward, and
    until the backward where a checkpoint takes it as an argument. working_set: parameters and
    gradients that come and go with the units; static memory has those that stay throughout.

    Bytes of one rank and one microbatch; the logits of the last chunk, [seq_length / cp,
    micro_batch_size, vocabulary / tp], are among them. Source: megatron-core 0.16.1 schedules.py
    (deallocate_output_tensor), transformer_block.py; held against its peaks in tests/oracles."""
    if working_set is not None:
        shape = working_set.with_gradients(shape)
    units = chunk_units.rows_of(shape, plan, first, last, working_set)
    rows = [*_rows((chunk_units.unit_of(shape, *row), copies) for row, copies in units)]
    whole = any(segment.whole for segment in plan.segments)
    apart = _kept_apart(shape, plan) if whole else 0
    mask = attention_mask.num_bytes + apart
    replayed = {module for segment in plan.segments for r in segment.runs for module in r.modules}
    # a checkpoint of attention, or of all, has it as an argument
    kept_mask = mask if whole or Module.CORE_ATTENTION in replayed else apart
    kept = sum(copies * unit.kept for unit, copies, _ in rows) + kept_mask
    stays = sum(copies * unit.stays for unit, copies, _ in rows)
    left = sum(copies * unit.left for unit, copies, _ in rows)
    held = _held_embedding(shape, plan) + shape.shared_key_bytes * (not whole) if first else 0
    there = in_a_row((Segment(mask - stays), *_forward(rows, held, shape)))
    again = Peak()
    if left and working_set is None:
        again = in_a_row(
            (Segment(mask - stays + left), *_forward(rows, held, shape, again=True))
        ).peak
    back = in_a_row((Segment(kept), *_backward(rows, shape, plan, first, last)), last=True)
    peaks = [Peak(kept_mask), back.peak]
    if first and _predicts(plan):
        summed = 3 * _embedding_bytes(shape)
        peaks.append(Peak(kept_mask + summed, "sum of the embedding gradients"))
    if working_set is not None:
        peaks.append(Peak(kept_mask + working_set.step, "optimizer step"))
    elif first and last:
        peaks.append(Peak(kept_mask + tied_gradient_sum(shape), "sum of the tied gradients"))
    cut = Peak(attention_mask.while_cut, "slice of the attention mask")
    return ChunkFootprint(
        kept=kept,
        forward=highest(Peak(mask), there.peak, cut),
        backward=highest(*peaks),
        forward_again=again,
        left=0 if working_set is not None else left - (rows[0][0].gradient_left if rows else 0),
        unsure=plan.kept_bytes_sigma,
    )


def forward_without_grad(
    shape: RankShape,
    plan: RecomputePlan,
    first: bool,
    last: bool,
    working_set: WorkingSet | None = None,
) -> tuple[Peak, int]:
    """The most bytes of a forward of a chunk that keeps nothing, above weights and buffers, and the
    bytes of parameters that static memory has as gathered while the passes of a step run, and that
    nobody holds between steps. `plan`: of no recompute; ends as in chunk_footprint."""
    rows = chunk_units.rows_of(shape, plan, first, last, working_set)
    stays = sum(copies * overhead.stays for (_, overhead), copies in rows if overhead is not None)
    return highest(*(chunk_units.without_grad(shape, *row) for row, _ in rows)), stays


_Row = tuple[chunk_units.Unit, int, int]
"""A unit, how many equal ones follow each other, and the bytes that are next to each of them: what
the one before has on its way to the host, or back."""


def _rows(units: Iterable[tuple[chunk_units.Unit, int]]) -> Iterator[_Row]:
    """The last layer's copies are waited for, ahead of the head."""
    copied = 0
    for unit, copies in units:
        if unit.name in ("embedding", "head", "loss"):
            copied = 0
        if unit.away != copied and copies > 1:
            yield unit, 1, copied
            copies, copied = copies - 1, unit.away
        yield unit, copies, copied
        copied = unit.away


def _projector(rows: list[_Row]) -> int:
    """Index of the unit after a vision tower; 0 without one."""
    projectors = chunk_units.PROJECTORS
    return next((n for n, (unit, _, _) in enumerate(rows) if unit.name in projectors), 0)


def _forward(
    rows: list[_Row], embedded: int, shape: RankShape, *, again: bool = False
) -> Iterator[Segment]:
    """The units in order. embedded: the embedding's output, which a variable holds next to the
    layers after the first. again: what the backward before has left goes unit by unit. Variables
    hold tensors next to a vision tower, and some of it next to all layers after it."""
    first = _projector(rows) + 1
    inside, seen = (_tower_variables(shape), _vision_outputs(shape)) if first > 1 else (0, 0)
    for index, (unit, copies, copied) in enumerate(rows):
        variable = embedded if (index > first or copies > 1) and unit.name != "loss" else 0
        if first > 1 and unit.name not in ("embedding", "head", "loss"):
            variable = inside if index < first else variable + seen
        one = unit.forward.around(copied + variable)
        if again and unit.left:
            begin = Segment(0, unit.until_dispatch.above(copied + variable))
            one = in_a_row((begin, Segment(-unit.left), one))
        yield one.times(copies)


def _backward(
    rows: list[_Row], shape: RankShape, plan: RecomputePlan, first: bool, last: bool
) -> Iterator[Segment]:
    """The units from the last one back. One whose incoming gradient is held, by the chunk or by the
    graph that the unit after it has left, does not free it.

    The chunk holds: the gradient that comes from the next stage to the end ([seq_length / cp (/ tp
    under SP), micro_batch_size, hidden_size]); a tied output layer's until the embedding's is
    there, and so the embedding's from multi-token prediction; that of the layers' own inputs."""
    in_pool = shape.side is not None and shape.side.inside
    predicted = _embedding_bytes(shape) if first and _predicts(plan) else 0
    waiting, graph, ends = 0, 0, len(rows) - 1
    for index, (unit, copies, copied) in reversed([*enumerate(rows)]):
        more = copied + unit.joined - graph
        if index < ends and not unit.joined:
            more += predicted
        here = more + (0 if unit.name == "embedding" else waiting)  # which takes it
        yield (unit.held if graph or (index == ends and not last) else unit.backward).around(here)
        if index == ends and not last and not in_pool:
            yield Segment(sent_bytes(shape, plan))
        if unit.name not in ("embedding", "head", "loss"):
            waiting = shape.per_layer_input_bytes
        if (
            unit.name in chunk_units.PROJECTORS
        ):  # its gradient of the text's embeddings, next to the tower
            waiting = shape.hidden(LAYER_INPUT).num_bytes + _deepstack_kept(shape)
        if copies > 1:
            yield unit.backward.around(more + waiting - unit.gradient_left).times(copies - 1)
        if unit.name == "head" and first:
            yield Segment(tied_weight_gradient(shape))
        graph = unit.gradient_left


def _held_embedding(shape: RankShape, plan: RecomputePlan) -> int:
    """The embedding's output where a variable holds it next to the layers, and neither the first
    one nor what projects it (per_layer_input) keeps it anyway."""
    if shape.per_layer_input_bytes or not family_of(shape.model).holds_embedding:
        return 0
    first = next(segment for segment in plan.segments if not segment.sees)
    return 0 if _keeps_input(shape, first) else shape.hidden(LAYER_INPUT).num_bytes


def _keeps_input(shape: RankShape, layers: Layers) -> bool:
    """Whether the input of its first layer stays on the device until the backward."""
    if layers.whole:
        return not layers.input.offloaded
    return LAYER_INPUT in kept_tensors(transformer_layer(shape, layers.layers[0]), layers.runs)


def _vision_outputs(shape: RankShape) -> int:
    """Bytes that variables hold of a vision tower while the decoder runs forward: its last hidden
    states, the tokens of the images, a copy of them, and those of deepstack_layers twice
    (transformers 5.23.0, BaseModelOutputWithPooling in mm_encoder_outputs)."""
    tower, inner = shape.model.vision, shape.tower
    assert tower is not None
    one = inner.tokens // tower.patches_per_token * shape.model.hidden_size * shape.dtype.itemsize
    return inner.hidden(LAYER_INPUT).num_bytes + 2 * one * (1 + len(tower.deepstack_layers))


def _deepstack_kept(shape: RankShape) -> int:
    """Bytes that the projectors of deepstack_layers keep, and give to the decoder, as if all ran
    before the tower's blocks: they run next to them."""
    _, end = vision_ends(constant=not trains_tower(shape))
    operators = vision_operators(shape, end)
    deep = tuple(one for one in operators if one.name.startswith("deepstack"))
    given = (one.outputs[0].num_bytes for one in deep if one.name.endswith("linear_fc2"))
    return liveness.layer_kept_bytes(deep, ()) + sum(given) if deep else 0


def _tower_variables(shape: RankShape) -> int:
    """Bytes next to a vision tower's blocks in the forward: what came of the text's embedding, what
    projectors of deepstack_layers keep, learned positions in fp32, and pixels in 16 bits, unless
    these are kept anyway."""
    tower, inner = shape.model.vision, shape.tower
    assert tower is not None
    learned = 0 if tower.num_position_embeddings is None else inner.tokens * tower.hidden_size
    text = shape.hidden(LAYER_INPUT).num_bytes
    (pixels,) = vision_operators(shape, VisionEnd.PATCH_EMBEDDING)[0].inputs
    held = 0 if trains_tower(shape) else pixels.num_bytes
    return text + held + _deepstack_kept(shape) + learned * DType.FP32.itemsize


def _embedding_bytes(shape: RankShape) -> int:
    """Of the embedding's weights, or a gradient, in the type of the activations."""
    return embedding_weights(shape)[0].num_elements * shape.dtype.itemsize


def tied_gradient_sum(shape: RankShape) -> int:
    """The tied weight's gradient from both ends and their sum, when everything else is gone."""
    if embedding_weights(shape)[0].frozen or not shape.model.share_embeddings_and_output_weights:
        return 0
    return tied_weight_gradient(shape) + 2 * _embedding_bytes(shape)


def sent_bytes(shape: RankShape, plan: RecomputePlan) -> int:
    """Bytes that go on to the next chunk: hidden states, those of every depth of multi-token
    prediction together."""
    hidden = shape.hidden(LAYER_INPUT).num_bytes
    return hidden * (1 + (shape.model.mtp_num_layers or 0)) if _predicts(plan) else hidden


def _kept_apart(shape: RankShape, plan: RecomputePlan) -> int:
    """Of shared keys and values, bytes that checkpoints around layers keep from the embedding on,
    less the first one's input where the projection of all layers' own inputs keeps it as well."""
    twice = shape.per_layer_input_bytes and _keeps_input(shape, plan.segments[0])
    return shape.shared_key_bytes - (shape.hidden(LAYER_INPUT).num_bytes if twice else 0)


def _predicts(plan: RecomputePlan) -> bool:
    layers = (kind for segment in plan.segments for kind in segment.layers)
    return any(kind.role is Role.MULTI_TOKEN_PREDICTION for kind in layers)


Requests = tuple[tuple[int, tuple[chunk_units.Request, ...]], ...]
"""Those of each unit in order, with what its place adds to the numbers of names."""


class ChunkTrace(Struct, frozen=True):
    """Requests of one microbatch through one chunk. stays: bytes of the parameters among them that
    static memory has throughout."""

    forward: Requests
    backward: Requests
    stays: int = 0


@lru_cache(maxsize=1024)
def chunk_trace(
    shape: RankShape,
    plan: RecomputePlan,
    first: bool,
    last: bool,
    working_set: WorkingSet | None = None,
) -> ChunkTrace:
    """Requests of a chunk under `plan`, whose units chunk_footprint folds; what the chunk holds
    itself is left out. `first` holds the embedding, `last` norm, head and loss. working_set: what
    is gathered and reduced next to each unit, and what it leaves."""
    rows = chunk_units.rows_of(shape, plan, first, last, working_set)
    root = working_set.root if working_set is not None else 0
    each = [row for row, copies in rows for _ in range(copies)]
    units = [chunk_units.unit_requests(shape, *row, root) for row in each]
    there = [(place * chunk_units.STRIDE, forward) for place, (forward, _, _) in enumerate(units)]
    back = [(place * chunk_units.STRIDE, backward) for place, (_, backward, _) in enumerate(units)]
    hidden, end = shape.hidden(LAYER_INPUT).num_bytes, len(units) * chunk_units.STRIDE
    begins, gradient_gone = (chunk_units.ROOT, root), ((chunk_units.GRADIENT, 0),)
    gone = ((chunk_units.INPUT, 0), (chunk_units.ROOT, 0), (chunk_units.SENT_BEFORE, 0))
    entered = (chunk_units.INPUT, 0 if first else hidden)
    return ChunkTrace(
        ((0, (entered,)), (end, (begins,)), *there, (end, gone)),
        (
            (end, ((chunk_units.GRADIENT, 0 if last else hidden), begins)),
            *reversed(back),
            (end, gradient_gone),
            (0, gradient_gone),
        ),
        sum(stays for _, _, stays in units),
    )
