"""Self-attention: projections, rotary embedding and core attention (MHA and GQA)."""

from advisor.dtypes import DType
from advisor.layers.norm import norm_operator
from advisor.layers.operators import (
    Collective,
    CollectiveKind,
    ComputeUnit,
    Gemm,
    Group,
    Module,
    Operator,
    Tensor,
    Weight,
)
from advisor.layers.shape import RankShape
from advisor.models.spec import AttentionBackend, PositionEmbedding, TransformerImpl


def attention_operators(shape: RankShape, source: Tensor) -> tuple[Operator, ...]:
    """From the normalized input to linear_proj's output, the tensor that the residual is added to.

    Source: megatron-core 0.16.1 transformer/attention.py (SelfAttention.forward).
    """
    mixed, projection = _linear_qkv(shape, source)
    query, key, value, middle = _query_key_value(shape, mixed)
    core = _core_attention(shape, query, key, value)
    return (projection, *middle, *core, _linear_proj(shape, core[-1].outputs[0]))


def _linear_qkv(shape: RankShape, source: Tensor) -> tuple[Tensor, Operator]:
    """Column-parallel QKV projection; saves its input as the SP shard."""
    model = shape.model
    width = (shape.local_heads + 2 * shape.local_groups) * model.kv_channels
    mixed = shape.activation("mixed_qkv", width)
    weights = [Weight("linear_qkv.weight", (width, model.hidden_size), True, True)]
    if model.add_bias_linear or model.add_qkv_bias:
        weights.append(Weight("linear_qkv.bias", (width,), True))
    return mixed, Operator(
        name="linear_qkv",
        module=Module.LINEAR_QKV,
        unit=ComputeUnit.GEMM,
        inputs=(source,),
        outputs=(mixed,),
        saved=(source,),
        weights=tuple(weights),
        gemm=Gemm(shape.tokens, width, model.hidden_size),
        forward_collectives=shape.column_parallel_forward(),
        backward_collectives=shape.column_parallel_backward(),
    )


def _query_key_value(
    shape: RankShape, mixed: Tensor
) -> tuple[Tensor, Tensor, Tensor, tuple[Operator, ...]]:
    """Storages that core attention reads as q, k and v, and the operators that make them.

    A view of mixed_qkv keeps that whole storage. The query of grouped attention is a copy
    (`reshape` of a strided slice); RoPE and q/k norm write new tensors; V stays a view on the local
    spec, while Transformer Engine copies it once q and k are no longer views of one buffer
    (TE attention/dot_product_attention/utils.py, get_qkv_layout).
    """
    model = shape.model
    grouped = shape.local_heads > shape.local_groups > 1
    query, key, value = mixed, mixed, mixed
    operators: list[Operator] = []
    if grouped:
        query = _heads(shape, "query", shape.local_heads)
        operators.append(_copy(shape, "split_query", Module.LINEAR_QKV, (mixed,), (query,)))
    if model.qk_layernorm:
        query, query_norm = _head_norm(shape, query, "query_norm", shape.local_heads)
        key, key_norm = _head_norm(shape, key, "key_norm", shape.local_groups)
        operators += [query_norm, key_norm]
    if model.position_embedding_type is PositionEmbedding.ROPE:
        roped_query = _heads(shape, "query_rope", shape.local_heads)
        roped_key = _heads(shape, "key_rope", shape.local_groups)
        operators.append(_rotary(shape, query, key, roped_query, roped_key))
        query, key = roped_query, roped_key
    if query is not mixed and model.transformer_impl is TransformerImpl.TRANSFORMER_ENGINE:
        value = _heads(shape, "value", shape.local_groups)
        operators.append(_copy(shape, "value_copy", Module.ROTARY, (mixed,), (value,)))
        if key is mixed:
            key = _heads(shape, "key", shape.local_groups)
            operators.append(_copy(shape, "key_copy", Module.ROTARY, (mixed,), (key,)))
    return query, key, value, tuple(operators)


def _heads(shape: RankShape, name: str, heads: int) -> Tensor:
    return shape.activation(name, heads * shape.model.kv_channels)


def _copy(
    shape: RankShape,
    name: str,
    module: Module,
    inputs: tuple[Tensor, ...],
    outputs: tuple[Tensor, ...],
) -> Operator:
    """A copy that the backward needs nothing for."""
    return Operator(
        name=name, module=module, unit=ComputeUnit.BANDWIDTH, inputs=inputs, outputs=outputs
    )


