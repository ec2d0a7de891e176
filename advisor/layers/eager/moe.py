"""What torchtitan's and transformers' experts have in common: a linear router, tokens sorted by
expert, one grouped GEMM over all experts of a rank (torch._grouped_mm)."""

from msgspec.structs import replace

from advisor.base.dtypes import DType
from advisor.layers.eager.parts import linear, multiplied, nonlinearity, with_weight_gradients
from advisor.layers.expert_tokens import moe_tokens, rows
from advisor.layers.operators import ComputeUnit, Gemm, Module, Operator, Tensor, Weight
from advisor.layers.shape import RankShape
from advisor.models.options import Activation


def gate(shape: RankShape, source: Tensor) -> Operator:
    """Logits [tokens, num_moe_experts] in the type of the activations; whole on every TP rank."""
    tokens, experts = shape.tokens, shape.model.num_moe_experts or 1
    weight = Weight("router.gate.weight", (experts, shape.model.hidden_size))
    bias = Weight("router.gate.bias", (experts,))
    return with_weight_gradients(
        shape,
        Operator(
            "router.gate",
            Module.ROUTER,
            (source,),
            (Tensor("router_logits", (tokens, experts), shape.dtype),),
            unit=ComputeUnit.GEMM,
            saved=(source,),
            saved_for_weights=frozenset({source.name}),
            weights=(weight, bias) if shape.model.add_bias_linear else (weight,),
            gemm=Gemm(tokens, experts, shape.model.hidden_size),
        ),
    )


def all_scores(logits: Tensor) -> Operator:
    """Softmax or sigmoid of an fp32 copy of the logits, in fp32: keeps its result."""
    scores = Tensor("router_scores", logits.shape, DType.FP32)
    return Operator(
        "router.scores",
        Module.ROUTER,
        (logits,),
        (scores,),
        saved=(scores,),
        forward_workspace=scores.num_bytes,
        backward_workspace=scores.num_bytes,
    )


def per_choice(shape: RankShape, name: str, dtype: DType = DType.FP32) -> Tensor:
    """[tokens, moe_router_topk]."""
    return Tensor(name, (shape.tokens, shape.model.moe_router_topk), dtype)


def choice(shape: RankShape, scores: Tensor, chosen: Tensor, workspace: int) -> Operator:
    """The scores of the experts with most: keeps their indices. Going back, zeros of all experts
    are made, and written into a copy."""
    indices = per_choice(shape, "chosen_experts", DType.INT64)
    return Operator(
        "router.choice",
        Module.ROUTER,
        (scores,),
        (chosen, indices),
        saved=(indices,),
        forward_workspace=workspace,
        backward_workspace=scores.num_bytes,
    )


def normalized(shape: RankShape, chosen: Tensor, weights: Tensor) -> Operator:
    """Chosen scores over their sum: keeps both."""
    return Operator(
        "router.normalize",
        Module.ROUTER,
        (chosen,),
        (weights,),
        saved=(chosen, Tensor("score_sum", (shape.tokens, 1), DType.FP32)),
        backward_workspace=3 * chosen.num_bytes,
    )


def gather_tokens(source: Tensor, taken: Tensor, indices: Tensor) -> Operator:
    """Rows of `source` by `indices`, which it keeps; their gradient is added into zeros, out of
    place."""
    return Operator(
        f"{taken.name}.gather",
        Module.DISPATCH,
        (source,),
        (taken,),
        saved=(indices,),
        backward_workspace=source.num_bytes,
    )


def grouped_linear(
    shape: RankShape, name: str, module: Module, source: Tensor, output: Tensor
) -> Operator:
    """torch._grouped_mm over [rows, width]: keeps its input and where each expert's rows end."""
    (rows, depth), width = source.shape, output.shape[-1]
    experts = moe_tokens(shape).local_experts
    weight = Weight(
        f"experts.{name}.weight",
        (width, depth),
        shape.expert_tensor_parallel_size > 1,
        in_linear=True,
        expert=True,
        copies=experts,
    )
    bias = Weight(f"experts.{name}.bias", (width,), expert=True, copies=experts)
    has_bias = shape.model.add_bias_linear  # of each row a copy, which is added out of place
    operator = Operator(
        f"experts.{name}",
        module,
        (source,),
        (output,),
        unit=ComputeUnit.GEMM,
        saved=(source, Tensor("expert_ends", (experts,), DType.INT32)),
        saved_for_weights=frozenset({source.name}),
        forward_workspace=output.num_bytes if has_bias else 0,
        weights=(weight, bias) if has_bias else (weight,),
        gemm=Gemm(rows, width, depth, groups=experts),
    )
    return with_weight_gradients(shape, operator)


def gated(shape: RankShape, gate: Tensor, up: Tensor) -> tuple[Operator, ...]:
    """Activation of `gate`, and its product with `up`: keep what they read."""
    activated, product = (
        Tensor(f"experts.{name}", gate.shape, gate.dtype) for name in ("activation_out", "product")
    )
    module = Module.EXPERT_ACTIVATION
    if shape.model.activation is Activation.QUICK_GEGLU:  # gpt-oss: (up + 1) gate sigmoid(a gate)
        clamped, more, share = (
            Tensor(f"experts.{name}", gate.shape, gate.dtype)
            for name in ("gate_clamped", "up_and_one", "sigmoid_out")
        )
        clamp = Operator("experts.clamp", module, (gate, up), (clamped, more), saved=(gate, up))
        sigmoid = Operator("experts.sigmoid", module, (clamped,), (share,), saved=(share,))
        inner = multiplied(share, clamped, activated, "experts.gate", module)
        outer = multiplied(activated, more, product, "experts.multiply", module)
        return clamp, sigmoid, inner, outer
    (operator,) = nonlinearity(shape.model.activation, gate, activated)
    return (
        replace(operator, name="experts.activation", module=module),
        multiplied(activated, up, product, "experts.multiply", module),
    )


def shared_experts(shape: RankShape, source: Tensor) -> tuple[Operator, ...]:
    """w2(silu(w1 x) * w3 x) of all tokens, cut by TP as a dense layer's; or nothing."""
    size = shape.model.moe_shared_expert_intermediate_size
    if size is None:
        return ()
    names = ("w1_out", "activation_out", "w3_out", "product")
    first, activated, third, product = (
        rows(shape, f"shared_{name}", shape.tokens, size // shape.tp) for name in names
    )
    (activate,) = nonlinearity(shape.model.activation, first, activated)
    output = rows(shape, "shared_out", shape.tokens, shape.model.hidden_size)
    fc1, middle = Module.SHARED_FC1, Module.SHARED_ACTIVATION
    return (
        linear(shape, "shared_w1", fc1, source, first, bias=False),
        replace(activate, name="shared_activation", module=middle),
        linear(shape, "shared_w3", fc1, source, third, bias=False),
        multiplied(activated, third, product, "shared_multiply", middle),
        linear(shape, "shared_w2", Module.SHARED_FC2, product, output, bias=False),
    )
