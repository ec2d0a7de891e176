"""What heads are made of: tensors of one number a token, and the operator of a head in chunks."""

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from advisor.base.dtypes import DType
from advisor.layers.eager.parts import with_weight_gradients
from advisor.layers.operators import ComputeUnit, Gemm, Module, Operator, Tensor
from advisor.layers.shape import RankShape
from advisor.layers.weights import output_weight

FP32, INT64 = DType.FP32.itemsize, DType.INT64.itemsize


class Sizes(Struct, frozen=True):
    """Tokens, rows of the output layer and hidden size of one rank, and bytes of an element as it
    is computed, of the hidden states and of the weight."""

    tokens: int
    vocabulary: int
    hidden: int
    narrow: int
    wide: int

    @property
    def weight(self) -> int:
        """Elements of the output layer."""
        return self.vocabulary * self.hidden


def sizes(shape: RankShape) -> Sizes:
    """Those of `shape`."""
    vocabulary, hidden = output_weight(shape).shape
    narrow, wide = shape.dtype.itemsize, shape.stream_dtype.itemsize
    return Sizes(shape.tokens, vocabulary, hidden, narrow, wide)


def of_tokens(shape: RankShape, name: str, dtype: DType = DType.FP32, each: int = 1) -> Tensor:
    """[tokens, each]."""
    return Tensor(name, (shape.tokens, each), dtype)


def log_probabilities(shape: RankShape) -> tuple[Tensor, ...]:
    """What a head returns, [tokens] each in fp32: log-probabilities, and the entropy where it is a
    term of the loss."""
    entropy = (of_tokens(shape, "entropy"),) if shape.head.entropy else ()
    return (of_tokens(shape, "log_probabilities"), *entropy)


class InChunks(Struct, frozen=True, kw_only=True):
    """Bytes and work of a head that never has all logits.

    forward, backward: what is alive at one moment each next to what is kept; the highest counts. In
    the backward the weight's gradient is among them, that of the hidden states is not. passes:
    bytes moved an element of the logits beside the GEMMs, forward and backward. chunks: parts of
    the tokens, each of which adds to the whole weight's gradient `added` bytes an element.
    block: bytes of its largest temporary; 0: all are one. replays: logits are computed again.
    scalar: it returns a loss, not log-probabilities.
    """

    forward: Sequence[int]
    backward: Sequence[int] = (0,)
    passes: tuple[int, int] = (4, 8)
    chunks: int = 1
    added: int = 0
    block: int = 0
    replays: bool = True
    scalar: bool = False


def in_chunks(
    shape: RankShape, name: str, source: Tensor, saved: tuple[Tensor, ...], work: InChunks
) -> Operator:
    """Output layer and what comes after it, as one operator that keeps `saved`. A frozen weight has
    no gradient."""
    size, weight = sizes(shape), output_weight(shape)
    logits = size.tokens * size.vocabulary
    outputs = (Tensor("loss", (1,), DType.FP32),) if work.scalar else log_probabilities(shape)
    added = 0 if weight.frozen else work.chunks * work.added * size.weight
    own = 0 if weight.frozen else size.weight * size.wide
    operator = Operator(
        name,
        Module.OUTPUT_LAYER,
        (source,),
        outputs,
        unit=ComputeUnit.GEMM,
        saved=saved,
        weights=(weight,),
        gemm=Gemm(size.tokens, size.vocabulary, size.hidden),
        replays_gemm=work.replays,
        forward_workspace=max(work.forward),
        backward_workspace=max(work.backward),
        workspace_block=work.block,
        extra_forward_bytes=work.passes[0] * logits + (0 if work.replays else added),
        extra_backward_bytes=work.passes[1] * logits + (added if work.replays else 0),
    )
    if not shape.model.transformer_impl.is_eager:  # the buffer of all gradients takes it in
        return operator
    back = max(operator.backward_workspace - own, 0)
    return with_weight_gradients(shape, replace(operator, backward_workspace=back), source.dtype)
