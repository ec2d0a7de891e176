"""Latent attention to the tokens that an indexer chooses (DSA), keys and values left compressed.

Source: megatron-core 0.19.2 transformer/experimental_attention_variant/absorbed_mla.py, dsa.py and
dsa_masking.py, run in tests/oracles, with dsa_kernel_backend none: PyTorch computes the scores of
all pairs in fp32, and masks those that are not among the topk. Transformer Engine has no part in
it but the linear layers and norms. Before 0.19 keys and values were not left compressed.
"""

from msgspec.structs import replace

from advisor.base.dtypes import DType
from advisor.layers.megatron.attention import UNFUSED_ROTARY, linear_proj, rotary_tables
from advisor.layers.megatron.latent_attention import compressed_kv, compressed_query, latent_norm
from advisor.layers.megatron.linear import column_parallel_linear, duplicated_linear, norm_operator
from advisor.layers.megatron.mappings import cuts_sequence, gather_sequence
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
    without_grad,
)
from advisor.layers.shape import RankShape
from advisor.models.options import Normalization

Operators = tuple[Operator, ...]
_CORE, _UP = Module.CORE_ATTENTION, Module.QKV_UP_PROJ


def sparse_attention_operators(shape: RankShape, source: Tensor) -> Operators:
    """From the normalized input to linear_proj's output, the tensor that the residual is added to.

    The projection of the compressed keys up to all heads is applied to the queries, and that of the
    values to what core attention gives: key and value are one head [s, b, 1, kv_lora_rank + rope].
    """
    model = shape.model
    compressed, down_query = compressed_query(shape, source)
    kv_source, k_pos_emb, down_kv = compressed_kv(shape, source)
    query_in, query_norm = latent_norm(shape, compressed, "query", apart=True)
    kv_in, kv_norm = latent_norm(shape, kv_source, "kv", apart=True)
    kv_in, gather = _gathered(shape, kv_in, Module.QK_LAYERNORM)
    width = shape.local_heads * model.qk_channels
    up = column_parallel_linear(
        shape, "linear_q_up_proj", _UP, query_in, shape.activation("query_up", width), bias=False
    )
    absorb = _absorb_keys(shape, up.outputs[0])
    rope = _rotary(shape, up.outputs[0], absorb.outputs[0], kv_in, k_pos_emb)
    query, kv = rope.outputs
    indexer = _indexer(shape, source, query_in, rope)
    core = (*indexer, *_core_attention(shape, query, kv, indexer[-1].outputs[0]))
    variables = tuple(tensor.storage for tensor in (query, kv, query_in))
    return (
        *(*down_query, *down_kv, *query_norm, *kv_norm, *gather, up, absorb, rope, *core),
        linear_proj(shape, core[-1].outputs[0], variables),
    )


def _gathered(
    shape: RankShape, part: Tensor, module: Module, name: str = ""
) -> tuple[Tensor, Operators]:
    """The tokens of all TP ranks under SP."""
    if not cuts_sequence(shape):
        return part, ()
    whole = shape.activation(name or f"{part.name}_gathered", *part.shape[2:])
    return whole, (gather_sequence(module, part, whole),)


def _absorb_keys(shape: RankShape, query_up: Tensor) -> Operator:
    """Queries without rotary part, through the keys' up-projection: its weight is multiplied by
    itself, head by head, and its gradient is a tensor of its own."""
    model, heads = shape.model, shape.local_heads
    output = shape.activation("query_absorbed", heads, model.kv_lora_rank)
    rows = heads * (model.qk_head_dim + model.v_head_dim)
    weight = Weight("linear_kv_up_proj.weight", (rows, model.kv_lora_rank), True)
    return Operator(
        "absorb_keys",
        _UP,
        (query_up,),
        (output,),
        unit=ComputeUnit.GEMM,
        saved=(query_up,),
        weights=(weight,),
        gemm=Gemm(shape.tokens * heads, model.kv_lora_rank, model.qk_head_dim, groups=heads),
        backward_workspace=2 * weight.num_elements * shape.dtype.itemsize,
    )


