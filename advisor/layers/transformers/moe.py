"""Experts of transformers by its grouped GEMM (experts_implementation grouped_mm, its default).

Source: transformers 5.23.0 integrations/moe.py (grouped_mm_experts_forward) and the routers of
models/mixtral, qwen3_moe and minimax_m2, run in tests/oracles.
"""

from msgspec.structs import replace

from advisor.base.dtypes import DType
from advisor.layers.eager import moe
from advisor.layers.eager.parts import in_fp32, residual, with_weight_gradients
from advisor.layers.expert_tokens import rows
from advisor.layers.operators import Module, Operator, Tensor, Weight
from advisor.layers.shape import RankShape
from advisor.layers.transformers.norms import norm
from advisor.models.options import ScoreFunction

Operators = tuple[Operator, ...]


def sparse_moe_block(
    shape: RankShape, source: Tensor, routed_by: Tensor | None = None
) -> Operators:
    """From the normalized input to [tokens, hidden_size]. routed_by: what Gemma 4's router reads;
    its shared expert, the dense MLP, is not among these operators.

    Variables of grouped_mm_experts_forward hold its input, the sorted tokens, their experts and
    weights until it returns, and one of the block's the logits."""
    weights, router = _own_router(shape, routed_by) if routed_by else _router(shape, source)
    copies, hidden = shape.tokens * shape.model.moe_router_topk, shape.model.hidden_size
    names = ("sorted_experts", "order", "taken_tokens", "inverse_order")
    experts, order, taken, inverse = (Tensor(name, (copies,), DType.INT64) for name in names)
    free = frozenset({weights.name})
    sort = Operator(
        "sort_by_expert", Module.DISPATCH, (weights,), (experts, order), gradient_free_inputs=free
    )
    sent = rows(shape, "routed_tokens", copies, hidden)
    sorted_weights = Tensor("sorted_weights", (copies,), weights.dtype)
    operators, computed = _experts(shape, sent)
    scaled = Tensor("scaled_out", computed.shape, weights.dtype)
    unsorted = Tensor("unsorted", computed.shape, weights.dtype)
    output = rows(shape, "routed_out", shape.tokens, hidden)
    total = Tensor("sum_of_experts", output.shape, weights.dtype)
    held = (source, experts, order, sent, sorted_weights, computed, unsorted, *router[0].outputs)
    tail = [
        Operator(
            "apply_weights",
            Module.COMBINE,
            (computed, sorted_weights),
            (scaled,),
            saved=(computed, sorted_weights),
            backward_workspace=scaled.num_bytes,
        ),
        Operator(
            "unsort",
            Module.COMBINE,
            (scaled,),
            (unsorted,),
            saved=(inverse,),
            forward_workspace=inverse.num_bytes,
            backward_workspace=unsorted.num_bytes,
        ),
        Operator("sum_of_experts", Module.COMBINE, (unsorted,), (total,)),
    ]
    if total.dtype is not output.dtype:
        tail.append(Operator("sum_of_experts.cast", Module.COMBINE, (total,), (output,)))
    tail[-1] = replace(tail[-1], outputs=(output,), forward_holds=held)
    shared = () if routed_by else moe.shared_experts(shape, source)
    if shared:
        summed, both = rows(shape, "moe_out", *output.shape), (output, shared[-1].outputs[0])
        tail.append(residual("add_shared_experts", Module.COMBINE, *both, summed))
    gather = (
        moe.gather_tokens(source, sent, taken),
        moe.gather_tokens(weights, sorted_weights, order),
    )
    routed = (*router, sort, *gather, *operators, *tail[: -1 if shared else None])
    if shared and _is_glm(shape):
        return (*routed, *shared, tail[-1])
    return (*shared, *routed, *tail[-1:] * bool(shared))


def _is_glm(shape: RankShape) -> bool:
    """GLM-4.5 leaves weights in fp32, and has shared experts after the routed ones; ERNIE 4.5 has
    both otherwise."""
    sigmoid = shape.model.moe_router_score_function is ScoreFunction.SIGMOID
    return sigmoid and not shape.model.rotary_interleaved


def _router(shape: RankShape, source: Tensor) -> tuple[Tensor, Operators]:
    """Weights [tokens, topk]: Qwen3's in 16 bit, Mixtral's and those of MiniMax-M2's sigmoid in
    fp32. The division is in place, for which what it divides is cloned."""
    gating = moe.gate(shape, source)
    scores = moe.all_scores(gating.outputs[0])
    chosen, wide = moe.per_choice(shape, "chosen_scores"), moe.per_choice(shape, "router_weights")
    divide = replace(moe.normalized(shape, chosen, wide), forward_holds=gating.outputs)
    operators = (gating, scores, moe.choice(shape, scores.outputs[0], chosen, 0), divide)
    model = shape.model
    if model.moe_router_dtype is not None:
        return _wide_router(shape, source)
    if not model.qk_layernorm or model.moe_router_score_function is ScoreFunction.SIGMOID:
        return wide, operators
    weights = moe.per_choice(shape, "router_weights.cast", shape.dtype)
    return weights, (*operators, Operator("router.cast", Module.ROUTER, (wide,), (weights,)))


