"""Gated delta net and Mamba-2: what their real modules keep, and integers worked out by hand.

MEASURED were read once off Megatron Core's own modules with the real packages of the kernels, whose
launches were left out (triton 3.4.0 on a CPU; autograd.graph.saved_tensors_hooks): megatron-core
0.19.0 with flash-linear-attention 0.4.1 and mamba-ssm 2.3.2.
"""

from typing import Any

import pytest
from msgspec.structs import replace

from advisor.frameworks.megatron.plan import selective_runs
from advisor.frameworks.megatron.setting import selective
from advisor.layers.megatron.gated_delta_net import gated_delta_net_operators
from advisor.layers.megatron.mamba import mamba_operators
from advisor.layers.operators import Group, Module, Operator
from advisor.layers.shape import RankShape
from advisor.layers.transformer import transformer_layer
from advisor.memory.liveness import footprint
from advisor.memory.static import num_elements
from advisor.models.layer_kind import FeedForward, LayerKind, Mixer
from advisor.models.presets import load_model
from advisor.plan.recompute_plan import kept_tensors
from advisor.time.roofline import bound_by

QWEN, NEMOTRON = load_model("qwen3_next_80b_a3b"), load_model("nemotron3_nano_30b_a3b")


def delta(seq_length: int = 128, micro_batch_size: int = 2, **degrees: int) -> RankShape:
    return RankShape(
        model=QWEN, seq_length=seq_length, micro_batch_size=micro_batch_size, **degrees
    )


def delta_operators(shape: RankShape) -> tuple[Operator, ...]:
    return gated_delta_net_operators(shape, shape.hidden("x"))


def kept(operators: tuple[Operator, ...], *labels: str) -> int:
    runs = selective_runs(selective(*labels), QWEN, QWEN.layer_kinds[0]) if labels else ()
    return sum(tensor.num_bytes for tensor in kept_tensors(operators, runs).values())


MEASURED_DELTA, MEASURED_NORM_OUT = 29_540_480, 19_021_952
# Those ran uncompiled: g_and_beta keeps two fp32 numbers a token and value head for a 16-bit one,
# and two 16-bit ones a head; the gated norm two fp32 factors a channel in place of a 16-bit one.
GATES = 256 * 32 * (2 * 4 - 2) + 2 * 2 * 32
PRODUCT = 256 * 32 * 128 * (2 * 4 - 2)


def test_a_gated_delta_net_keeps_what_the_real_one_keeps() -> None:
    operators = delta_operators(delta())
    assert kept(operators) + GATES + PRODUCT == MEASURED_DELTA
    assert kept(operators, "gdn_norm_out") + GATES == MEASURED_NORM_OUT
    assert sum(num_elements(operator.weights) for operator in operators) == 33_718_464


@pytest.mark.parametrize(("micro_batch_size", "measured"), [(1, 12_952_320), (2, 25_903_872)])
def test_mamba_keeps_what_the_real_one_keeps(micro_batch_size: int, measured: int) -> None:
    shape = RankShape(model=NEMOTRON, seq_length=256, micro_batch_size=micro_batch_size)
    operators = mamba_operators(shape, shape.hidden("x"))
    assert kept(operators) == measured
    assert sum(num_elements(operator.weights) for operator in operators) == 38_742_208


def scan_of(operators: tuple[Operator, ...]) -> Operator:
    (scan,) = (operator for operator in operators if operator.attention_flops)
    return scan


def test_scans_by_hand() -> None:
    """Products within a chunk of 64 (or 128) tokens, and those with the state."""
    rule = scan_of(delta_operators(delta()))
    assert rule.attention_flops == 256 * 32 * (10 * 64 * 128 + 6 * 128 * 128)
    # w, u, new values and inverses in fp32 and 16 bit; states [2 x 2 chunks, 32, 128, 128]
    wide, state = 256 * 32 * 128 * 2, 4 * 32 * 128 * 128 * 2
    assert rule.forward_workspace == 3 * wide + wide + state
    shape = RankShape(model=NEMOTRON, seq_length=256, micro_batch_size=1)
    scan = scan_of(mamba_operators(shape, shape.hidden("x")))
    groups, heads = 8 * 2 * 128 * 128, 64 * (2 * 128 * 64 + 4 * 128 * 64)
    assert scan.attention_flops == 256 * (groups + heads)
    assert bound_by(scan) == bound_by(rule) == "scan kernels"


@pytest.mark.parametrize("operators_of", [gated_delta_net_operators, mamba_operators])
def test_both_kinds_of_parallelism_cut_heads(operators_of: Any) -> None:
    """TP halves all but the input and the hidden output; CP exchanges tokens for heads twice."""
    model = QWEN if operators_of is gated_delta_net_operators else NEMOTRON
    whole, tp, cp = (
        RankShape(model=model, seq_length=256, micro_batch_size=1, **degrees)
        for degrees in ({}, {"tensor_model_parallel_size": 2}, {"context_parallel_size": 2})
    )
    hidden = whole.hidden("x").num_bytes
    of_whole, of_tp, of_cp = (operators_of(shape, shape.hidden("x")) for shape in (whole, tp, cp))
    assert kept(of_tp) - hidden == (kept(of_whole) - hidden) // 2
    coefficients = 3 * 64 * 4 if model is NEMOTRON else 0  # a head, not a token
    assert kept(of_cp) == (kept(of_whole) + coefficients) // 2
    assert scan_of(of_cp).attention_flops == scan_of(of_tp).attention_flops
    exchanges = [c for operator in of_cp for c in operator.forward_collectives]
    assert [c.group for c in exchanges] == [Group.CONTEXT] * 2
    assert exchanges[0].num_bytes > exchanges[1].num_bytes


def test_layers_of_a_hybrid_pattern_have_one_half() -> None:
    shape = RankShape(model=NEMOTRON, seq_length=64, micro_batch_size=1)
    mamba, experts, attention = (
        transformer_layer(shape, NEMOTRON.layer_kinds[i]) for i in (0, 1, 5)
    )
    assert [layer[0].module for layer in (mamba, experts, attention)] == [
        Module.INPUT_LAYERNORM,
        Module.PRE_MLP_LAYERNORM,
        Module.INPUT_LAYERNORM,
    ]
    assert [layer[-1].module for layer in (mamba, experts, attention)] == [
        Module.MAMBA_BDA,
        Module.MLP_BDA,
        Module.SELF_ATTN_BDA,
    ]
    assert Module.LINEAR_FC1 not in [operator.module for operator in mamba]
    assert Module.LINEAR_PROJ not in [operator.module for operator in experts]
    assert {layer[-1].outputs[0].name for layer in (mamba, experts, attention)} == {"layer_output"}
    both = transformer_layer(shape, LayerKind(Mixer.FULL, FeedForward.MOE))
    halves = footprint(attention, ()).kept + footprint(experts, ()).kept
    assert footprint(both, ()).kept == halves


def test_the_output_gate_doubles_the_query() -> None:
    shape = delta()
    plain = replace(shape, model=replace(QWEN, attention_output_gate=False))
    gated, ungated = (
        {operator.name: operator for operator in transformer_layer(each, QWEN.layer_kinds[3])}
        for each in (shape, plain)
    )
    widths = [each["linear_qkv"].outputs[0].shape[-1] for each in (gated, ungated)]
    assert widths == [2 * 16 * 256 + 2 * 512, 16 * 256 + 2 * 512]
    assert [tensor.name for tensor in gated["output_gate"].saved] == [
        "core_attn_out",
        "output_gate",
    ]
    assert "output_gate" not in ungated
