"""Which layers each pipeline stage holds, chunk by chunk.

Source: megatron-core 0.16.1 transformer/transformer_block.py (get_num_layers_to_build) and
transformer/pipeline_parallel_layer_layout.py.
"""

import re
from collections import Counter
from collections.abc import Callable
from functools import lru_cache
from typing import Final, TypeVar

from msgspec import Struct

from advisor.base.errors import UserError, nearest_divisors
from advisor.base.record import defaults
from advisor.base.units import whole_number
from advisor.job.layout import END_STAGES, EVEN, ParallelLayout
from advisor.models.layer_kind import LayerKind, Role
from advisor.models.layer_kinds import hybrid_segments
from advisor.models.spec import ModelSpec

T = TypeVar("T")


class ModelChunk(Struct, frozen=True):
    """Consecutive layers of one virtual pipeline stage, and the ends of the model it holds.

    Before and after the layers of the decoder there may be others, by their role (see LayerKind).
    """

    layers: tuple[LayerKind, ...]
    embedding: bool = False
    head: bool = False

    @property
    def num_layers(self) -> int:
        """Layers of the decoder."""
        return sum(kind.role is Role.LAYER for kind in self.layers)

    @property
    def predicts(self) -> bool:
        """Whether it holds the layers of multi-token prediction."""
        return any(kind.role is Role.MULTI_TOKEN_PREDICTION for kind in self.layers)


Stages = tuple[tuple[ModelChunk, ...], ...]
"""Chunks by pipeline stage, then by virtual stage."""


class Stage(Struct, frozen=True):
    """What one stage holds, as indices into the distinct chunks and layer groups of a Pipeline.

    chunks: its distinct chunks. classes: for every chunk in order, its index into `chunks`.
    groups: how often it holds each group of layers.
    """

    chunks: tuple[int, ...]
    classes: tuple[int, ...]
    groups: tuple[tuple[int, int], ...]


class Pipeline:
    """The distinct parts of a job's stages: what is alike is evaluated once.

    chunks: all different chunks. groups: the different tuples of layers among them; group_of gives
    that of each chunk, copies how often the whole pipeline holds each. stages: what each stage
    holds of both; like: of each stage, the number of the first one that holds the same.
    """

    def __init__(self, stages: Stages) -> None:
        self.chunks = tuple(dict.fromkeys(chunk for held in stages for chunk in held))
        self.groups = tuple(dict.fromkeys(chunk.layers for chunk in self.chunks))
        self.group_of = tuple(self.groups.index(chunk.layers) for chunk in self.chunks)
        self.stages = tuple(self._stage(held) for held in stages)
        numbers = Counter(
            group for held in self.stages for group, n in held.groups for _ in range(n)
        )
        self.copies = tuple(numbers[group] for group in range(len(self.groups)))
        first: dict[Stage, int] = {}
        self.like = tuple(first.setdefault(stage, k) for k, stage in enumerate(self.stages))
        self._first = tuple(first.values())

    def of_each_stage(self, make: Callable[[int], T]) -> list[T]:
        """What `make` gives for the number of each stage; stages that hold the same share it."""
        found = {number: make(number) for number in self._first}
        return [found[number] for number in self.like]

    def _stage(self, held: tuple[ModelChunk, ...]) -> Stage:
        numbers = [self.chunks.index(chunk) for chunk in held]
        distinct = tuple(dict.fromkeys(numbers))
        groups = Counter(self.group_of[number] for number in numbers)
        return Stage(
            distinct, tuple(distinct.index(number) for number in numbers), tuple(groups.items())
        )


def pipeline_stages(model: ModelSpec, layout: ParallelLayout) -> Stages:
    """Chunks of every stage. UserError where the layers cannot be split so. Layers go through the
    first chunk of every stage, then through the second, and so on."""
    return _pipeline_stages(model, _split(layout))


def pipeline_of(model: ModelSpec, layout: ParallelLayout) -> Pipeline:
    """The distinct parts of `pipeline_stages`; layouts that split the layers alike share them."""
    return _pipeline(model, _split(layout))


