"""Self-attention: projections, rotary embedding and core attention (MHA and GQA)."""

from msgspec.structs import replace

from advisor.layers.megatron import linear
from advisor.layers.megatron.core_attention import MIXED_QKV, core_attention, heads_tensor
from advisor.layers.megatron.quantization import attention_output
from advisor.layers.operators import Collective, CollectiveKind, Group, Module, Operator, Tensor
from advisor.layers.shape import RankShape
from advisor.models.layer_kind import DENSE, LayerKind
from advisor.models.options import PositionEmbedding


def attention_operators(
    shape: RankShape, source: Tensor, kind: LayerKind = DENSE
) -> tuple[Operator, ...]:
    """From the normalized input to linear_proj's output, the tensor that the residual is added to.
    Source: megatron-core 0.16.1 transformer/attention.py (SelfAttention.forward), whose variables
    live until it returns."""
    mixed, projection = _linear_qkv(shape, source)
    query, key, value, middle = _query_key_value(shape, mixed, kind)
    core = _core_attention(shape, query, key, value, kind)
    if shape.model.attention_output_gate:
        core = (*core, _output_gate(shape, core[-1].outputs[0], middle))
    variables = tuple(t.storage for operator in middle for t in operator.outputs)
    return (projection, *middle, *core, linear_proj(shape, core[-1].outputs[0], variables))


def _core_attention(
    shape: RankShape, query: Tensor, key: Tensor, value: Tensor, kind: LayerKind
) -> tuple[Operator, ...]:
    """Core attention. In chunks it is that of packed sequences of a chunk each, whose output is put
    back in order by a copy (Megatron Bridge 0.3.1 models/llama/llama4_utils.py, which cuts layers
    without rotary positions too; the model's authors do not)."""
    chunk = shape.model.attention_chunk_size
    if chunk is None or not kind.rotary:
        return core_attention(shape, query, key, value, kind.mixer)
    chunked = replace(shape, mean_packed_length=min(chunk, shape.attended_length))
    core = core_attention(chunked, query, key, value, kind.mixer)
    if not _cuts_chunks(shape, kind):
        return core
    output = core[-1].outputs[0]
    joined = Tensor(f"{output.name}_joined", output.shape, output.dtype)
    return *core, Operator("join_chunks", Module.LINEAR_PROJ, (output,), (joined,))


def _cuts_chunks(shape: RankShape, kind: LayerKind) -> bool:
    """Whether q, k and v are copied into chunks of the sequence."""
    chunk = shape.model.attention_chunk_size
    return kind.rotary and chunk is not None and shape.local_seq > chunk


def _output_gate(shape: RankShape, source: Tensor, middle: tuple[Operator, ...]) -> Operator:
    """source x sigmoid(gate), one compiled kernel: keeps both as they come (_apply_output_gate)."""
    gate = next(t for operator in middle for t in operator.outputs if t.name == _GATE)
    return Operator(
        "output_gate",
        Module.OUTPUT_GATE,
        (source, gate),
        (Tensor("core_attn_gated", source.shape, shape.dtype),),
        saved=(source, gate),
    )


def _linear_qkv(shape: RankShape, source: Tensor) -> tuple[Tensor, Operator]:
    """Column-parallel QKV projection; saves its input as the SP shard. Its weight is cut by TP even
    where TP ranks share key and value heads."""
    model = shape.model
    width = _mixed_width(shape) // shape.tp
    mixed = shape.activation("mixed_qkv_shard" if _shares_groups(shape) else MIXED_QKV, width)
    bias = model.add_bias_linear or model.add_qkv_bias
    return mixed, linear.column_parallel_linear(
        shape, "linear_qkv", Module.LINEAR_QKV, source, mixed, bias=bias
    )


def _mixed_width(shape: RankShape) -> int:
    """Width of q, k and v of all heads together, and of the output's gate, as wide as q."""
    model = shape.model
    queries = 2 if model.attention_output_gate else 1
    return queries * model.query_projection_size + 2 * model.kv_projection_size


def _shares_groups(shape: RankShape) -> bool:
    """Whether several TP ranks work with the same key and value heads."""
    return shape.model.num_query_groups < shape.tp


def _gather_mixed(shape: RankShape, shard: Tensor) -> tuple[Tensor, Operator]:
    """The whole mixed_qkv on every rank, of which q, k and v are views (TP > num_query_groups). The
    last dimension is gathered into the first one and put together by a copy; the gradient goes the
    same way back (megatron-core 0.16.1 attention.py, tensor_parallel/mappings.py)."""
    whole = shape.activation(MIXED_QKV, _mixed_width(shape))
    return whole, Operator(
        "gather_mixed_qkv",
        Module.LINEAR_QKV,
        (shard,),
        (whole,),
        forward_workspace=whole.num_bytes,
        backward_workspace=whole.num_bytes,
        **Collective.both_ways(CollectiveKind.ALL_GATHER, Group.TENSOR, whole.num_bytes),
    )


