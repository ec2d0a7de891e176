"""Multi-latent attention: q, k and v through low-rank projections (arXiv 2405.04434, 2.1).

Source: megatron-core 0.16.1 transformer/multi_latent_attention.py (MLASelfAttention) and
fusions/fused_mla_yarn_rope_apply.py.
"""

from advisor.layers.megatron.attention import UNFUSED_ROTARY, linear_proj, rotary_tables
from advisor.layers.megatron.core_attention import core_attention, heads_tensor
from advisor.layers.megatron.linear import column_parallel_linear, duplicated_linear, norm_operator
from advisor.layers.megatron.mappings import (
    cuts_sequence,
    gather_sequence,
    gather_width,
    scatter_sequence,
)
from advisor.layers.operators import Module, Operator, Tensor
from advisor.layers.shape import RankShape
from advisor.models.options import RopeType

Operators = tuple[Operator, ...]
_DOWN = Module.QKV_DOWN_PROJ


def latent_attention_operators(shape: RankShape, source: Tensor) -> Operators:
    """From the normalized input to linear_proj's output, the tensor that the residual is added to.
    Down-projections of the query (where q_lora_rank is set) and of keys and values, norms,
    up-projections, rotary embedding of a part of every head, core attention, output projection."""
    rank = shape.model.q_lora_rank
    query_source, down_query = (source, ()) if rank is None else _compressed_query(shape, source)
    kv_source, k_pos_emb, down_kv = _compressed_kv(shape, source)
    query_in, query_norm = (source, ()) if rank is None else _norm(shape, query_source, "query")
    kv_in, kv_norm = _norm(shape, kv_source, "kv")
    before = (*down_query, *down_kv, *query_norm, *kv_norm)
    if shape.model.has_sparse_attention:
        from advisor.layers.megatron.sparse_attention import absorbed_attention

        core = absorbed_attention(shape, source, query_in, kv_in, k_pos_emb)
        held = next(one.outputs for one in core if one.name == "absorb_keys")
    else:
        up = _up_projections(shape, query_in, kv_in)
        rope = _rotary(shape, up[0].outputs[0], up[1].outputs[0], k_pos_emb)
        query, key, value = held = rope.outputs
        core = (*up, rope, *core_attention(shape, query, key, value))
    variables = tuple(tensor.storage for tensor in (*held, query_in, kv_in))
    return (*before, *core, linear_proj(shape, core[-1].outputs[0], variables))


def _compressed_query(shape: RankShape, source: Tensor) -> tuple[Tensor, Operators]:
    """[seq_length / cp (/ tp under SP), micro_batch_size, q_lora_rank]. Megatron's own layer cuts
    the rank by TP and gathers it for the whole sequence, of which SP takes a view; Transformer
    Engine's gives every rank the whole weight and its own tokens."""
    rank = shape.model.q_lora_rank or 0
    whole, operators = _down_projection(shape, "linear_q_down_proj", source, rank)
    if not cuts_sequence(shape) or not shape.is_local:
        return whole, operators
    part = whole.view("q_compressed", (shape.norm_seq, *whole.shape[1:]))
    return part, (*operators, scatter_sequence(shape, _DOWN, whole, part))


def _compressed_kv(shape: RankShape, source: Tensor) -> tuple[Tensor, Tensor, Operators]:
    """Compressed keys and values, and the keys' rotary part [seq_length / cp, b, 1 head]. Both are
    views of one projection's output. SP cuts the former (a copy on the local spec) and gathers the
    latter (Transformer Engine)."""
    model = shape.model
    rope = model.qk_pos_emb_head_dim
    combined, operators = _down_projection(
        shape, "linear_kv_down_proj", source, model.kv_lora_rank + rope
    )
    tokens = combined.shape[:2]
    compressed = combined.view("kv_compressed", (*tokens, model.kv_lora_rank))
    k_pos_emb = combined.view("k_pos_emb", (*tokens, rope))
    split = Operator("split_kv", _DOWN, (combined,), (compressed, k_pos_emb))
    if not cuts_sequence(shape):
        return compressed, k_pos_emb, (*operators, split)
    if shape.is_local:
        tokens = shape.norm_seq, shape.micro_batch_size
        part = Tensor("kv_compressed", (*tokens, model.kv_lora_rank), shape.dtype)
        scatter = scatter_sequence(shape, _DOWN, combined, part, k_pos_emb)
        return part, k_pos_emb, (*operators, scatter)
    gathered = shape.activation("k_pos_emb_gathered", rope)
    return compressed, gathered, (*operators, split, gather_sequence(_DOWN, k_pos_emb, gathered))


