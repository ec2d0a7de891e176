"""Router of a MoE layer: gating linear layer, top-k routing, auxiliary losses.

Source: megatron-core 0.16.1 transformer/moe/router.py and moe_utils.py, run in tests/oracles; the
fused router (moe_router_fusion) is read in Transformer Engine 2.20.2 pytorch/router.py.
"""

from advisor.base.dtypes import DType
from advisor.layers.expert_tokens import moe_tokens, router_dtype
from advisor.layers.operators import ComputeUnit, Gemm, Module, Operator, Tensor, Weight
from advisor.layers.shape import RankShape
from advisor.models.options import LoadBalancing, ScoreFunction
from advisor.models.spec import ModelSpec

_KERNELS, _FUSED_KERNELS = 50, 15
"""Of top-k, scores, losses and counts, one after another: DeepSeek-V3's router is 72 kernels with
its dispatcher's preprocessing, 31 where they are fused (Megatron-LM, notes on DeepSeek-V3 on
GB200)."""


def router_operators(shape: RankShape, source: Tensor) -> tuple[Operator, ...]:
    """From the normalized input to probabilities [tokens, experts] and the routing map of the same
    shape, outputs of the last operator."""
    tokens = moe_tokens(shape)
    size = (tokens.local, tokens.num_experts)
    logits = Tensor("router_logits", size, router_dtype(shape))
    return _gating(shape, source, logits), _routing(shape, logits)


def _gating(shape: RankShape, source: Tensor, logits: Tensor) -> Operator:
    """Linear layer in moe_router_dtype; keeps its 16-bit input and copies it to that type when it
    computes (RouterGatingLinearFunction; TE's GEMM makes no copy in the forward)."""
    model, (tokens, experts) = shape.model, logits.shape
    weights = [Weight("router.weight", (experts, model.hidden_size))]
    if model.add_bias_linear:
        weights.append(Weight("router.bias", (experts,)))
    copies = 0
    if logits.dtype is not shape.dtype:
        copies = (tokens + experts) * model.hidden_size * logits.dtype.itemsize
    return Operator(
        "router",
        Module.ROUTER,
        (source,),
        (logits,),
        unit=ComputeUnit.GEMM,
        saved=(source,),
        weights=tuple(weights),
        gemm=Gemm(tokens, experts, model.hidden_size),
        forward_workspace=copies if shape.is_local else 0,
        backward_workspace=copies + weights[0].num_elements * shape.dtype.itemsize,
    )


def _routing(shape: RankShape, logits: Tensor) -> Operator:
    """Top-k experts of each token, their probabilities, the map of both, and auxiliary losses."""
    probs = Tensor("router_probs", logits.shape, logits.dtype)
    routing_map = Tensor("routing_map", logits.shape, DType.BOOL)
    fused = shape.model.moe_router_fusion
    scores, kernels = (_fused_scores, _FUSED_KERNELS) if fused else (_scores, _KERNELS)
    return Operator(
        "topk_routing",
        Module.ROUTER,
        (logits,),
        (probs, routing_map),
        saved=(
            *_z_loss(shape, logits),
            *scores(shape, logits, routing_map),
            *_capacity(shape, logits),
            *_aux_loss(shape, logits),
        ),
        forward_kernels=kernels,
        backward_kernels=kernels,
    )


def _scores(shape: RankShape, logits: Tensor, routing_map: Tensor) -> tuple[Tensor, ...]:
    """Kept by topk_routing_with_score_function: [tokens, topk] indices and what the score function
    keeps, over all experts where it comes before top-k."""
    model, (tokens, experts) = shape.model, logits.shape
    topk = model.moe_router_topk
    saved = [Tensor("top_indices", (tokens, topk), DType.INT64)]
    limited = model.moe_router_group_topk is not None
    sinkhorn = model.moe_router_load_balancing_type is LoadBalancing.SINKHORN
    if model.moe_router_score_function is ScoreFunction.SIGMOID:
        saved.append(Tensor("router_scores", (tokens, experts), DType.FP32))
        saved += _sigmoid_weights(model, tokens, logits, _score_dtype(shape, logits))
        limited = limited and not model.moe_router_enable_expert_bias
    elif model.moe_router_pre_softmax or sinkhorn:
        saved.append(Tensor("router_scores", (tokens, experts), DType.FP32))
    else:
        saved.append(Tensor("router_scores", (tokens, topk), DType.FP32))
    if limited:
        saved.append(Tensor("group_mask", (tokens, experts), DType.BOOL))
    return tuple(saved)