def _split(layout: ParallelLayout) -> ParallelLayout:
    """What of a layout says how layers are split, and nothing else."""
    return ParallelLayout(**{name: getattr(layout, name) for name in SPLIT})


SPLIT = ("pipeline_model_parallel_size", "virtual_pipeline_model_parallel_size", *EVEN)
"""Fields of a layout that say how layers are split."""


@lru_cache(maxsize=512)
def _pipeline(model: ModelSpec, split: ParallelLayout) -> Pipeline:
    return Pipeline(_pipeline_stages(model, split))


@lru_cache(maxsize=4096)
def _pipeline_stages(model: ModelSpec, layout: ParallelLayout) -> Stages:
    counts = _layers_of_chunks(model, layout)
    pp, chunks, offset = layout.pipeline_model_parallel_size, [], 0
    mtp_chunk = _chunk_of_mtp(layout, len(counts))
    for index, count in enumerate(counts):
        layers = model.layer_kinds[offset : offset + count]
        if index == 0:
            layers = (*model.tower_kinds, *layers)
        offset += count
        if model.mtp_num_layers is not None:
            layers += _AFTER_LAST_LAYER if count and offset == model.num_layers else ()
            # one layer a depth, of the kind of the decoder's last layer
            depth = model.layer_kinds[-1]._replace(role=Role.MULTI_TOKEN_PREDICTION)
            layers += (depth,) * model.mtp_num_layers if index == mtp_chunk else ()
        chunks.append(ModelChunk(layers, index == 0, index == len(counts) - 1))
    return tuple(tuple(chunks[stage::pp]) for stage in range(pp))


_AFTER_LAST_LAYER = (LayerKind(role=Role.FINAL_LAYERNORM),)
"""The final norm: with multi-token prediction it stands after the last layer of the decoder, not
before the output layer (transformer_block.py has_final_layernorm_in_this_stage)."""


def _chunk_of_mtp(layout: ParallelLayout, chunks: int) -> int:
    """Index of the chunk with all multi-token-prediction layers: the last one unless the layout's
    text says otherwise."""
    texts = chunk_texts(layout.pipeline_model_parallel_layout)
    return next((index for index, chunk in enumerate(texts) if "m" in chunk), chunks - 1)


def most_layers_of_chunk(model: ModelSpec, layout: ParallelLayout) -> int:
    """Layers of the largest chunk: beyond it, recompute_num_layers changes nothing."""
    return max(chunk.num_layers for chunks in pipeline_stages(model, layout) for chunk in chunks)