def _down_projection(
    shape: RankShape, name: str, source: Tensor, width: int
) -> tuple[Tensor, Operators]:
    """The projection's whole width, and what makes it."""
    module, output = _DOWN, f"{name}_out"
    if not shape.is_local:
        whole = Tensor(output, (*source.shape[:2], width), shape.dtype)
        return whole, (duplicated_linear(shape, name, module, source, whole),)
    whole, part = shape.activation(output, width), shape.activation(output, width // shape.tp)
    if shape.tp == 1:
        return whole, (column_parallel_linear(shape, name, module, source, whole, bias=False),)
    part = Tensor(f"{output}_shard", part.shape, part.dtype)
    linear = column_parallel_linear(shape, name, module, source, part, bias=False)
    return whole, (linear, gather_width(module, part, whole))


def _norm(shape: RankShape, source: Tensor, name: str) -> tuple[Tensor, Operators]:
    """q_layernorm or kv_layernorm, where qk_layernorm is set; Transformer Engine has them inside
    the up-projection, apart before an indexer, and first copies an input that is no contiguous
    tensor (module/base.py, ops/basic/rmsnorm.py)."""
    operators: list[Operator] = []
    if not shape.is_local and source.base is not None:
        copy = Tensor(f"{source.name}_contiguous", source.shape, shape.dtype)
        inside = Module.QK_LAYERNORM if shape.model.has_sparse_attention else Module.QKV_UP_PROJ
        operators.append(Operator(copy.name, inside, (source,), (copy,)))
        source = copy
    if not shape.model.qk_layernorm:
        return source, tuple(operators)
    output = Tensor(f"{name}_compressed_normed", source.shape, shape.dtype)
    operators.append(norm_operator(shape, Module.QK_LAYERNORM, source, output))
    return output, tuple(operators)


def _up_projections(shape: RankShape, query: Tensor, kv: Tensor) -> Operators:
    """Column-parallel projections to all heads of this rank."""
    model = shape.model
    name = "linear_q_proj" if model.q_lora_rank is None else "linear_q_up_proj"
    widths = model.qk_channels, model.qk_head_dim + model.v_head_dim
    query_up, kv_up = (
        shape.activation(output, shape.local_heads * width)
        for output, width in zip(("query_up", "kv_up"), widths, strict=True)
    )
    module = Module.QKV_UP_PROJ
    return (
        column_parallel_linear(shape, name, module, query, query_up, bias=False),
        column_parallel_linear(shape, "linear_kv_up_proj", module, kv, kv_up, bias=False),
    )


def _rotary(shape: RankShape, query_up: Tensor, kv_up: Tensor, k_pos_emb: Tensor) -> Operator:
    """Rotary embedding of the last channels of q and of the key that all heads share.

    Unfused, q and k are put together from their parts and v is copied, all three new; cos and sin
    tables are kept. Fused (yarn alone), q is rotated in place, its other channels are not touched,
    and no table is kept."""
    model = shape.model
    fused = model.apply_rope_fusion and not shape.is_local and model.rope_type is RopeType.YARN
    query, key, value = (
        heads_tensor(shape, name, shape.local_heads, channels)
        for name, channels in (
            ("query", model.qk_channels),
            ("key", model.qk_channels),
            ("value", model.v_channels),
        )
    )
    if fused:
        query = query_up.view("query", query.shape)
    channel = shape.tokens * shape.dtype.itemsize
    rotated = (shape.local_heads + 1) * model.qk_pos_emb_head_dim * channel
    untouched = 2 * shape.local_heads * model.qk_head_dim * channel
    extra = -untouched if fused else UNFUSED_ROTARY * rotated
    return Operator(
        "rotary_pos_emb",
        Module.QKV_UP_PROJ,
        (query_up, kv_up, k_pos_emb),
        (query, key, value),
        saved=() if fused else rotary_tables(shape),
        gradient_passed_to=frozenset({query_up.name} if fused else ()),
        extra_forward_bytes=extra,
        extra_backward_bytes=extra,
    )
