"""What Megatron's TEGroupedMLP keeps between its two linear layers, next to what we predict.

Its own forward runs on CPU tensors, around linear layers of torch: Transformer Engine's grouped
ones keep the same input (pytorch/module/grouped_linear.py).
"""

from types import SimpleNamespace
from typing import Any

import pytest

from advisor.base.dtypes import DType
from advisor.layers.megatron.moe.experts import expert_operators
from advisor.layers.operators import Tensor
from advisor.models.options import Activation
from tests.advisor.layers.megatron.moe.moe_toys import GROUPED, TOKENS, moe_shape
from tests.advisor.toys import saved_bytes

pytest.importorskip("megatron.core")

import torch
from megatron.core.activations import squared_relu
from megatron.core.fusions.fused_bias_geglu import quick_gelu
from megatron.core.transformer.moe.experts import TEGroupedMLP
from torch.nn import functional

ROWS = 2 * TOKENS
SCALAR = 2
"""Bytes of quick GEGLU's offset, a number of Python that autograd keeps as a tensor."""
FUNCTIONS = {
    Activation.SQUARED_RELU: squared_relu,
    Activation.SWIGLU: functional.silu,
    Activation.QUICK_GEGLU: quick_gelu,
}


def _linear(weight: torch.Tensor) -> Any:
    """In place of a module, which Megatron calls, or whose forward it calls."""
    module = torch.nn.Module()
    module.forward = lambda tokens, _: (tokens @ weight.t(), None)
    return module


def _kept(activation: Activation, ffn: int, hidden: int, **fusions: bool) -> int:
    """Bytes of the storages that autograd keeps, without the weights'."""
    halves = 2 if activation.gated else 1
    weights = [
        torch.zeros(*shape, dtype=torch.bfloat16, requires_grad=True)
        for shape in ((halves * ffn, hidden), (hidden, ffn))
    ]
    config = SimpleNamespace(
        fp8=None,
        fp4=None,
        moe_apply_probs_on_input=False,
        use_te_activation_func=False,
        gated_linear_unit=activation.gated,
        activation_func=FUNCTIONS[activation],
        activation_func_fp8_input_store=False,
        activation_func_clamp_value=None,
        glu_linear_offset=0.0,
        moe_mlp_glu_interleave_size=None,
        delay_offload_until_cuda_graph=False,
        moe_router_padding_for_quantization=False,
        moe_token_dispatcher_type="alltoall",
        **fusions,
    )
    experts = SimpleNamespace(
        config=config,
        activation_func=config.activation_func,
        linear_fc1=_linear(weights[0]),
        linear_fc2=_linear(weights[1]),
        activation_recompute=False,
        offload_expert_fc1=False,
        offload_moe_act=False,
        _with_fused_impl=False,
        _apply_bias=lambda output, *_: output,
    )
    tokens = torch.zeros(ROWS, hidden, dtype=torch.bfloat16, requires_grad=True)
    probs = torch.zeros(ROWS, dtype=torch.float32, requires_grad=True)
    own = {weight.untyped_storage()._cdata for weight in weights}
    kept: dict[int, torch.UntypedStorage] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept[tensor.untyped_storage()._cdata] = tensor.untyped_storage()
        return tensor

    with (
        torch.compiler.set_stance("force_eager"),
        torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor),
    ):
        output, _ = TEGroupedMLP.forward(experts, tokens, torch.tensor([ROWS]), probs)
    assert output.shape == (ROWS, hidden)
    return sum(storage.nbytes() for key, storage in kept.items() if key not in own)


@pytest.mark.parametrize(
    ("activation", "fused", "weighted"),
    [
        (Activation.SQUARED_RELU, False, False),
        (Activation.SQUARED_RELU, False, True),
        (Activation.SWIGLU, False, False),
        (Activation.SWIGLU, True, False),
        (Activation.QUICK_GEGLU, True, False),
    ],
)
def test_kept_between_the_linear_layers(
    activation: Activation, *, fused: bool, weighted: bool
) -> None:
    fusions = {"bias_activation_fusion": fused, "use_fused_weighted_squared_relu": weighted}
    shape = moe_shape(**GROUPED, activation=activation, moe_router_dtype="fp32", **fusions)
    hidden = shape.model.hidden_size
    operators, _ = expert_operators(
        shape, Tensor("tokens", (ROWS, hidden), shape.dtype), Tensor("probs", (ROWS,), DType.FP32)
    )
    measured = _kept(activation, shape.model.expert_ffn_hidden_size, hidden, **fusions)
    assert 0 <= measured - sum(saved_bytes(operators).values()) <= SCALAR
