from advisor.base.dtypes import DType
from advisor.layers.operators import (
    ComputeUnit,
    Gemm,
    Module,
    Operator,
    Tensor,
    Weight,
    total_bytes,
)
from tests.advisor.toys import operator

A = Tensor("a", (4, 3), DType.BF16)
B = Tensor("b", (4, 5), DType.FP32)
MASK = Tensor("mask", (4, 3), DType.BOOL)


def test_a_tensor_has_the_bytes_of_its_type() -> None:
    assert (A.num_bytes, B.num_bytes, MASK.num_bytes) == (24, 80, 12)
    assert Tensor("ids", (2, 8), DType.INT64).num_bytes == 128
    assert total_bytes((A, B, MASK)) == 116


def test_a_view_keeps_the_whole_storage() -> None:
    view = A.view("v", (4, 1))
    assert (view.num_bytes, view.storage) == (8, A)
    assert view.view("w", (1,)).storage == A
    assert A.storage == A


def test_a_weight_and_a_gemm() -> None:
    assert Weight("w", (5, 3)).num_elements == 15
    assert Gemm(4, 5, 3).flops == 2 * 4 * 5 * 3


def test_traffic_counts_every_tensor_once_in_the_forward() -> None:
    step = operator("step", (A,), (B,), saved=(A, MASK))
    assert step.forward_bytes == 24 + 80 + 12
    assert step.backward_bytes == 24 + 80 + (24 + 12)


def test_flops_are_those_of_the_gemm_and_of_attention() -> None:
    both = Operator(
        name="x",
        module=Module.LINEAR_QKV,
        unit=ComputeUnit.GEMM,
        inputs=(A,),
        outputs=(B,),
        gemm=Gemm(4, 5, 3),
        attention_flops=7,
        extra_forward_bytes=100,
        extra_backward_bytes=1000,
    )
    assert both.forward_flops == 127
    assert both.forward_bytes == 204
    assert both.backward_bytes == 1104
    assert operator("y", (A,), (B,)).forward_flops == 0