def _rotary(
    shape: RankShape, query_up: Tensor, absorbed: Tensor, kv: Tensor, k_pos_emb: Tensor
) -> Operator:
    """Rotary parts are rotated, unfused, and joined with the compressed ones into new tensors."""
    model = shape.model
    width = model.kv_lora_rank + model.qk_pos_emb_head_dim
    query, key = (
        shape.activation("query", shape.local_heads, width),
        shape.activation("kv", 1, width),
    )
    rotated = (shape.local_heads + 1) * model.qk_pos_emb_head_dim
    extra = UNFUSED_ROTARY * rotated * shape.tokens * shape.dtype.itemsize
    return Operator(
        "rotary_pos_emb",
        _UP,
        (query_up, absorbed, kv, k_pos_emb),
        (query, key),
        saved=rotary_tables(shape),
        extra_forward_bytes=extra,
        extra_backward_bytes=extra,
    )


def _indexer(shape: RankShape, source: Tensor, query: Tensor, rope: Operator) -> Operators:
    """Scores of all pairs by few narrow heads, whole on every TP rank, and the topk of each query.

    Its inputs are detached. Where it learns, its scores are held against those of all heads, which
    are computed for it in either pass. Else it runs under no_grad, keeps nothing and never goes
    back; its weights are parameters all the same.
    """
    model = shape.model
    heads, channels = model.dsa_indexer_n_heads or 0, model.dsa_indexer_head_dim or 0
    hidden, gather = _gathered(shape, source, _CORE, "index_hidden")
    low_rank, gather_query = _gathered(shape, query, _CORE, "index_low_rank")
    widths = {"query_up": heads * channels, "key": channels, "normed": channels, "weights": heads}
    query_up, key, normed, weights = (
        shape.activation(f"index_{name}", width) for name, width in widths.items()
    )
    norm_shape = replace(shape, model=replace(model, normalization=Normalization.LAYER_NORM))
    norm = norm_operator(norm_shape, Module.QK_LAYERNORM, key, normed)
    rotated = shape.activation("index_q", heads, channels), shape.activation("index_k", channels)
    tables = tuple(
        Tensor(f"index_{table.name}", table.shape, table.dtype) for table in rotary_tables(shape)
    )
    operators = (
        *(*gather, *gather_query),
        duplicated_linear(shape, "index_wq_b", _CORE, low_rank, query_up),
        duplicated_linear(shape, "index_wk", _CORE, hidden, key),
        replace(norm, module=_CORE),
        Operator("index_rotary", _CORE, (query_up, normed), rotated, saved=tables),
        duplicated_linear(shape, "index_weights_proj", _CORE, hidden, weights),
        _index_scores(shape, (*rotated, weights), rope.outputs),
    )
    if not model.dsa_indexer_loss_coeff:
        return tuple(without_grad(operator) for operator in operators)
    detached = frozenset(tensor.name for tensor in (source, query, hidden, low_rank, *rope.outputs))
    return tuple(replace(one, gradient_free_inputs=detached) for one in operators)


