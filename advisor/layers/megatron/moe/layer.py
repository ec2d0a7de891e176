"""The feed-forward part of a MoE layer (megatron-core 0.16.1 transformer/moe/moe_layer.py,
shared_experts.py)."""

from msgspec.structs import replace

from advisor.layers.megatron.linear import duplicated_linear
from advisor.layers.megatron.mlp import Mlp, parallel_mlp
from advisor.layers.megatron.moe.dispatch import combine, dispatch
from advisor.layers.megatron.moe.experts import expert_operators
from advisor.layers.megatron.moe.router import router_operators
from advisor.layers.operators import Module, Operator, Tensor, Weight
from advisor.layers.shape import RankShape

Operators = tuple[Operator, ...]


def moe_operators(shape: RankShape, source: Tensor) -> tuple[Operator, ...]:
    """Shared experts first, then router, dispatch, routed experts, combine, and the sum of both.

    Overlapped shared experts run next to the dispatcher: linear_fc1 and activation after dispatch,
    linear_fc2 ahead of the last permutation (token_dispatcher.py). With moe_latent_size, dispatcher
    and routed experts are those of a model that wide, between two projections of every token.
    Tensors that variables of MoELayer.forward hold live until it returns."""
    width = shape.model.moe_shared_expert_intermediate_size
    shared = shared_operators(shape, source, width) if width else ()
    router = router_operators(shape, source)
    inner, tokens, down = _to_latent(shape, source)
    sent = dispatch(inner, tokens, *router[-1].outputs)
    experts, output = expert_operators(inner, sent.tokens, sent.probs)
    back = combine(inner, output)
    if down:
        back = (*back, _from_latent(shape, back[-1].outputs[0]))
    held = (source, *sent.variables, *back[-1].inputs)
    operators = (*shared, *router, *down, *sent.operators, *experts, *back)
    if shared and shape.model.moe_shared_expert_overlap:
        first, rest = (*router, *sent.operators, *shared[:2]), shared[2:]
        operators = (*first, *experts, *back[:-1], *rest, back[-1])
    if shared:
        return (*operators, _sum(shape, back[-1].outputs[0], shared[-1].outputs[0], held))
    return (*operators[:-1], replace(back[-1], forward_holds=held))


def _to_latent(shape: RankShape, source: Tensor) -> tuple[RankShape, Tensor, Operators]:
    """The shape of what experts see, their tokens, and what makes these."""
    latent = shape.model.moe_latent_size
    if latent is None:
        return shape, source, ()
    inner = replace(shape, model=replace(shape.model, hidden_size=latent, moe_latent_size=None))
    tokens = Tensor("latent_tokens", (*source.shape[:-1], latent), shape.dtype)
    name, module = "fc1_latent_proj", Module.DISPATCH
    return inner, tokens, (duplicated_linear(shape, name, module, source, tokens),)


def _from_latent(shape: RankShape, combined: Tensor) -> Operator:
    output = shape.hidden("fc2_latent_proj_out")
    return duplicated_linear(shape, "fc2_latent_proj", Module.COMBINE, combined, output)


def _sum(shape: RankShape, routed: Tensor, shared: Tensor, held: tuple[Tensor, ...]) -> Operator:
    """Routed plus shared output: written over the routed one where the dispatcher adds them."""
    output = Tensor("mlp_out", routed.shape, routed.dtype)
    if shape.model.moe_shared_expert_overlap:
        output = routed.view(output.name, output.shape)
    return Operator(
        "add_shared_experts",
        Module.COMBINE,
        (routed, shared),
        (output,),
        forward_holds=held,
        gradient_passed_to=frozenset({routed.name, shared.name}),
    )


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
    of_weight = frozenset({gathered.name})
    fc1 = replace(fc1, saved=(gathered,), saved_for_weights=of_weight, forward_workspace=0)
    return fc1, activation, fc2


def _gate(shape: RankShape, source: Tensor, output: Tensor) -> Operator:
    """output x sigmoid(source x gate weight): keeps the gate's input, its value, and the output."""
    score = Tensor("shared_gate", (shape.norm_seq, shape.micro_batch_size, 1), shape.dtype)
    return Operator(
        "shared_gate",
        Module.SHARED_GATE,
        (source, output),
        (shape.hidden("shared_gated_out"),),
        saved=(source, score, output),
        saved_for_weights=frozenset({source.name}),
        weights=(Weight("shared_experts.gate_weight", (1, shape.model.hidden_size)),),
    )
