"""The auxiliary loss of experts, which transformers computes after the model's own where
output_router_logits is set: from the router logits of all layers, held since their layers ran.

Source: models/mixtral/modeling_mixtral.py load_balancing_loss_func of transformers 5.15.0, which
stacks all layers, and of 5.16.0 to 5.23.0, which takes one after the other (run in tests/oracles).
"""

from msgspec.structs import replace

from advisor.base.dtypes import DType
from advisor.job.loss_head import RouterAuxLoss
from advisor.layers.eager.ends import head_groups
from advisor.layers.operators import Module, Operator, Tensor, cached_operators
from advisor.layers.shape import RankShape
from advisor.models.layer_kind import FeedForward


def head_with_aux_loss(shape: RankShape) -> tuple[tuple[str, tuple[Operator, ...]], ...]:
    """Final norm, output layer and loss; with the loss of the experts in addition."""
    groups = head_groups(shape)
    if shape.head.router_aux_loss is RouterAuxLoss.NONE:
        return groups
    logits = router_logits(shape)
    *before, (name, last) = [(name, _holding(one, logits)) for name, one in groups]
    aux = replace(router_aux_loss(shape), forward_holds=last[0].inputs[:1])  # the logits
    return (*before, (name, (*last, aux)))


def router_logits(shape: RankShape) -> Tensor:
    """Of all layers with experts, [layers x tokens, num_moe_experts]."""
    layers = sum(kind.feed_forward is FeedForward.MOE for kind in shape.model.layer_kinds)
    size = layers * shape.tokens, shape.model.num_moe_experts or 0
    return Tensor("all_router_logits", size, shape.dtype)


def _holding(operators: tuple[Operator, ...], logits: Tensor) -> tuple[Operator, ...]:
    """`operators`, with `logits` alive next to them."""
    first, *others = operators
    free = first.gradient_free_inputs | {logits.name}
    first = replace(first, inputs=(*first.inputs, logits), gradient_free_inputs=free)
    *between, last = first, *others
    return (*between, replace(last, forward_holds=(*last.forward_holds, logits)))


@cached_operators
def _aux_loss(shape: RankShape) -> tuple[Operator, ...]:
    logits = router_logits(shape)
    (rows, experts), topk = logits.shape, shape.model.moe_router_topk
    chosen = topk * (DType.INT64.itemsize + logits.dtype.itemsize)
    one_row = experts * DType.FP32.itemsize + chosen  # probabilities in fp32, the best and where
    forward, backward = shape.tokens * one_row, 2 * shape.tokens * experts * logits.dtype.itemsize
    if shape.head.router_aux_loss is RouterAuxLoss.STACKED:  # the stack, one_hot and its fp32 copy
        one_hot = topk * experts * (DType.INT64.itemsize + DType.FP32.itemsize)
        forward = logits.num_bytes + rows * (one_hot + chosen)
        backward = 2 * logits.num_bytes
    scores = Tensor("all_router_scores", logits.shape, logits.dtype)
    operator = Operator(
        "router_aux_loss",
        Module.LOSS,
        (logits,),
        (Tensor("aux_loss", (1,), DType.FP32),),
        saved=(scores,),
        gradient_in_saved=True,
        forward_workspace=forward,
        backward_workspace=backward,
        extra_forward_bytes=2 * forward,
        extra_backward_bytes=2 * backward,
    )
    return (operator,)


def router_aux_loss(shape: RankShape) -> Operator:
    """Keeps the softmax of the logits."""
    (operator,) = _aux_loss(shape)
    return operator
