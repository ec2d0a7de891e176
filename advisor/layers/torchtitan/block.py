"""A transformer block of plain torch modules, as torchtitan writes its Llama, cut as it cuts it.

Source: torchtitan 0.2.2 models/llama3/model/model.py (TransformerBlock, Attention, FeedForward) and
infra/parallelize.py (apply_tp), models/qwen3 for the norms of q and k. LayerNorm, GELU, biases and
dropout, where a model has them, are torch's own modules in the same places.
"""

from advisor.layers.eager.context_parallel import attention_over_ranks
from advisor.layers.eager.parts import (
    activation,
    by_head,
    dropout,
    fused_norm,
    hidden,
    in_fp32,
    linear,
    multiplied,
    nonlinearity,
    residual,
    rotate_half,
)
from advisor.layers.operators import LAYER_INPUT, Module, Operator, Tensor, cached_operators
from advisor.layers.shape import RankShape
from advisor.layers.torchtitan import collectives
from advisor.models.layer_kind import DENSE, FeedForward, LayerKind
from advisor.models.options import PositionEmbedding


@cached_operators
def plain_layer(shape: RankShape, kind: LayerKind = DENSE) -> tuple[Operator, ...]:
    """Operators of one block: norm, attention, add, norm, feed-forward or experts, add."""
    layer_input = hidden(shape, LAYER_INPUT)
    normed = hidden(shape, "attention_norm_out")
    after_attention = hidden(shape, "after_attention")
    ffn_input = hidden(shape, "ffn_norm_out")
    operators = (
        fused_norm(shape, "attention_norm", Module.INPUT_LAYERNORM, layer_input, normed),
        *_attention(shape, normed, layer_input, after_attention),
        fused_norm(shape, "ffn_norm", Module.PRE_MLP_LAYERNORM, after_attention, ffn_input),
        *_branch(shape, kind, ffn_input, after_attention),
    )
    return collectives.pipelined(operators) if shape.tp_comm_overlap else operators


def _branch(
    shape: RankShape, kind: LayerKind, source: Tensor, skip: Tensor
) -> tuple[Operator, ...]:
    """The feed-forward part and the residual."""
    if kind.feed_forward is not FeedForward.MOE:
        return _feed_forward(shape, source, skip)
    from advisor.layers.torchtitan.moe import grouped_experts_layer

    gathered, gather = collectives.gather_sequence(shape, Module.ROUTER, source)
    experts = grouped_experts_layer(shape, gathered)
    (whole,) = experts[-1].outputs
    routed = whole if shape.tp == 1 else hidden(shape, "moe_out.scattered")
    scatter = collectives.scatter_sequence(shape, Module.COMBINE, whole, routed, (source, gathered))
    output, held = hidden(shape, "layer_output"), (hidden(shape, LAYER_INPUT),)
    add = residual("moe_residual", Module.MLP_BDA, routed, skip, output, held)
    return (*gather, *experts, *scatter, add)


def _attention(
    shape: RankShape, source: Tensor, skip: Tensor, output: Tensor
) -> tuple[Operator, ...]:
    """Projections, attention, wo, residual; the sequence is gathered ahead of them and scattered
    after, where TP cuts it."""
    gathered, gather = collectives.gather_sequence(shape, Module.LINEAR_QKV, source)
    operators, held = _mixer(shape, gathered)
    whole = operators[-1].outputs[0]
    part = whole if shape.tp == 1 else hidden(shape, "wo_out.scattered")
    scatter = collectives.scatter_sequence(shape, Module.LINEAR_PROJ, whole, part, (source, *held))
    branch, dropped = dropout(
        "attention_dropout_out", Module.SELF_ATTN_BDA, part, shape.model.hidden_dropout
    )
    add = residual("attention_residual", Module.SELF_ATTN_BDA, branch, skip, output)
    return (*gather, *operators, *scatter, *dropped, add)


def _mixer(shape: RankShape, source: Tensor) -> tuple[tuple[Operator, ...], tuple[Tensor, ...]]:
    """Projections and attention, and what is held until they are through; the rarer kind is
    imported for the models that have it."""
    if not shape.model.multi_latent_attention:
        return _heads(shape, source)
    from advisor.layers.torchtitan.latent_attention import latent_attention

    return latent_attention(shape, source)


