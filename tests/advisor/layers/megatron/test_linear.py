"""Linear layers of any width on a toy, and tensors that change how TP ranks hold them."""

import pytest

from advisor.layers.megatron import linear, mappings
from advisor.layers.operators import CollectiveKind, Gemm, Module, Tensor
from advisor.layers.shape import RankShape
from tests.advisor.toys import toy_shape

M = Module.LINEAR_QKV
TOKENS = 32 * 2


def narrow(shape: RankShape, width: int) -> Tensor:
    return Tensor("source", (shape.norm_seq, shape.micro_batch_size, width), shape.dtype)


@pytest.mark.parametrize(
    ("impl", "forward", "backward"), [("local", 0, 1), ("transformer_engine", 1, 2)]
)
def test_column_parallel(impl: str, forward: int, backward: int) -> None:
    shape = toy_shape(transformer_impl=impl)
    source, output = narrow(shape, 16), shape.activation("out", 24)
    made = linear.column_parallel_linear(shape, "name", M, source, output, bias=True)
    gathered = TOKENS * 16 * 2
    assert made.gemm == shape.with_main_grad(Gemm(TOKENS, 24, 16))
    assert [(w.name, w.shape, w.tp_sharded) for w in made.weights] == [
        ("name.weight", (24, 16), True),
        ("name.bias", (24,), True),
    ]
    assert made.saved == (source,)
    assert made.forward_workspace == forward * gathered
    assert made.backward_workspace == backward * gathered + 24 * 16 * 2
    assert {c.num_bytes for c in (*made.forward_collectives, *made.backward_collectives)} == {
        gathered
    }


def test_row_parallel_takes_heads_and_their_channels_as_one_width() -> None:
    shape = toy_shape()
    source = shape.activation("heads", 4, 6)
    made = linear.row_parallel_linear(shape, "name", M, source, shape.hidden("out"), bias=True)
    assert made.gemm == shape.with_main_grad(Gemm(TOKENS, 64, 24))
    assert [w.tp_sharded for w in made.weights] == [True, False]


def test_duplicated_takes_its_own_tokens_and_does_not_communicate() -> None:
    shape = toy_shape()
    source, output = narrow(shape, 64), narrow(shape, 10)
    made = linear.duplicated_linear(shape, "name", M, source, output)
    assert made.gemm == shape.with_main_grad(Gemm(TOKENS // 2, 10, 64))
    assert not made.forward_collectives
    assert not made.backward_collectives
    assert not made.weights[0].tp_sharded


def test_mappings() -> None:
    shape = toy_shape()
    assert mappings.cuts_sequence(shape)
    assert not mappings.cuts_sequence(toy_shape(sequence_parallel=False))
    part, whole = shape.activation("part", 8), shape.activation("whole", 16)
    gather = mappings.gather_width(M, part, whole)
    assert gather.forward_workspace == whole.num_bytes
    assert not gather.backward_collectives  # each rank takes its part
    tokens = whole.view("tokens", (16, 2, 16))
    assert mappings.scatter_sequence(shape, M, whole, tokens).backward_workspace == 0
    other = mappings.scatter_sequence(shape, M, whole, tokens, whole.view("other", (32, 2, 4)))
    assert other.backward_workspace == whole.num_bytes
    kinds = mappings.gather_sequence(M, tokens, whole)
    assert kinds.forward_collectives[0].kind is CollectiveKind.ALL_GATHER
    assert kinds.backward_collectives[0].kind is CollectiveKind.REDUCE_SCATTER