def _layers_of_chunks(model: ModelSpec, layout: ParallelLayout) -> list[int]:
    """Layers of every chunk in the order in which they run."""
    pattern = model.hybrid_layer_pattern
    if pattern is not None and "|" in pattern:
        return _from_pattern(pattern, layout)
    if pattern is not None:
        # its | alone make virtual stages and layouts (0.19.0 training/arguments.py)
        relation = "cannot be combined with hybrid_layer_pattern"
        _refuse_given(layout, _NOT_OF_HYBRID, relation, "write | in the pattern where a stage ends")
    if layout.pipeline_model_parallel_layout:
        return _from_text(model, layout)
    if _counted(layout):  # Megatron takes one way of splitting (transformer_config.py)
        relation = f"cannot be combined with {' or '.join(_COUNTED)}"
        _refuse_given(layout, END_STAGES, relation, "use one or the other")
    per_stage = _layers_of_stages(model, layout)
    vpp = layout.virtual_pipeline_model_parallel_size
    for count in per_stage:
        if count % vpp:
            relation = f"must divide the {count} layers of a stage{_counted(layout)}"
            raise _refused(layout, _VPP, relation, f"nearest: {nearest_divisors(count, vpp)}")
    counts = [count // vpp for count in per_stage] * vpp
    counts[0] -= layout.account_for_embedding_in_pipeline_split
    counts[-1] -= layout.account_for_loss_in_pipeline_split
    return counts


def _refuse_given(
    layout: ParallelLayout, names: tuple[str, ...], relation: str, instead: str
) -> None:
    """UserError where one of these fields has another value than its default."""
    usual = defaults(ParallelLayout)
    for name in names:
        if getattr(layout, name) != usual[name]:
            raise _refused(layout, name, relation, instead)


def _refused(layout: ParallelLayout, name: str, relation: str, nearest: str = "") -> UserError:
    return UserError(f"layout.{name}", getattr(layout, name), relation, nearest)


_VPP: Final = "virtual_pipeline_model_parallel_size"
_TEXT: Final = "pipeline_model_parallel_layout"
_COUNTED: Final = "account_for_embedding_in_pipeline_split", "account_for_loss_in_pipeline_split"
_NOT_OF_HYBRID: Final = (_VPP, _TEXT, *_COUNTED)


def _from_pattern(pattern: str, layout: ParallelLayout) -> list[int]:
    """Layers between the | of a hybrid pattern (0.19.0 hybrid_layer_allocation.py)."""
    segments, field = hybrid_segments(pattern), "model.hybrid_layer_pattern"
    for other in layout.uneven_split_fields:
        raise UserError(field, pattern, f"cannot be combined with {other}", "give one")
    if len(segments) != layout.num_model_chunks:
        relation = f"has {len(segments)} segments, but PP x VPP = {layout.num_model_chunks}"
        raise UserError(field, pattern, relation)
    return [len(segment) for segment in segments]


def _layers_of_stages(model: ModelSpec, layout: ParallelLayout) -> list[int]:
    """Layers of every stage; embedding and loss are counted as layers where the layout says so."""
    pp = layout.pipeline_model_parallel_size
    first = layout.num_layers_in_first_pipeline_stage
    last = layout.num_layers_in_last_pipeline_stage
    left = model.num_layers - (first or 0) - (last or 0)
    left += layout.account_for_embedding_in_pipeline_split
    left += layout.account_for_loss_in_pipeline_split
    stages = pp - (first is not None) - (last is not None)
    if stages < 0 or left < 0 or (stages == 0) != (left == 0) or (stages and left % stages):
        raise _uneven(model, layout, left, stages)
    each = [left // stages] * stages if stages else []
    return [*([first] if first else []), *each, *([last] if last else [])]


def _uneven(model: ModelSpec, layout: ParallelLayout, left: int, stages: int) -> UserError:
    vpp = layout.virtual_pipeline_model_parallel_size
    if layout.splits_evenly and vpp > 1:
        text = f", or write the chunks in {_FIELD}" if stages * vpp <= model.num_layers else ""
        relation = f"PP x VPP = {stages * vpp} must divide num_layers = {model.num_layers}"
        nearest = f"leave VPP out for a balanced split over the stages{text}"
        return _refused(layout, _VPP, relation, nearest)
    if layout.splits_evenly:
        relation = f"must divide num_layers = {model.num_layers}"
        nearest = f"nearest: {nearest_divisors(model.num_layers, stages)}"
    else:
        relation, nearest = _unequal(model, layout, left, stages)
    return _refused(layout, "pipeline_model_parallel_size", relation, nearest)


def _unequal(model: ModelSpec, layout: ParallelLayout, left: int, stages: int) -> tuple[str, str]:
    """Why `left` layers do not divide over the `stages` that have no number of their own, and which
    degrees would do."""
    ends = {
        "first": layout.num_layers_in_first_pipeline_stage,
        "last": layout.num_layers_in_last_pipeline_stage,
    }
    given = [name for name, layers in ends.items() if layers is not None]
    named, held = " and ".join(given), model.num_layers - left
    if stages < 0:
        return f"needs 2 stages, as the {named} stage are given", "nearest: 2"
    if not stages:
        return f"has {held} layers in the {named} stage, but num_layers = {model.num_layers}", ""
    if left <= 0:
        taken = f"{held} of {model.num_layers} in the {named} stage"
        return f"leaves no layers for {stages} stages, with {taken}", ""
    what = f"the other {left}" if given else str(left)
    relation = f"must split {what} layers{_counted(layout)} evenly over {stages} stages"
    return relation, f"nearest: {nearest_divisors(left, stages, len(given))}"


def _counted(layout: ParallelLayout) -> str:
    named = ["embedding"] * layout.account_for_embedding_in_pipeline_split
    named += ["loss"] * layout.account_for_loss_in_pipeline_split
    return f" ({' and '.join(named)} counted)" if named else ""


_FIELD: Final = f"layout.{_TEXT}"
_MOST_LAYERS: Final = 100_000


def _repeated(found: re.Match[str]) -> str:
    """A repeat written out, though no further than it takes to be refused."""
    count = whole_number(found[2])
    count = _MOST_LAYERS + 1 if count is None else min(count, _MOST_LAYERS + 1)
    return str(found[1]) * count


def chunk_texts(text: str) -> list[str]:
    """Chunks of a pipeline_model_parallel_layout, e.g. "Ettt|(tt|)*29,m|L", repeats written out. E
    is the embedding, t a transformer layer, m a multi-token-prediction layer, L the loss."""
    text = text.replace(",", "")
    for pattern in (r"\(([^)]+)\)\*(\d+)", r"(.)\*(\d+)"):
        text = re.sub(pattern, _repeated, text)
        if len(text) > _MOST_LAYERS:
            raise UserError(_FIELD, f"{text[:20]}…", f"must have at most {_MOST_LAYERS:,} layers")
    unknown = sorted(set(text) - set("EtmL|"))
    if unknown:
        raise UserError(
            _FIELD, text, f"must not hold {unknown[0]!r}", "use E, t, m, L, | and (...)*n"
        )
    return text.split("|")


def holds_layers(model: ModelSpec, text: str) -> bool:
    """Whether a pipeline_model_parallel_layout is of as many layers of both kinds as `model`."""
    flat = "".join(chunk_texts(text))
    return (flat.count("t"), flat.count("m")) == (model.num_layers, model.mtp_num_layers or 0)


def _from_text(model: ModelSpec, layout: ParallelLayout) -> list[int]:
    chunks = chunk_texts(layout.pipeline_model_parallel_layout)
    for field in layout.uneven_split_fields:
        if field != _TEXT:
            raise _refused(layout, _TEXT, f"cannot be combined with {field}", "give one")
    if len(chunks) != layout.num_model_chunks:
        relation = f"has {len(chunks)} chunks, but PP x VPP = {layout.num_model_chunks}"
        raise _refused(layout, _TEXT, relation)
    flat = "".join(chunks)
    if not flat.startswith("E") or not flat.endswith("L") or flat.count("E") + flat.count("L") != 2:
        raise _refused(layout, _TEXT, "must begin with its only E and end with its only L")
    _check_mtp(model, layout, chunks)
    if flat.count("t") != model.num_layers:
        relation = f"has {flat.count('t')} layers (t), but the model has {model.num_layers}"
        raise _refused(layout, _TEXT, relation)
    return [chunk.count("t") for chunk in chunks]


def _check_mtp(model: ModelSpec, layout: ParallelLayout, chunks: list[str]) -> None:
    """All multi-token-prediction layers stand in one chunk after the last layer, in the last
    virtual stage (pipeline_parallel_layer_layout.py validate_layer_layout)."""
    flat, wanted = "".join(chunks), model.mtp_num_layers or 0
    if (found := flat.count("m")) != wanted:
        relation = f"has {found} MTP layers (m), but mtp_num_layers = {model.mtp_num_layers}"
        raise _refused(layout, _TEXT, relation)
    first = next((index for index, chunk in enumerate(chunks) if "m" in chunk), None)
    if first is None:
        return
    early = first < len(chunks) - layout.pipeline_model_parallel_size
    if early or chunks[first].count("m") != wanted or "t" in flat[flat.index("m") :]:
        place = "in one chunk of the last virtual stage, after the last t"
        raise _refused(layout, _TEXT, f"must have all MTP layers (m) {place}")