def _own_router(shape: RankShape, source: Tensor) -> tuple[Tensor, Operators]:
    """Gemma 4's: a norm without a weight, a scale of each channel, and one of each expert, which
    multiplies weights in fp32."""
    size, dtype, place = source.shape, source.dtype, Module.ROUTER
    normed, scaled, given = (
        Tensor(f"router_input.{name}", size, dtype) for name in ("normed", "scaled", "given")
    )
    hidden, experts = size[-1], shape.model.num_moe_experts or 0
    normalize = norm(shape, "router.norm", place, source, normed, scaled=False)
    scale = Operator(
        "router.scale",
        place,
        (normed,),
        (scaled,),
        saved=(normed,),
        saved_for_weights=frozenset({normed.name}),
        weights=(Weight("router.scale", (hidden,)),),
    )
    root = Operator("router.scalar_root_size", place, (scaled,), (given,))
    gating = moe.gate(shape, given)
    is_linear = tuple(replace(weight, in_linear=True) for weight in gating.weights)
    gating = replace(gating, weights=is_linear)  # nn.Linear, as no other router is
    scores = moe.all_scores(gating.outputs[0])
    chosen, even = moe.per_choice(shape, "chosen_scores"), moe.per_choice(shape, "even_weights")
    divide = moe.normalized(shape, chosen, even)
    of_experts = moe.per_choice(shape, "chosen_expert_scales", dtype)
    weights = moe.per_choice(shape, "router_weights")
    multiply = Operator(
        "router.per_expert_scale",
        place,
        (even,),
        (weights,),
        saved=(even, of_experts),
        saved_for_weights=frozenset({even.name}),
        weights=(Weight("router.per_expert_scale", (experts,)),),
    )
    choice = moe.choice(shape, scores.outputs[0], chosen, 0)
    scale, multiply = (with_weight_gradients(shape, one) for one in (scale, multiply))
    return weights, (normalize, scale, root, gating, scores, choice, divide, multiply)


def _wide_router(shape: RankShape, source: Tensor) -> tuple[Tensor, Operators]:
    """ERNIE 4.5's, whose weight is in fp32, from a copy of its input, which it keeps, to weights
    that are cast to 16 bit (not by GLM-4.5); their sum is kept before and after it is clamped."""
    gating = moe.gate(shape, source)
    logits = in_fp32(gating.outputs[0], "router_logits")
    copy = in_fp32(source, "router_input.fp32")
    of_weight = frozenset({copy.name})
    gating = replace(gating, outputs=(logits,), saved=(copy,), saved_for_weights=of_weight)
    scores = replace(moe.all_scores(logits), forward_workspace=0, backward_workspace=0)
    chosen, wide = moe.per_choice(shape, "chosen_scores"), moe.per_choice(shape, "router_weights")
    divide = moe.normalized(shape, chosen, wide)
    clamped = Tensor("score_sum.clamped", (shape.tokens, 1), DType.FP32)
    divide = replace(divide, saved=(*divide.saved, clamped))
    weights = moe.per_choice(shape, "router_weights.cast", shape.dtype)
    cast = Operator("router.cast", Module.ROUTER, (wide,), (weights,))
    choice = moe.choice(shape, scores.outputs[0], chosen, 0)
    if _is_glm(shape):
        return wide, (gating, scores, choice, divide)
    return weights, (gating, scores, choice, divide, cast)


def _experts(shape: RankShape, sent: Tensor) -> tuple[Operators, Tensor]:
    """gate_up_proj, whose halves are views, activation and product, down_proj."""
    copies, ffn = sent.shape[0], shape.model.expert_ffn_hidden_size
    both = rows(shape, "gate_up_proj_out", copies, 2 * ffn)
    halves = tuple(both.view(name, (copies, ffn)) for name in ("expert_gate", "expert_up"))
    split = Operator("experts.chunk", Module.EXPERT_ACTIVATION, (both,), halves)
    activation = moe.gated(shape, *halves)
    (product,) = activation[-1].outputs
    output = rows(shape, "down_proj_out", *sent.shape)
    operators = (
        moe.grouped_linear(shape, "gate_up_proj", Module.EXPERT_FC1, sent, both),
        split,
        *activation,
        moe.grouped_linear(shape, "down_proj", Module.EXPERT_FC2, product, output),
    )
    return operators, output