def _head_norm(shape: RankShape, source: Tensor, name: str, heads: int) -> tuple[Tensor, Operator]:
    """q or k normalized over the head dimension; keeps the storage that it reads."""
    output = _heads(shape, name, heads)
    rows = (shape.local_seq, shape.micro_batch_size, heads)
    view = Tensor(source.name, (*rows, shape.model.kv_channels), shape.dtype)
    operator = norm_operator(shape, Module.QK_LAYERNORM, view, output)
    statistics = tuple(tensor for tensor in operator.saved if tensor.name != source.name)
    return output, Operator(
        name=name,
        module=Module.QK_LAYERNORM,
        unit=ComputeUnit.BANDWIDTH,
        inputs=(source,),
        outputs=(output,),
        saved=(source, *statistics),
        weights=operator.weights,
    )


def _rotary(
    shape: RankShape, query: Tensor, key: Tensor, roped_query: Tensor, roped_key: Tensor
) -> Operator:
    """Rotary embedding of q and k.

    Unfused (local spec: rope_utils._apply_rotary_pos_emb_bshd) keeps cos and sin for q and for k,
    [seq_length / cp, 1, 1, rotary dimension] each, per layer and not divided by TP. The fused
    kernel of Transformer Engine keeps only the shared frequencies.
    """
    model = shape.model
    fused = model.apply_rope_fusion and model.transformer_impl is TransformerImpl.TRANSFORMER_ENGINE
    rotary_dim = int(model.kv_channels * model.rotary_percent)
    tables = tuple(
        Tensor(f"rope_{name}", (shape.local_seq, 1, 1, rotary_dim), shape.dtype)
        for name in ("cos_q", "sin_q", "cos_k", "sin_k")
    )
    sources = (query,) if query is key else (query, key)
    return Operator(
        name="rotary_pos_emb",
        module=Module.ROTARY,
        unit=ComputeUnit.BANDWIDTH,
        inputs=sources,
        outputs=(roped_query, roped_key),
        saved=() if fused else tables,
    )


def _core_attention(
    shape: RankShape, query: Tensor, key: Tensor, value: Tensor
) -> tuple[Operator, ...]:
    if shape.model.attention_backend is AttentionBackend.UNFUSED:
        return _unfused_attention(shape, query, key, value)
    return (_flash_attention(shape, query, key, value),)


def _attention_flops(shape: RankShape) -> int:
    """Two matmuls over the causal half: 2 x 2 x b x heads x head_dim x s x s/2 / cp."""
    width = shape.local_heads * shape.model.kv_channels
    return 2 * shape.tokens * shape.seq_length * width


def _flash_attention(shape: RankShape, query: Tensor, key: Tensor, value: Tensor) -> Operator:
    """Keeps q, k, v, the output and the log-sum-exp [b, heads, s] in fp32 (arXiv 2205.14135).

    K and V are not expanded to the query heads. Context parallelism passes K and V around a ring.
    """
    output = _heads(shape, "core_attn_out", shape.local_heads)
    lse = Tensor(
        "softmax_lse", (shape.micro_batch_size, shape.local_heads, shape.local_seq), DType.FP32
    )
    sources = tuple({tensor.name: tensor for tensor in (query, key, value)}.values())
    ring: tuple[Collective, ...] = ()
    cp = shape.context_parallel_size
    if cp > 1:
        kv = _heads(shape, "kv", 2 * shape.local_groups).num_bytes
        ring = (Collective(CollectiveKind.RING, Group.CONTEXT, kv * (cp - 1), True),)
    return Operator(
        name="core_attention",
        module=Module.CORE_ATTENTION,
        unit=ComputeUnit.ATTENTION,
        inputs=sources,
        outputs=(output,),
        saved=(*sources, output, lse),
        attention_flops=_attention_flops(shape),
        forward_collectives=ring,
        backward_collectives=ring + ring,
    )


