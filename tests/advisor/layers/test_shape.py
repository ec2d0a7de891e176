import pytest

from advisor.base.dtypes import DType, Precision
from advisor.layers.operators import CollectiveKind
from tests.advisor.toys import GPT, HIDDEN, SHARD, toy_shape


def test_sequence_parallelism_cuts_the_norm_region_alone() -> None:
    shape = toy_shape()
    assert (shape.local_seq, shape.norm_seq, shape.tokens) == (32, 16, 64)
    assert shape.hidden("x").shape == (16, 2, 64)
    assert shape.activation("x", 10).shape == (32, 2, 10)
    assert shape.activation("x", 4, 8).num_bytes == 32 * 2 * 4 * 8 * 2
    assert (shape.gathered_hidden_bytes, shape.hidden("x").num_bytes) == (HIDDEN, SHARD)
    assert toy_shape(sequence_parallel=False).hidden("x").num_bytes == HIDDEN


def test_context_parallelism_cuts_everything() -> None:
    shape = toy_shape(context_parallel_size=2)
    assert (shape.local_seq, shape.norm_seq, shape.tokens) == (16, 8, 32)


def test_heads_and_groups_of_a_rank() -> None:
    assert (toy_shape().local_heads, toy_shape().local_groups) == (4, 2)
    wide = toy_shape(tensor_model_parallel_size=8)
    assert (wide.local_heads, wide.local_groups) == (1, 1)


def test_types() -> None:
    assert toy_shape().dtype is DType.BF16
    assert toy_shape(precision=Precision.FP16).hidden("x").dtype is DType.FP16
    assert toy_shape().hidden("x", DType.BOOL).num_bytes == SHARD // 2


@pytest.mark.parametrize("impl", ["local", "transformer_engine"])
@pytest.mark.parametrize("sequence_parallel", [False, True])
def test_workspaces(impl: str, sequence_parallel: bool) -> None:
    """The local spec gathers into a buffer of the process and gathers gradients in a step of its
    own; Transformer Engine holds a gathered tensor inside the layer."""
    shape = toy_shape(transformer_impl=impl, sequence_parallel=sequence_parallel)
    local = shape.is_local
    gathered = HIDDEN if sequence_parallel else 0
    assert shape.row_parallel_workspace == gathered
    assert shape.gathers_gradient == (local and sequence_parallel)


def test_weight_gradients_of_their_own() -> None:
    assert toy_shape().weight_gradient_bytes(10) == 20
    assert toy_shape(gradient_accumulation_fusion=True).weight_gradient_bytes(10) == 0


def kinds(collectives: object) -> list[CollectiveKind]:
    return [collective.kind for collective in collectives]


def test_collectives_of_linear_layers() -> None:
    gather = CollectiveKind.ALL_GATHER
    scatter = CollectiveKind.REDUCE_SCATTER
    reduce = CollectiveKind.ALL_REDUCE
    sp, tp = toy_shape(), toy_shape(sequence_parallel=False)
    alone = toy_shape(GPT, tensor_model_parallel_size=1, sequence_parallel=False)
    for shape, expected in (
        (sp, ([gather], [gather, scatter], [scatter], [gather])),
        (tp, ([], [reduce], [reduce], [])),
        (alone, ([], [], [], [])),
    ):
        column = shape.column_parallel_forward(), shape.column_parallel_backward()
        row = shape.row_parallel_forward(), shape.row_parallel_backward()
        assert tuple(map(kinds, (*column, *row))) == expected
    assert {c.num_bytes for c in sp.column_parallel_backward()} == {HIDDEN}
    assert not sp.column_parallel_forward()[0].overlapped
    assert toy_shape(tp_comm_overlap=True).column_parallel_forward()[0].overlapped
