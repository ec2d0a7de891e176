"""Shared experts: an MLP for all tokens next to the routed ones, with or without overlap.

Source: megatron-core 0.16.1 transformer/moe/shared_experts.py, run in tests/oracles.
"""

from msgspec.structs import replace

from advisor.layers.megatron.mlp import Mlp, parallel_mlp
from advisor.layers.operators import Module, Operator, Tensor, Weight
from advisor.layers.shape import RankShape


def shared_operators(shape: RankShape, source: Tensor, width: int) -> tuple[Operator, ...]:
    """From the normalized input to [tokens, hidden_size]; with moe_shared_expert_gate, times the
    sigmoid of a linear layer of width 1."""
    operators = parallel_mlp(
        shape,
        source,
        Mlp(
            fc1=Module.SHARED_FC1,
            activation=Module.SHARED_ACTIVATION,
            fc2=Module.SHARED_FC2,
            ffn_hidden_size=width,
            prefix="shared_",
        ),
    )
    if shape.model.moe_shared_expert_overlap:
        operators = _without_own_communication(shape, operators)
    if not shape.model.moe_shared_expert_gate:
        return operators
    return (*operators, _gate(shape, source, operators[-1].outputs[0]))


def _without_own_communication(
    shape: RankShape, operators: tuple[Operator, ...]
) -> tuple[Operator, ...]:
    """Under overlap the linear layers do not communicate themselves: linear_fc1 keeps the input
    that was gathered for it over the whole sequence."""
    fc1, activation, fc2 = operators
    if not shape.sequence_parallel:
        return operators
    gathered = shape.activation("shared_fc1_input", shape.model.hidden_size)
    return replace(fc1, saved=(gathered,), forward_workspace=0), activation, fc2


def _gate(shape: RankShape, source: Tensor, output: Tensor) -> Operator:
    """output x sigmoid(source x gate weight): keeps the gate's input, its value, and the output."""
    score = Tensor("shared_gate", (shape.norm_seq, shape.micro_batch_size, 1), shape.dtype)
    return Operator(
        "shared_gate",
        Module.SHARED_GATE,
        (source, output),
        (shape.hidden("shared_gated_out"),),
        saved=(source, score, output),
        weights=(Weight("shared_experts.gate_weight", (1, shape.model.hidden_size)),),
    )