def _unfused_attention(
    shape: RankShape, query: Tensor, key: Tensor, value: Tensor
) -> tuple[Operator, ...]:
    """Scores, softmax, dropout and context as Megatron's DotProductAttention runs them.

    Scores live in a buffer of the process and are not kept. Softmax keeps its output: fp32 where
    attention_softmax_in_fp32 and no fused kernel (then a copy in the compute type feeds the second
    matmul), else the compute type. Dropout keeps a 1-byte mask; its output feeds the matmul. K and
    V of grouped attention are expanded to all query heads.
    """
    model, heads = shape.model, shape.local_heads
    scores_shape = (shape.micro_batch_size, heads, shape.local_seq, shape.seq_length)
    expand = heads > shape.local_groups
    operators: list[Operator] = []
    if expand:
        expanded_key, expanded_value = (
            _heads(shape, "key_all", heads),
            _heads(shape, "value_all", heads),
        )
        sources = tuple({t.name: t for t in (key, value)}.values())
        operators.append(
            _copy(shape, "expand_kv", Module.CORE_ATTENTION, sources,
                  (expanded_key, expanded_value))
        )  # fmt: skip
        key, value = expanded_key, expanded_value
    scores = Tensor("attention_scores", scores_shape, shape.dtype)
    half_flops = _attention_flops(shape)  # one matmul over the full square
    qk = tuple({t.name: t for t in (query, key)}.values())
    operators.append(
        Operator(
            name="attention_scores", module=Module.CORE_ATTENTION, unit=ComputeUnit.ATTENTION,
            inputs=qk, outputs=(scores,), saved=qk, attention_flops=half_flops,
        )
    )  # fmt: skip
    probs, softmax = _softmax(shape, scores, scores_shape)
    operators.append(softmax)
    if model.attention_dropout > 0:
        dropped = Tensor("attention_probs_dropped", scores_shape, shape.dtype)
        mask = Tensor("attention_dropout_mask", scores_shape, DType.BOOL)
        operators.append(
            Operator(
                name="attention_dropout", module=Module.CORE_ATTENTION,
                unit=ComputeUnit.BANDWIDTH, inputs=(probs,), outputs=(dropped,), saved=(mask,),
            )
        )  # fmt: skip
        probs = dropped
    context = _heads(shape, "core_attn_out", heads)
    operators.append(
        Operator(
            name="attention_context", module=Module.CORE_ATTENTION, unit=ComputeUnit.ATTENTION,
            inputs=(probs, value), outputs=(context,), saved=(probs, value),
            attention_flops=half_flops,
        )
    )  # fmt: skip
    return tuple(operators)


def _softmax(
    shape: RankShape, scores: Tensor, scores_shape: tuple[int, ...]
) -> tuple[Tensor, Operator]:
    """Softmax over the scores and the tensor it hands on (fusions/fused_softmax.py)."""
    probs = Tensor("attention_probs", scores_shape, shape.dtype)
    kept = probs
    if shape.model.attention_softmax_in_fp32 and not _has_fused_softmax(shape):
        kept = Tensor("softmax_fp32", scores_shape, DType.FP32)
    return probs, Operator(
        name="softmax", module=Module.CORE_ATTENTION, unit=ComputeUnit.BANDWIDTH,
        inputs=(scores,), outputs=(probs,), saved=(kept,),
    )  # fmt: skip


def _has_fused_softmax(shape: RankShape) -> bool:
    """Megatron's is_kernel_available: 16-bit input, 16 < keys <= 4096, multiples of four."""
    keys, queries = shape.seq_length, shape.local_seq
    batches = shape.micro_batch_size * shape.local_heads
    return (
        shape.model.masked_softmax_fusion
        and 16 < keys <= 4096
        and queries % 4 == 0
        and keys % 4 == 0
        and batches % 4 == 0
    )


def _linear_proj(shape: RankShape, source: Tensor) -> Operator:
    """Row-parallel output projection; its input shares core attention's output."""
    model = shape.model
    width = shape.local_heads * model.kv_channels
    weights = [Weight("linear_proj.weight", (model.hidden_size, width), True, True)]
    if model.add_bias_linear:
        weights.append(Weight("linear_proj.bias", (model.hidden_size,)))
    return Operator(
        name="linear_proj",
        module=Module.LINEAR_PROJ,
        unit=ComputeUnit.GEMM,
        inputs=(source,),
        outputs=(shape.hidden("attention_out"),),
        saved=(source,),
        weights=tuple(weights),
        gemm=Gemm(shape.tokens, model.hidden_size, width),
        forward_collectives=shape.row_parallel_forward(),
        backward_collectives=shape.row_parallel_backward(),
    )
