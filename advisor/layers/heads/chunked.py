"""Heads in chunks, of tokens, of the vocabulary or of both: no tensor has all logits.

What each has alive at once is a row of configs/rules/heads.json, with its source;
tests/oracles/test_heads.py runs their code.
"""

from collections.abc import Mapping, Sequence
from typing import Final, Literal

from msgspec import Struct, json
from msgspec.structs import replace

from advisor.base.configuration import packaged_configs
from advisor.base.dtypes import DType
from advisor.job.loss_head import HeadImplementation
from advisor.layers.eager.parts import with_weight_gradients
from advisor.layers.heads.whole import log_probabilities, of_tokens
from advisor.layers.operators import ComputeUnit, Gemm, Module, Operator, Tensor
from advisor.layers.shape import RankShape, output_weight, trained_output_weight

Moment = Mapping[str, int]
"""What is alive at once, next to what is kept and to the hidden states' own gradient: a factor of
each term of `_terms`."""
_STATISTICS: Final = 1024
"""Rows of the vocabulary for which verl's kernel has statistics of their own."""


class ChunkedHead(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A row. forward, backward, without_grad: moments, the highest of which counts.

    tile: tokens and rows of the vocabulary in one part, null for all; `parts` of the tokens, or
    the tokens of so many `samples`. whole_tile: it is no smaller where the vocabulary is. kept:
    numbers a token. copies_labelled: positions that have a label are copied out first.
    gradients: the forward has made them, and keeps them; scaled: the backward copies them. passes:
    bytes moved an element of the logits in addition to GEMMs; added: of the weight's gradient, by
    each part. pace: of the memory's bandwidth, what its kernels reach, a
    stated fit (research/steps/post_training.py).
    block: bytes an element of the largest temporary. chunk_of: what a chunk_size counts.
    scalar: a loss is returned. layers: after which it is known. source: whose code it is.
    """

    name: str
    tile: tuple[int | None, int | None]
    forward: Sequence[Moment]
    source: str
    layers: tuple[Literal["eager", "megatron"], ...]
    passes: tuple[int, int]
    pace: float = 1.0
    backward: Sequence[Moment] = ({"own": 1},)
    backward_with_entropy: Sequence[Moment] = ()
    without_grad: Sequence[Moment] = ()
    kept: Mapping[str, DType] = {}
    kept_entropy: bool = False
    parts: int = 1
    samples: int = 0
    whole_tile: bool = False
    copies_labelled: bool = False
    gradients: Literal["", "made", "scaled"] = ""
    added: int = 0
    block: int = 0
    chunk_of: Literal["tokens", "vocabulary"] = "tokens"
    scalar: bool = False


CHUNKED: Final = json.decode(
    (packaged_configs() / "rules" / "heads.json").read_bytes(),
    type=dict[HeadImplementation, ChunkedHead],
)


def _tile(shape: RankShape, row: ChunkedHead) -> tuple[int, int, int]:
    """Tokens of the samples that go at once, tokens of a tile, and rows of the vocabulary."""
    vocabulary, at_once = output_weight(shape).shape[0], shape.tokens
    if row.samples:
        at_once = shape.local_seq * min(row.samples, shape.micro_batch_size)
    usual, columns = row.tile
    asked = shape.head.chunk_size if not row.samples else None
    if row.chunk_of == "vocabulary":
        columns, asked = asked or columns, None
    elif usual is None and row.parts == 1:
        asked = None
    tokens = min(at_once, asked or usual or -(-at_once // row.parts))
    columns = columns or vocabulary
    return at_once, tokens, columns if row.whole_tile else min(columns, vocabulary)


def _terms(shape: RankShape, row: ChunkedHead, source: Tensor) -> dict[str, int]:
    """Of factors: elements whose bytes a factor gives, and tensors that it counts."""
    weight, wide = trained_output_weight(shape), source.dtype.itemsize
    vocabulary, hidden = weight.shape
    at_once, tokens, columns = _tile(shape, row)
    trained, is_wide = not weight.frozen, source.dtype is DType.FP32
    return {
        "tile": tokens * columns,
        "rows": shape.tokens,
        "states": shape.tokens * hidden,
        "sample": at_once * hidden,
        "chunk": tokens * hidden,
        "columns": columns * hidden,
        "last": shape.tokens * (vocabulary % columns),
        "statistics": shape.tokens * -(-vocabulary // _STATISTICS),
        # tensors: the weight's gradient, what sums it up in fp32 and its cast, one that is made
        # whether it is wanted or not, and that of a tile; earlier samples' gradients; copies
        "own": weight.num_elements * wide * trained,
        "sum": weight.num_elements * DType.FP32.itemsize * trained,
        "cast": weight.num_elements * wide * trained * (not is_wide),
        "made": weight.num_elements * wide,
        "part": columns * hidden * wide * trained,
        "earlier": (shape.tokens - at_once) * hidden * wide,
        "copied": source.num_bytes * (shape.micro_batch_size > 1),
        "casts": (tokens + columns) * hidden * shape.dtype.itemsize * is_wide,
    }


def chunked(shape: RankShape, source: Tensor) -> tuple[Operator, ...]:
    """Output layer and what comes after it, as one operator; before it, in some, the copy of the
    positions that have labels, here all. A frozen weight has no gradient."""
    row = CHUNKED[shape.head.implementation]
    if not row.copies_labelled:
        return (_operator(shape, row, source),)
    copied = Tensor("labelled_positions", (shape.tokens, source.shape[-1]), source.dtype)
    indices = of_tokens(shape, "label_indices", DType.INT64, 2)
    copy = Operator(copied.name, Module.OUTPUT_LAYER, (source,), (copied,), saved=(indices,))
    return copy, replace(_operator(shape, row, copied), forward_holds=(source,))


def _operator(shape: RankShape, row: ChunkedHead, source: Tensor) -> Operator:
    terms, weight = _terms(shape, row, source), trained_output_weight(shape)

    def most(moments: Sequence[Moment]) -> int:
        return max(sum(terms[name] * factor for name, factor in one.items()) for one in moments)

    saved = [of_tokens(shape, name, dtype) for name, dtype in row.kept.items()]
    if row.kept_entropy and shape.head.entropy:
        saved.append(of_tokens(shape, "kept_entropy"))
    forward, first = most(row.forward), source
    if row.gradients:
        first = Tensor(f"{row.name}.input_gradient", source.shape, source.dtype)
        forward -= first.num_bytes  # it comes last
        if not weight.frozen:
            saved.append(Tensor(f"{row.name}.weight_gradient", weight.shape, source.dtype))
    back = row.backward_with_entropy if shape.head.entropy else ()
    added = terms["own"] // source.dtype.itemsize * row.added
    added *= -(-shape.tokens // _tile(shape, row)[1])
    logits = shape.tokens * weight.shape[0]
    operator = Operator(
        row.name,
        Module.OUTPUT_LAYER,
        (source,),
        (Tensor("loss", (1,), DType.FP32),) if row.scalar else log_probabilities(shape),
        unit=ComputeUnit.GEMM,
        saved=(first, *saved),
        weights=(weight,),
        gemm=Gemm(shape.tokens, weight.shape[0], source.shape[-1]),
        replays_gemm=not row.gradients,
        forward_workspace=max(forward, 0),
        backward_workspace=most(back or row.backward),
        workspace_block=row.block * terms["tile"],
        workspace_without_grad=most(row.without_grad) if row.without_grad else None,
        extra_forward_bytes=round(row.passes[0] * logits / row.pace) + added * bool(row.gradients),
        extra_backward_bytes=round(row.passes[1] * logits / row.pace) + added * (not row.gradients),
    )
    if not shape.model.transformer_impl.is_eager:  # the buffer of all gradients takes it in
        return operator
    own = max(operator.backward_workspace - terms["own"], 0)
    operator = with_weight_gradients(shape, replace(operator, backward_workspace=own), source.dtype)
    if row.gradients != "made":
        return operator
    none = {"weight_gradient_bytes": 0, "narrow_weight_gradient_bytes": 0}
    return replace(operator, gradient_in_saved=True, **none)
