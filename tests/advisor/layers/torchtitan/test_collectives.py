"""What tensor-parallel ranks of torchtitan's blocks send each other."""

import pytest
from msgspec.structs import replace

from advisor.base.dtypes import Precision
from advisor.layers.eager.parts import activation
from advisor.layers.operators import CollectiveKind, Group, Module
from advisor.layers.shape import RankShape
from advisor.layers.torchtitan import collectives
from advisor.layers.transformer import transformer_layer
from advisor.models.layer_kind import DENSE
from advisor.models.options import TransformerImpl
from tests.advisor.toys import LLAMA

SHAPE = RankShape(
    model=replace(LLAMA, transformer_impl=TransformerImpl.TORCH),
    seq_length=32,
    micro_batch_size=2,
    tensor_model_parallel_size=2,
    sequence_parallel=True,
)
WHOLE = 32 * 2 * 64
"""Elements of the hidden states of both ranks."""


@pytest.mark.parametrize(
    ("precision", "module", "gathered_itemsize"),
    [
        (Precision.BF16, Module.LINEAR_QKV, 2),
        (Precision.FP8_CURRENT, Module.LINEAR_QKV, 1),
        (Precision.FP8_CURRENT, Module.LINEAR_FC2, 1),
        (Precision.FP8_CURRENT, Module.ROUTER, 2),
        (Precision.FP8_CURRENT, Module.COMBINE, 2),
    ],
)
def test_linear_layers_in_8_bits_gather_8_bits_and_scatter_16(
    precision: Precision, module: Module, gathered_itemsize: int
) -> None:
    shape = replace(SHAPE, precision=precision)
    part, whole = activation(shape, "part", 64), collectives.whole_hidden(shape, "whole")
    _, (gather,) = collectives.gather_sequence(shape, module, part)
    (scatter,) = collectives.scatter_sequence(shape, module, whole, part, ())
    (gathered,), (gradient,) = gather.forward_collectives, scatter.backward_collectives
    assert gathered == gradient
    assert gathered.kind is CollectiveKind.ALL_GATHER
    assert gathered.num_bytes == WHOLE * gathered_itemsize
    (reduced,), (scattered,) = gather.backward_collectives, scatter.forward_collectives
    assert reduced == scattered
    assert reduced.kind is CollectiveKind.REDUCE_SCATTER
    assert reduced.num_bytes == WHOLE * 2


def test_asynchronous_tp_leaves_gathers_of_context_parallel_ranks_alone() -> None:
    shape = replace(SHAPE, context_parallel_size=2)
    operators = collectives.pipelined(transformer_layer(shape, DENSE))
    gathers = [one for one in operators if one.forward_collectives and not one.overlapped_gemms]
    assert [one.forward_collectives[0].group for one in gathers] == [Group.CONTEXT]
