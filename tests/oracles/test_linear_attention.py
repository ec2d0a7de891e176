"""Gated attention and gated delta net of the installed Megatron Core, on fake tensors.

The kernels of flash-linear-attention need triton. Here functions that keep what theirs keep stand
for them (read in flash-linear-attention 0.4.1); everything around them is Megatron's own. Mamba's
module cannot be imported without triton: see tests/advisor/layers/test_linear_attention.py.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from msgspec.structs import replace

pytest.importorskip("megatron.core")

import torch
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.ssm import gated_delta_net
from megatron.core.tensor_parallel import ColumnParallelLinear, RowParallelLinear
from megatron.core.transformer.attention import SelfAttention
from megatron.core.transformer.torch_norm import WrappedTorchNorm

from advisor.layers.megatron.gated_delta_net import gated_delta_net_operators
from advisor.layers.shape import RankShape
from advisor.memory.static import num_elements
from advisor.models.options import TransformerImpl
from advisor.models.presets import load_model
from advisor.plan.recompute_plan import kept_tensors
from harness.backends.megatron_core.fake.saved import graph_nodes, saved_tensors
from harness.backends.megatron_core.fake.without_gpu import megatron_without_gpu
from harness.backends.megatron_core.model import transformer_config

from .megatron import OracleCase, saved_bytes_per_layer
from .prediction import QWEN3_32B, predicted_saved_bytes, selective, tensor_parallel


class Kernel(torch.autograd.Function):
    """Returns `output` and keeps the tensors after it."""

    @staticmethod
    def forward(ctx: Any, output: torch.Tensor, *kept: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(*kept)
        return output

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[None, ...]:
        raise NotImplementedError


def kernel(output: torch.Tensor, *kept: torch.Tensor) -> torch.Tensor:
    done: torch.Tensor = Kernel.apply(torch.empty_like(output), *kept)
    return done


def _gated(self: Any, x: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
    """_apply_output_gate, compiled."""
    return kernel(x, x, gate.view(x.shape))


GATED = QWEN3_32B.changed(attention_output_gate=True)


@pytest.mark.parametrize(
    "changes", [{}, selective("core_attn"), tensor_parallel(4, True), {"num_query_groups": 1}]
)
def test_a_layer_with_gated_attention(changes: dict[str, Any], monkeypatch) -> None:
    monkeypatch.setattr(SelfAttention, "_apply_output_gate", _gated)
    case = GATED.changed(**changes)
    assert saved_bytes_per_layer(case)[0] == predicted_saved_bytes(case)


def _kept(function: Callable[..., torch.Tensor], *inputs: torch.Tensor) -> list[tuple[Any, ...]]:
    """Shapes and types of what the compiled function keeps: torch's own partitioner decides."""
    kept: list[tuple[Any, ...]] = []

    def note(tensor: torch.Tensor) -> torch.Tensor:
        kept.append((tuple(tensor.shape), tensor.dtype))
        return tensor

    compiled = torch.compile(function, backend="aot_eager_decomp_partition")
    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        compiled(*inputs)
    return kept


