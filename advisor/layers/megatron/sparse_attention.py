"""Latent attention to the tokens that an indexer chooses (DSA), keys and values left compressed.

Source: megatron-core 0.19.2 transformer/experimental_attention_variant/absorbed_mla.py, dsa.py and
dsa_masking.py, run in tests/oracles with dsa_kernel_backend none: PyTorch computes the scores of
all pairs in fp32 and masks those that are not among the topk.
"""

from msgspec.structs import replace

from advisor.base.dtypes import DType
from advisor.layers.megatron import linear
from advisor.layers.megatron.attention import rotary_tables
from advisor.layers.megatron.mappings import cuts_sequence, gather_sequence
from advisor.layers.operators import ComputeUnit, Gemm, Module, Operator, Tensor, Weight
from advisor.layers.shape import RankShape

Operators = tuple[Operator, ...]
_CORE = Module.CORE_ATTENTION
_FP32 = DType.FP32.itemsize


def absorbed_attention(
    shape: RankShape, hidden: Tensor, low_rank: Tensor, kv: Tensor, k_pos_emb: Tensor
) -> Operators:
    """From the compressed query, key and value to core attention's output. Key and value are one
    head for all, [seq_length, b, 1, kv_lora_rank + rotary part]."""
    kv, gather = _gathered(shape, kv, Module.QK_LAYERNORM)
    query_up = shape.activation("query_up", shape.local_heads * shape.model.qk_channels)
    up, module = linear.column_parallel_linear, Module.QKV_UP_PROJ
    query = up(shape, "linear_q_up_proj", module, low_rank, query_up, bias=False)
    absorb = _absorb_keys(shape, query_up, kv, k_pos_emb)
    indexer = _indexer(shape, hidden, low_rank, absorb.outputs)
    places, (whole, head) = indexer[-1].outputs[0], absorb.outputs
    return *gather, query, absorb, *indexer, *_core_attention(shape, whole, head, places)


def _gathered(shape: RankShape, part: Tensor, module: Module) -> tuple[Tensor, Operators]:
    """The tokens of all TP ranks under SP."""
    if not cuts_sequence(shape):
        return part, ()
    whole = shape.activation(f"{part.name}_gathered", *part.shape[2:])
    return whole, (gather_sequence(module, part, whole),)


def _absorb_keys(shape: RankShape, query_up: Tensor, kv: Tensor, k_pos_emb: Tensor) -> Operator:
    """Every head of the query through its rows of linear_kv_up_proj, multiplied as a plain tensor;
    rotary parts are rotated and joined with what is compressed, whose time is left out."""
    model, heads = shape.model, shape.local_heads
    rank, rotary = model.kv_lora_rank, model.qk_pos_emb_head_dim
    rows = heads * (model.qk_head_dim + model.v_head_dim)
    weight = Weight("linear_kv_up_proj.weight", (rows, rank), True)
    return Operator(
        "absorb_keys",
        Module.QKV_UP_PROJ,
        (query_up, kv, k_pos_emb),
        (shape.activation("query", heads, rank + rotary), shape.activation("kv", 1, rank + rotary)),
        unit=ComputeUnit.GEMM,
        saved=(query_up, *rotary_tables(shape)),
        weights=(weight,),
        gemm=Gemm(shape.tokens * heads, rank, model.qk_head_dim, groups=heads),
        forward_workspace=shape.activation("", heads, rank).num_bytes,
        backward_workspace=2 * weight.num_elements * shape.dtype.itemsize,
    )