def _query_key_value(
    shape: RankShape, mixed: Tensor, kind: LayerKind
) -> tuple[Tensor, Tensor, Tensor, tuple[Operator, ...]]:
    """What core attention reads as q, k and v, and the operators that make them. They are views of
    mixed_qkv, but the query of grouped attention is a copy (`reshape` of a strided slice); RoPE and
    q/k norm write new tensors, chunks are copies; else V stays a view."""
    model = shape.model
    operators: list[Operator] = []
    if _shares_groups(shape):
        mixed, gather = _gather_mixed(shape, mixed)
        operators.append(gather)
    query, key, value, *gate = _split(shape, mixed)
    operators.append(Operator("split_qkv", Module.LINEAR_QKV, (mixed,), (query, key, value, *gate)))
    if model.qk_layernorm or (model.qk_l2_norm and kind.rotary):
        query, query_norm = _head_norm(shape, query, "query_norm")
        key, key_norm = _head_norm(shape, key, "key_norm")
        operators += [query_norm, key_norm]
    if _cuts_chunks(shape, kind):
        sources = (query, key, value)
        query, key, value = (Tensor(f"{t.name}_chunks", t.shape, t.dtype) for t in sources)
        operators.append(Operator("cut_chunks", Module.ROTARY, sources, (query, key, value)))
    if model.position_embedding_type is PositionEmbedding.ROPE and kind.rotary:
        query, key, rotary = _rotary(shape, query, key)
        operators.append(rotary)
    return query, key, value, tuple(operators)


def _split(shape: RankShape, mixed: Tensor) -> tuple[Tensor, ...]:
    """q, k, v, and the gate where there is one: copied where the query is."""
    query = heads_tensor(shape, "query", shape.local_heads)
    groups = heads_tensor(shape, "key", shape.local_groups).shape
    key, value = (mixed.view(name, groups) for name in ("key", "value"))
    names = ("query", _GATE) if shape.model.attention_output_gate else ("query",)
    if shape.local_heads > shape.local_groups > 1:
        query, *gate = (Tensor(name, query.shape, shape.dtype) for name in names)
    else:
        query, *gate = (mixed.view(name, query.shape) for name in names)
    return query, key, value, *gate


_GATE = "output_gate"


def _head_norm(shape: RankShape, source: Tensor, name: str) -> tuple[Tensor, Operator]:
    """q or k normalized over the head dimension; keeps the storage that it reads. The L2 norm has
    no weight, and compiled keeps the same (transformer/torch_norm.py L2Norm)."""
    output = Tensor(name, source.shape, shape.dtype)
    norm = linear.norm_operator(shape, Module.QK_LAYERNORM, source, output)
    if shape.model.qk_l2_norm:
        norm = replace(norm, weights=())
    return output, norm


def rotary_tables(shape: RankShape) -> tuple[Tensor, ...]:
    """cos and sin for q and for k, [seq_length / cp, 1, 1, rotary dimension] each."""
    return tuple(
        Tensor(f"rope_{name}", (shape.local_seq, 1, 1, shape.model.rotary_dim), shape.dtype)
        for name in ("cos_q", "sin_q", "cos_k", "sin_k")
    )


def _rotary(shape: RankShape, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor, Operator]:
    """Rotary embedding of q and k.

    Unfused (local spec: rope_utils._apply_rotary_pos_emb_bshd) keeps its tables, per layer and not
    divided by TP. The fused kernel of Transformer Engine keeps only the shared frequencies, and
    moves two tensors of its input's size where five unfused kernels move ten."""
    fused = shape.model.apply_rope_fusion and not shape.is_local
    roped_query = Tensor("query_rope", query.shape, shape.dtype)
    roped_key = Tensor("key_rope", key.shape, shape.dtype)
    traffic = 0 if fused else UNFUSED_ROTARY * (query.num_bytes + key.num_bytes)
    operator = Operator(
        "rotary_pos_emb",
        Module.ROTARY,
        (query, key),
        (roped_query, roped_key),
        saved=() if fused else rotary_tables(shape),
        extra_forward_bytes=traffic,
        extra_backward_bytes=traffic,
    )
    return roped_query, roped_key, operator


UNFUSED_ROTARY = 8
"""Passes beyond one read and one write: x * cos (2), half of x negated (1), the halves joined (2),
times sin (2), the sum (3); back the same (rope_utils._apply_rotary_pos_emb_bshd)."""


def linear_proj(shape: RankShape, source: Tensor, variables: tuple[Tensor, ...]) -> Operator:
    """Row-parallel output projection; its input shares core attention's output. The variables of
    the attention's forward live until it returns."""
    return linear.row_parallel_linear(
        shape,
        "linear_proj",
        Module.LINEAR_PROJ,
        source,
        shape.hidden("attention_out"),
        bias=shape.model.add_bias_linear,
        saved=attention_output(shape, source),
        forward_holds=variables,
    )
