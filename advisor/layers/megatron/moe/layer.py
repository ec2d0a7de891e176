"""The feed-forward part of a MoE layer (megatron-core 0.16.1 transformer/moe/moe_layer.py)."""

from msgspec.structs import replace

from advisor.layers.megatron.moe.dispatch import combine, dispatch
from advisor.layers.megatron.moe.experts import expert_operators
from advisor.layers.megatron.moe.router import router_operators
from advisor.layers.megatron.moe.shared import shared_operators
from advisor.layers.operators import Module, Operator, Tensor
from advisor.layers.shape import RankShape


def moe_operators(shape: RankShape, source: Tensor) -> tuple[Operator, ...]:
    """Shared experts first, then router, dispatch, routed experts, combine, and the sum of both.

    Overlapped shared experts run next to the dispatcher: linear_fc1 and activation after dispatch,
    linear_fc2 ahead of the last permutation (token_dispatcher.py).
    Tensors that variables of MoELayer.forward hold live until it returns.
    """
    width = shape.model.moe_shared_expert_intermediate_size
    shared = shared_operators(shape, source, width) if width else ()
    router = router_operators(shape, source)
    sent = dispatch(shape, source, *router[-1].outputs)
    experts, output = expert_operators(shape, sent.tokens, sent.probs)
    back = combine(shape, output)
    held = (source, *sent.variables, *back[-1].inputs)
    operators = (*shared, *router, *sent.operators, *experts, *back)
    if shared and shape.model.moe_shared_expert_overlap:
        fc1, activation, *rest = shared
        operators = (
            *router,
            *sent.operators,
            fc1,
            activation,
            *experts,
            *back[:-1],
            *rest,
            back[-1],
        )
    if shared:
        return (*operators, _sum(shape, back[-1].outputs[0], shared[-1].outputs[0], held))
    return (*operators[:-1], replace(back[-1], forward_holds=held))


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
