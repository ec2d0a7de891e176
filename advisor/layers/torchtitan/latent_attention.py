"""Multi-latent attention of torchtitan's DeepSeek-V3, step by step in eager torch.

Source: torchtitan 0.2.2 models/deepseek_v3/model/model.py (Attention), infra/parallelize.py. The
attention kernel keeps what a fused one does; torchtitan's presets choose flex attention, whose
block mask is not counted.
"""

from advisor.layers.eager.context_parallel import attention_over_ranks
from advisor.layers.eager.parts import activation, fused_norm, in_fp32, linear
from advisor.layers.operators import Module, Operator, Tensor
from advisor.layers.shape import RankShape
from advisor.layers.torchtitan.collectives import whole_hidden

Operators = tuple[Operator, ...]


def latent_attention(shape: RankShape, source: Tensor) -> tuple[Operators, tuple[Tensor, ...]]:
    """From the normalized input to wo's output, and what variables of Attention.forward hold until
    it returns: parts of what the projections wrote are views of it."""
    query, q_operators, q_held = _query(shape, source)
    key, value, kv_operators, kv_held = _key_value(shape, source)
    core = attention_over_ranks(shape, query, key, value)
    held = (source, *q_held, *kv_held, query, key, *core[-1].outputs)
    (attended,), output = core[-1].outputs, whole_hidden(shape, "wo_out")
    wo = linear(shape, "wo", Module.LINEAR_PROJ, attended, output, bias=False, holds=held)
    return (*q_operators, *kv_operators, *core, wo), held


def _query(shape: RankShape, source: Tensor) -> tuple[Tensor, Operators, tuple[Tensor, ...]]:
    model = shape.model
    heads, plain, rope = shape.local_heads, model.qk_head_dim, model.qk_pos_emb_head_dim
    operators: list[Operator] = []
    if model.q_lora_rank is not None:
        down, normed = (
            activation(shape, f"{name}_out", model.q_lora_rank) for name in ("wq_a", "q_norm")
        )
        operators = [
            linear(shape, "wq_a", Module.QKV_DOWN_PROJ, source, down, bias=False),
            fused_norm(shape, "q_norm", Module.QK_LAYERNORM, down, normed),
        ]
        source = normed
    name = "wq" if model.q_lora_rank is None else "wq_b"
    whole = activation(shape, f"{name}_out", heads * (plain + rope))
    parts = _views(whole, q_nope=heads * plain, q_rope=heads * rope)
    rotated = activation(shape, "q_pe", heads * rope)
    query = activation(shape, "query", heads * (plain + rope))
    operators += [
        linear(shape, name, Module.QKV_UP_PROJ, source, whole, bias=False),
        _split("split_query", whole, parts),
        _rotate("rotary_query", parts[1], rotated),
        _join("join_query", (parts[0], rotated), query, passed=(parts[0], rotated)),
    ]
    return query, tuple(operators), (whole, rotated)


def _key_value(
    shape: RankShape, source: Tensor
) -> tuple[Tensor, Tensor, Operators, tuple[Tensor, ...]]:
    """The keys' rotary part is one head, which all heads' keys copy."""
    model, heads = shape.model, shape.local_heads
    rank, rope = model.kv_lora_rank, model.qk_pos_emb_head_dim
    plain, wide = model.qk_head_dim, model.v_head_dim
    down = activation(shape, "wkv_a_out", rank + rope)
    compressed = _views(down, kv_compressed=rank, k_rope=rope)
    rotated, normed = activation(shape, "k_pe", rope), activation(shape, "kv_norm_out", rank)
    whole = activation(shape, "wkv_b_out", heads * (plain + wide))
    parts = _views(whole, k_nope=heads * plain, value=heads * wide)
    key = activation(shape, "key", heads * (plain + rope))
    operators = (
        linear(shape, "wkv_a", Module.QKV_DOWN_PROJ, source, down, bias=False),
        _split("split_kv", down, compressed),
        _rotate("rotary_key", compressed[1], rotated),
        fused_norm(shape, "kv_norm", Module.QK_LAYERNORM, compressed[0], normed),
        linear(shape, "wkv_b", Module.QKV_UP_PROJ, normed, whole, bias=False),
        _split("split_heads", whole, parts),
        _join("join_key", (parts[0], rotated), key, passed=(parts[0],)),
    )
    return key, parts[1], operators, (rotated, whole)


def _views(whole: Tensor, **widths: int) -> tuple[Tensor, ...]:
    return tuple(whole.view(name, (*whole.shape[:-1], size)) for name, size in widths.items())


def _split(name: str, whole: Tensor, parts: tuple[Tensor, ...]) -> Operator:
    """torch.split: its parts are views, whose gradients it puts together."""
    return Operator(name, Module.ROTARY, (whole,), parts)


def _join(
    name: str, parts: tuple[Tensor, ...], joined: Tensor, *, passed: tuple[Tensor, ...]
) -> Operator:
    """torch.cat: the gradients of the parts `passed` are views of its own."""
    names = frozenset(tensor.name for tensor in passed)
    return Operator(name, Module.ROTARY, parts, (joined,), gradient_passed_to=names)


def _rotate(name: str, part: Tensor, rotated: Tensor) -> Operator:
    """apply_rotary_emb: to fp32, a product of complex numbers, and back to 16 bit."""
    fp32 = in_fp32(part, part.name).num_bytes
    return Operator(
        name,
        Module.ROTARY,
        (part,),
        (rotated,),
        forward_workspace=2 * fp32,
        backward_workspace=2 * fp32 - part.num_bytes,
    )