def _index_scores(
    shape: RankShape, index: tuple[Tensor, ...], attended: tuple[Tensor, ...]
) -> Operator:
    """[seq_length, b, heads of the indexer, seq_length] in fp32, twice, summed over heads; int64
    places of the topk. Its loss has the scores of all heads too, and a mean of them over TP."""
    model, pairs = shape.model, shape.tokens * shape.seq_length
    topk = min(model.dsa_indexer_topk or 0, shape.seq_length)
    found = Tensor("index_topk", (shape.micro_batch_size, shape.local_seq, topk), DType.INT64)
    scores = pairs * index[0].shape[-2] * DType.FP32.itemsize
    flops, of_all_heads = 2 * pairs * index[0].shape[-2] * index[0].shape[-1], 0
    collectives: tuple[Collective, ...] = ()
    loss: tuple[Tensor, ...] = ()
    if model.dsa_indexer_loss_coeff:
        flops += 2 * pairs * shape.local_heads * attended[0].shape[-1]
        of_all_heads = pairs * shape.local_heads * DType.FP32.itemsize
        loss = (*attended, Tensor("indexer_loss", (), DType.FP32))
        if shape.tp > 1:
            num_bytes = pairs * DType.FP32.itemsize
            collectives = (Collective(CollectiveKind.ALL_REDUCE, Group.TENSOR, num_bytes),)
    return Operator(
        "index_scores",
        _CORE,
        (*index, *attended),
        (found,),
        unit=ComputeUnit.ATTENTION,
        fp32=True,
        saved=(*index, *loss, found),
        attention_flops=flops,
        forward_collectives=collectives,
        backward_collectives=collectives,
        forward_workspace=max(2 * scores, 17 * of_all_heads // 4),
        backward_workspace=max(13 * scores // 4, 17 * of_all_heads // 4),
        extra_forward_bytes=6 * scores + _SOFTMAX_PASSES * of_all_heads,
        extra_backward_bytes=12 * scores + _SOFTMAX_PASSES * of_all_heads,
    )


_SOFTMAX_PASSES, _SOFTMAX_BACKWARD_PASSES = 14, 27
"""Tensors of scores that masked_softmax and its backward read or write beyond what comes in, goes
out and is kept: a mask is added, three times filled in, a maximum taken off, a sum divided by."""


def _core_attention(shape: RankShape, query: Tensor, kv: Tensor, places: Tensor) -> Operators:
    """Keeps fp32 copies of query and key, of the scores' softmax two fp32 tensors and three masks
    of a byte, and probabilities in 16 bits. With several sequences keys and values are copied to
    all heads."""
    b, s, heads = shape.micro_batch_size, shape.local_seq, shape.local_heads
    rank, one = shape.model.kv_lora_rank, shape.micro_batch_size == 1
    scores = Tensor("attention_scores", (b, heads, s, s), DType.FP32)
    probs = Tensor("attention_probs", scores.shape, shape.dtype)
    latent = shape.activation("attended_latent", heads, rank)
    value = kv if one else shape.activation("value_all", heads, rank)
    key_shape = kv.shape if one else query.shape
    pairs = scores.num_elements
    rows = (b, heads, s)
    kept = (
        *(Tensor(f"softmax.{name}", scores.shape, DType.FP32) for name in ("exp", "filled")),
        *(Tensor(f"softmax.mask_{number}", scores.shape, DType.BOOL) for number in range(3)),
        Tensor("softmax.argmax", rows, DType.INT64),
        Tensor("softmax.row_has_valid", rows, DType.BOOL),
        *(Tensor(f"softmax.{name}", rows, DType.FP32) for name in ("sum", "clamped_sum")),
    )
    return (
        Operator(
            "attention_scores",
            _CORE,
            (query, kv),
            (scores,),
            unit=ComputeUnit.ATTENTION,
            fp32=True,
            saved=(
                Tensor("query_fp32", query.shape, DType.FP32),
                Tensor("key_fp32", key_shape, DType.FP32),
            ),
            attention_flops=2 * pairs * query.shape[-1],
            forward_workspace=scores.num_bytes,
        ),
        Operator(
            "softmax",
            _CORE,
            (scores, places),
            (probs,),
            saved=kept,
            gradient_free_inputs=frozenset({places.name}),
            backward_workspace=13 * scores.num_bytes // 4,
            extra_forward_bytes=_SOFTMAX_PASSES * scores.num_bytes,
            extra_backward_bytes=_SOFTMAX_BACKWARD_PASSES * scores.num_bytes,
        ),
        Operator(
            "attention_context",
            _CORE,
            (probs, kv),
            (latent,),
            unit=ComputeUnit.ATTENTION,
            saved=(probs, value),
            attention_flops=2 * pairs * rank,
            forward_workspace=latent.num_bytes,  # a copy puts the sequence first
        ),
        _absorb_values(shape, latent),
    )


def _absorb_values(shape: RankShape, latent: Tensor) -> Operator:
    """The values' up-projection, of whose weight a contiguous copy is made and kept."""
    model, heads = shape.model, shape.local_heads
    weight = Tensor("v_up_weight", (heads, model.v_head_dim, model.kv_lora_rank), shape.dtype)
    return Operator(
        "absorb_values",
        _CORE,
        (latent,),
        (shape.activation("core_attn_out", heads, model.v_head_dim),),
        unit=ComputeUnit.GEMM,
        saved=(latent, weight),
        gemm=Gemm(shape.tokens * heads, model.v_head_dim, model.kv_lora_rank, groups=heads),
        backward_workspace=weight.num_bytes,
    )
