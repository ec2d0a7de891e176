"""Kernels bound by memory with published benchmarks: which share of the bandwidth they reach, and
that layers count the traffic that the shares are of."""

import pytest

from advisor.base.dtypes import DType
from advisor.layers.eager.parts import fused_norm, rotate_half
from advisor.layers.operators import Module, Operator, Tensor
from advisor.layers.shape import RankShape
from advisor.layers.transformers.norms import norm
from advisor.models.presets import load_model
from research.kernels import traffic

ROWS = traffic.moved()
SHAPE = RankShape(model=load_model("llama3_8b"), seq_length=4096, micro_batch_size=1)
SOURCE = Tensor("x", (4096, 4096), DType.BF16)
KEY = Tensor("k", (4096, 4096), DType.BF16)
OUTPUT = Tensor("y", (4096, 4096), DType.BF16)


def test_shipped_constants_are_those_of_the_rows() -> None:
    found = traffic.constants(ROWS)
    assert found["bandwidth_efficiency"] == pytest.approx(0.80, abs=0.01)
    assert found["eager_bandwidth_share"] == pytest.approx(0.62, abs=0.01)


def test_gpus_left_out() -> None:
    """B200's rotary embeddings and norms are slower than any other row says."""
    assert max(abs(error) for error in traffic.left_out(ROWS, traffic.FUSED).values()) < 0.05
    eager = traffic.left_out(ROWS, traffic.EAGER)
    assert max(abs(error) for gpu, error in eager.items() if not gpu.startswith("B200")) < 0.30


@pytest.mark.parametrize(
    ("operator", "kernel"),
    [
        (norm(SHAPE, "norm", Module.INPUT_LAYERNORM, SOURCE, OUTPUT), "rms_norm_in_python"),
        (rotate_half((SOURCE, KEY)), "rotate_half"),
    ],
)
def test_layers_count_the_traffic_of_torchs_chains(operator: Operator, kernel: str) -> None:
    elements = sum(tensor.num_elements for tensor in operator.outputs)
    forward, backward = operator.forward_bytes / elements, operator.backward_bytes / elements
    assert forward == pytest.approx(traffic.BYTES[kernel, "forward"], rel=0.02)
    assert backward == pytest.approx(traffic.BYTES[kernel, "backward"], rel=0.02)


def test_norms_of_torch_read_twice_going_back() -> None:
    operator = fused_norm(SHAPE, "norm", Module.INPUT_LAYERNORM, SOURCE, OUTPUT)
    elements = SOURCE.num_elements
    assert operator.backward_bytes / elements == pytest.approx(
        traffic.EAGER_NORM_BACKWARD, rel=0.01
    )