def _heads(shape: RankShape, source: Tensor) -> tuple[tuple[Operator, ...], tuple[Tensor, ...]]:
    """wq, wk, wv (in this order), q/k norms, rotary embedding, attention, wo; and what is held
    until they are through."""
    model = shape.model
    heads, groups = shape.local_heads * model.kv_channels, shape.local_groups * model.kv_channels
    bias = model.add_bias_linear or model.add_qkv_bias
    projections = []
    for name, width in (("wq", heads), ("wk", groups), ("wv", groups)):
        out = activation(shape, f"{name}_out", width)
        projections.append(linear(shape, name, Module.LINEAR_QKV, source, out, bias=bias))
    query, key, value = (operator.outputs[0] for operator in projections)
    query, key, middle = _position_heads(shape, query, key)
    core = attention_over_ranks(shape, query, key, value)
    held = (source, query, key, value, *core[-1].outputs)
    (attended,), output = core[-1].outputs, collectives.whole_hidden(shape, "wo_out")
    bias = model.add_bias_linear
    wo = linear(shape, "wo", Module.LINEAR_PROJ, attended, output, bias=bias, holds=held)
    return (*projections, *middle, *core, wo), held


def _position_heads(
    shape: RankShape, query: Tensor, key: Tensor
) -> tuple[Tensor, Tensor, tuple[Operator, ...]]:
    """q and k as attention reads them: normed by head, rotated. Llama rotates complex numbers;
    Qwen3, with its norms, rotates halves, by cos and sin that each layer brings to 16 bit."""
    model = shape.model
    operators: list[Operator] = []
    if model.qk_layernorm:
        sources = (("q_norm", query, shape.local_heads), ("k_norm", key, shape.local_groups))
        for name, whole, number in sources:
            source = by_head(shape, whole, number)
            normed = Tensor(f"{name}_out", source.shape, source.dtype)
            operators.append(fused_norm(shape, name, Module.QK_LAYERNORM, source, normed))
        query, key = (operator.outputs[0] for operator in operators)
    if model.position_embedding_type is PositionEmbedding.ROPE:
        tables = tuple(
            Tensor(f"rope_{name}", (1, shape.local_seq, 1, model.kv_channels), shape.dtype)
            for name in ("cos", "sin")
        )
        halves = model.qk_layernorm
        operators.append(
            rotate_half((query, key), tables) if halves else _complex_rotary(query, key)
        )
        query, key = operators[-1].outputs
    return query, key, tuple(operators)


def _complex_rotary(query: Tensor, key: Tensor) -> Operator:
    """apply_rotary_emb: keeps the model's shared frequencies alone. q and k go to fp32, are
    multiplied as complex numbers into new tensors, and go back to 16 bit; all four fp32 tensors are
    alive when the first 16-bit output is written."""
    outputs = tuple(Tensor(f"{t.name}_rope", t.shape, t.dtype) for t in (query, key))
    fp32 = sum(in_fp32(tensor, tensor.name).num_bytes for tensor in (query, key))
    return Operator(
        "rotary",
        Module.ROTARY,
        (query, key),
        outputs,
        forward_workspace=2 * fp32,
        backward_workspace=fp32,
        extra_forward_bytes=4 * fp32,
        extra_backward_bytes=4 * fp32,
        forward_kernels=2 * 3,
        backward_kernels=2 * 3,
    )


def _feed_forward(shape: RankShape, source: Tensor, skip: Tensor) -> tuple[Operator, ...]:
    """w2(silu(w1 x) * w3 x), or w2(gelu(w1 x)) where the model has no gate; residual."""
    model = shape.model
    bias, width = model.add_bias_linear, model.ffn_hidden_size // shape.tp
    normed = source
    source, gather = collectives.gather_sequence(shape, Module.LINEAR_FC1, normed)
    gate = activation(shape, "w1_out", width)
    operators = [*gather, linear(shape, "w1", Module.LINEAR_FC1, source, gate, bias=bias)]
    activated = activation(shape, "activation_out", width)
    operators += nonlinearity(model.activation, gate, activated)
    if model.activation.gated:
        up, product = activation(shape, "w3_out", width), activation(shape, "product", width)
        operators += [
            linear(shape, "w3", Module.LINEAR_FC1, source, up, bias=bias),
            multiplied(activated, up, product),
        ]
        activated = product
    whole = collectives.whole_hidden(shape, "w2_out")
    w2_out = hidden(shape, "w2_out" if shape.tp == 1 else "w2_out.scattered")
    operators.append(
        linear(shape, "w2", Module.LINEAR_FC2, activated, whole, bias=bias, holds=(source,))
    )
    held = (normed, source, activated)
    operators += collectives.scatter_sequence(shape, Module.LINEAR_FC2, whole, w2_out, held)
    branch, dropped = dropout("ffn_dropout_out", Module.MLP_BDA, w2_out, model.hidden_dropout)
    output, layer_input = hidden(shape, "layer_output"), hidden(shape, LAYER_INPUT)
    add = residual("ffn_residual", Module.MLP_BDA, branch, skip, output, (layer_input,))
    return (*operators, *dropped, add)