def _indexer(
    shape: RankShape, hidden: Tensor, low_rank: Tensor, attended: tuple[Tensor, ...]
) -> Operators:
    """Scores [seq_length, b, index heads, seq_length] in fp32, whole on every TP rank, and int64
    places of the topk. linear_wk and linear_weights_proj are one here.

    Without a loss it runs under no_grad. With one it keeps its own queries, keys and weights, and
    computes the scores of all heads too, in either pass. Its inputs are detached."""
    model, pairs = shape.model, shape.tokens * shape.seq_length
    heads, channels = model.dsa_indexer_n_heads or 0, model.dsa_indexer_head_dim or 0
    hidden, gather = _gathered(shape, hidden, _CORE)
    low_rank, gather_low_rank = _gathered(shape, low_rank, _CORE)
    query = shape.activation("index_query", heads * channels)
    key = shape.activation("index_key", channels + heads)
    topk = min(model.dsa_indexer_topk or 0, shape.seq_length)
    found = Tensor("index_topk", (shape.micro_batch_size, shape.local_seq, topk), DType.INT64)
    learns = (model.dsa_indexer_loss_coeff or 0.0) > 0
    scores, of_loss = pairs * heads * _FP32, learns * pairs * shape.local_heads * _FP32
    width = heads * channels + heads + 2 * channels  # the norm's input, and what scores are made of
    own = (
        shape.activation("index_kept", width),
        Tensor("index_tables", (4, shape.local_seq, model.rotary_dim), shape.dtype),
        Tensor("index_statistics", (2 * shape.tokens + 1,), DType.FP32),  # of the norm; the loss
    )
    choose = Operator(
        "index_scores",
        _CORE,
        (query, key, *attended),
        (found,),
        unit=ComputeUnit.ATTENTION,
        fp32=True,
        saved=(*own, *attended, found),
        weights=(Weight("k_norm.weight", (channels,)), Weight("k_norm.bias", (channels,))),
        attention_flops=2 * pairs * heads * channels
        + 2 * learns * pairs * shape.local_heads * attended[0].shape[-1],
        forward_workspace=max(2 * scores, 17 * of_loss // 4),
        backward_workspace=max(13 * scores // 4, 17 * of_loss // 4),
        extra_forward_bytes=6 * scores + _PASSES * of_loss,
        extra_backward_bytes=12 * scores + _PASSES * of_loss,
    )
    operators = (
        *(*gather, *gather_low_rank),
        linear.duplicated_linear(shape, "index_wq_b", _CORE, low_rank, query),
        linear.duplicated_linear(shape, "index_wk", _CORE, hidden, key),
        choose,
    )
    if not learns:
        return tuple(replace(one, saved=(), no_grad=True) for one in operators)
    detached = frozenset(one.name for one in (hidden, low_rank, *attended))
    return tuple(
        replace(one, gradient_free_inputs=detached, backward_collectives=()) for one in operators
    )


_PASSES, _BACKWARD_PASSES = 14, 27
"""Reads and writes of the scores beyond what comes in, goes out and is kept, by masked_softmax and
its backward: a mask is added, three times filled in, a maximum taken off, a sum divided by."""


def _core_attention(shape: RankShape, query: Tensor, kv: Tensor, places: Tensor) -> Operators:
    """Query and key are kept in fp32, of the softmax two tensors as large as the scores, three
    masks and 17 bytes a row; then probabilities in 16 bits, what they give, and a copy of the
    values' up-projection. With several sequences key and value are copied to all heads."""
    model, s, heads = shape.model, shape.seq_length, shape.local_heads
    rank, several = model.kv_lora_rank, shape.micro_batch_size > 1
    probs = Tensor("attention_probs", (shape.micro_batch_size, heads, s, s), shape.dtype)
    latent = shape.activation("attended_latent", heads, rank)
    up = Tensor("v_up_weight", (heads, model.v_head_dim, rank), shape.dtype)
    pairs, scores = probs.num_elements, probs.num_elements * _FP32
    kept = (
        Tensor("query_fp32", query.shape, DType.FP32),
        Tensor("key_fp32", (query if several else kv).shape, DType.FP32),
        Tensor("softmax", (2, *probs.shape), DType.FP32),
        Tensor("softmax.masks", (3, *probs.shape), DType.BOOL),
        Tensor("softmax.rows", (17, *probs.shape[:-1]), DType.UINT8),
    )
    choose = Operator(
        "attention_scores",
        _CORE,
        (query, kv, places),
        (probs,),
        unit=ComputeUnit.ATTENTION,
        fp32=True,
        saved=kept,
        gradient_free_inputs=frozenset({places.name}),
        attention_flops=2 * pairs * query.shape[-1],
        forward_workspace=2 * scores,
        backward_workspace=17 * scores // 4,
        extra_forward_bytes=_PASSES * scores,
        extra_backward_bytes=_BACKWARD_PASSES * scores,
    )
    attend = Operator(
        "attention_context",
        _CORE,
        (probs, kv),
        (shape.activation("core_attn_out", heads, model.v_head_dim),),
        unit=ComputeUnit.ATTENTION,
        saved=(probs, shape.activation("value", heads, rank) if several else kv, latent, up),
        attention_flops=2 * (pairs + shape.tokens * heads * model.v_head_dim) * rank,
        forward_workspace=latent.num_bytes,
        backward_workspace=latent.num_bytes + up.num_bytes,
    )
    return choose, attend