def _score_dtype(shape: RankShape, logits: Tensor) -> DType:
    """Type of a sigmoid's scores after it: the router's, or fp32 to the end."""
    return DType.FP32 if shape.scores_in_fp32 else logits.dtype


def _sigmoid_weights(model: ModelSpec, tokens: int, logits: Tensor, dtype: DType) -> list[Tensor]:
    """Chosen scores and their sum, kept by the division; under an expert bias, the scores in the
    router's type that they are gathered from, where that is not the sigmoid's own fp32."""
    saved = []
    if model.moe_router_enable_expert_bias and dtype is not DType.FP32:
        saved.append(Tensor("router_scores_cast", logits.shape, dtype))
    if model.moe_router_topk > 1:
        saved.append(Tensor("chosen_scores", (tokens, model.moe_router_topk), dtype))
        saved.append(Tensor("score_sum", (tokens, 1), dtype))
    return saved


def _fused_scores(shape: RankShape, logits: Tensor, routing_map: Tensor) -> tuple[Tensor, ...]:
    """FusedTopkScoreFunction keeps the routing map and an intermediate [tokens, experts]."""
    return routing_map, Tensor("router_scores", logits.shape, DType.FP32)


def _capacity(shape: RankShape, logits: Tensor) -> tuple[Tensor, ...]:
    """Which tokens an expert has room for (apply_router_token_dropping)."""
    if shape.model.moe_expert_capacity_factor is None:
        return ()
    return (Tensor("capacity_map", logits.shape, DType.BOOL),)


def _z_loss(shape: RankShape, logits: Tensor) -> tuple[Tensor, ...]:
    """logsumexp keeps the logits and its result."""
    if not shape.model.moe_z_loss_coeff:
        return ()
    names = {"logsumexp": logits.shape[:1], "z_loss": ()}
    return logits, *(Tensor(name, size, logits.dtype) for name, size in names.items())


def _aux_loss(shape: RankShape, logits: Tensor) -> tuple[Tensor, ...]:
    """Scores of all experts (compute_routing_scores_for_aux_loss), tokens of each expert, the loss.
    seq_aux_loss counts the experts of every sequence apart. Python's numbers that autograd keeps
    next to them are in host memory."""
    model, (tokens, experts) = shape.model, logits.shape
    kind = model.moe_router_load_balancing_type
    if not model.moe_aux_loss_coeff or kind in (LoadBalancing.SINKHORN, LoadBalancing.NONE):
        return ()
    counts, count_dtype = experts, DType.INT64
    if kind is LoadBalancing.SEQ_AUX_LOSS:
        counts *= shape.micro_batch_size
    elif kind is LoadBalancing.GLOBAL_AUX_LOSS:
        count_dtype = DType.FP32  # a mean over the microbatches so far
    sigmoid = model.moe_router_score_function is ScoreFunction.SIGMOID
    plain_sigmoid = sigmoid and not model.moe_router_fusion
    dtype = _score_dtype(shape, logits) if plain_sigmoid else DType.FP32
    saved = [
        Tensor("aux_scores", (tokens, experts), dtype),
        Tensor("tokens_per_expert", (counts,), count_dtype),
        Tensor("aux_loss", (), dtype),
    ]
    if plain_sigmoid:
        saved.append(Tensor("aux_score_sum", (tokens, 1), dtype))
    return tuple(saved)