def test_what_torch_compile_keeps_of_the_gates(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both factors, in 16 bits; uncompiled, fp32 copies."""
    torch.compiler.reset()
    x, gate = (torch.ones(2, 3, 8, dtype=torch.bfloat16, requires_grad=True) for _ in range(2))
    plain = SelfAttention._apply_output_gate._torchdynamo_orig_callable
    assert _kept(partial(plain, None), x, gate) == [(x.shape, x.dtype)] * 2
    norm = gated_delta_net.GatedDeltaNet._apply_gated_norm._torchdynamo_orig_callable
    net = type(
        "Net",
        (),
        {"out_norm": staticmethod(lambda y: y), "act_fn": staticmethod(torch.nn.functional.silu)},
    )
    kept = _kept(partial(norm, net), x, gate)
    assert [(torch.Size(shape).numel(), dtype) for shape, dtype in kept] == [(48, x.dtype)] * 2


class Rule(torch.autograd.Function):
    """ops/gated_delta_rule/chunk.py: the decay it keeps is a copy, summed up within its chunk."""

    @staticmethod
    def forward(ctx: Any, q: Any, k: Any, v: Any, g: Any, beta: Any) -> torch.Tensor:
        triangle = torch.empty(*v.shape[:3], 64, dtype=k.dtype)
        ctx.save_for_backward(q, k, v, torch.empty_like(g), beta, triangle)
        return torch.empty_like(v)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[None, ...]:
        raise NotImplementedError


def _rule(q: Any, k: Any, v: Any, *, g: Any, beta: Any, **_: Any) -> tuple[torch.Tensor, None]:
    return Rule.apply(q, k, v, g, beta), None


class L2Norm(torch.autograd.Function):
    """modules/l2norm.py: keeps its output, and the length of every row."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        output = torch.empty_like(x)
        ctx.save_for_backward(output, torch.empty(x.shape[:-1], dtype=torch.float32))
        return output

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[None, ...]:
        raise NotImplementedError


def _convolve(x: torch.Tensor, weight: torch.Tensor, **_: Any) -> torch.Tensor:
    return kernel(x, x, weight)


def _normed(self: Any, x: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
    """_apply_gated_norm, compiled after the norm."""
    normed = self.out_norm(x.reshape(-1, x.shape[-1]))
    return kernel(normed, normed, gate)


def _built(case: OracleCase) -> tuple[int, int]:
    """Bytes that a gated delta net keeps, its input included, and its parameters."""
    parts = gated_delta_net.GatedDeltaNetSubmodules(
        in_proj=ColumnParallelLinear, out_norm=WrappedTorchNorm, out_proj=RowParallelLinear
    )
    with megatron_without_gpu(case):
        config = transformer_config(case, perform_initialization=False)
        groups = ProcessGroupCollection.use_mpu_process_groups()
        mixer = gated_delta_net.GatedDeltaNet(config, parts, layer_number=1, pg_collection=groups)
        sequence = case.seq_length // case.tensor_model_parallel_size
        x = torch.empty(sequence, case.micro_batch_size, case.hidden_size, dtype=torch.bfloat16)
        output, _ = mixer(x.requires_grad_(), None)
        own = {parameter.untyped_storage()._cdata for parameter in mixer.parameters()}
        kept = {
            tensor.untyped_storage()._cdata: tensor.untyped_storage().nbytes()
            for tensor in _all_saved(output)
        }
        parameters = sum(parameter.numel() for parameter in mixer.parameters())
        return sum(size for storage, size in kept.items() if storage not in own), parameters


def _all_saved(output: torch.Tensor) -> Iterator[torch.Tensor]:
    for node in graph_nodes(output):
        if not hasattr(node, "variable"):
            yield from saved_tensors(node)


QWEN3_NEXT = OracleCase(
    num_layers=4,
    hidden_size=2048,
    ffn_hidden_size=512,
    num_attention_heads=16,
    num_query_groups=2,
    kv_channels=256,
    seq_length=256,
)
LAYOUTS = [{}, {"micro_batch_size": 2}, tensor_parallel(2, True)]


def _predicted(case: OracleCase) -> tuple[int, int]:
    preset = load_model("qwen3_next_80b_a3b")
    shape = RankShape(
        model=replace(preset, transformer_impl=TransformerImpl.LOCAL),
        seq_length=case.seq_length,
        micro_batch_size=case.micro_batch_size,
        tensor_model_parallel_size=case.tensor_model_parallel_size,
        sequence_parallel=case.sequence_parallel,
    )
    operators = gated_delta_net_operators(shape, shape.hidden("x"))
    kept = sum(tensor.num_bytes for tensor in kept_tensors(operators, ()).values())
    return kept, sum(num_elements(operator.weights) for operator in operators)


@pytest.mark.parametrize("changes", LAYOUTS)
def test_gated_delta_net(changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """0.16.1 computes its gates uncompiled: two fp32 numbers a token and head in place of a 16-bit
    one, and two 16-bit ones a head."""
    for name, value in (
        ("HAVE_FLA", True),
        ("l2norm", L2Norm.apply),
        ("chunk_gated_delta_rule", _rule),
        ("causal_conv1d_fn", _convolve),
    ):
        monkeypatch.setattr(gated_delta_net, name, value, raising=False)
    monkeypatch.setattr(gated_delta_net.GatedDeltaNet, "_apply_gated_norm", _normed)
    case = QWEN3_NEXT.changed(**changes)
    kept, parameters = _built(case)
    predicted, elements = _predicted(case)
    heads = 32 // case.tensor_model_parallel_size
    tokens = case.seq_length * case.micro_batch_size
    assert parameters == elements
    assert kept - predicted == tokens * heads * (2 * 4 - 2) + 2 * 2 * heads
