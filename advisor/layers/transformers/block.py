"""Decoder layers of Hugging Face's transformers: Llama's, Gemma's, OLMo 2's, and GPT-2's.

Source: transformers 5.23.0 models/llama/modeling_llama.py (Mistral, Qwen2 and Qwen3 share its
parts), models/gemma2, gemma3, gemma4, olmo2 and gpt2, activations.py.
"""

from msgspec.structs import replace

from advisor.base.dtypes import DType
from advisor.layers.eager.parts import (
    activation,
    by_head,
    dropout,
    hidden,
    linear,
    multiplied,
    nonlinearity,
    residual,
    rotate_half,
)
from advisor.layers.operators import LAYER_INPUT, Module, Operator, Tensor, cached_operators
from advisor.layers.shape import RankShape
from advisor.layers.transformers.core_attention import core_attention
from advisor.layers.transformers.liger import liger_rotary, liger_swiglu, tiled_mlp
from advisor.layers.transformers.moe import sparse_moe_block
from advisor.layers.transformers.norms import norm
from advisor.layers.transformers.per_layer_input import own_input, with_own_input
from advisor.layers.transformers.tower_blocks import vision_block
from advisor.models.layer_kind import DENSE, FeedForward, LayerKind, Role
from advisor.models.options import Activation, PositionEmbedding


@cached_operators
def transformers_layer(shape: RankShape, kind: LayerKind = DENSE) -> tuple[Operator, ...]:
    """Operators of one decoder layer: attention, add, MLP, add, with norms before attention and
    MLP, after them, or both."""
    if kind.role is Role.VISION:
        return vision_block(shape, kind)
    shape = shape.of_kind(kind)
    layer_input, after_attention = (
        hidden(shape, name) for name in (LAYER_INPUT, "after_attention")
    )
    first = shape.model.norm_placement.before
    normed, norms = _norm(first, shape, "input_layernorm", Module.INPUT_LAYERNORM, layer_input)
    before = (*own_input(shape, layer_input), *norms)
    attended = _attention(shape, normed, layer_input, after_attention, kind)
    # GPT2Block's variable attn_output lives until the block returns, as does its caller's input.
    held = (layer_input, attended[-1].inputs[0]) if _is_gpt2(shape) else (layer_input,)
    mlp_input, between = _norm(
        first, shape, "pre_feedforward_layernorm", Module.PRE_MLP_LAYERNORM, after_attention
    )
    if shape.model.moe_separate_norms and kind.feed_forward is FeedForward.MOE:
        experts = _experts_and_mlp(shape, mlp_input, after_attention, held)
        return (*before, *attended, *between, *experts)
    if kind.feed_forward is FeedForward.MOE:
        experts = sparse_moe_block(shape, mlp_input)
        (routed,), output = experts[-1].outputs, hidden(shape, "layer_output")
        add = residual("mlp_residual", Module.MLP_BDA, routed, after_attention, output, held)
        return (*before, *attended, *between, *experts, add)
    return (*before, *attended, *between, *_mlp(shape, mlp_input, after_attention, held))


def _norm(
    there: bool, shape: RankShape, name: str, module: Module, source: Tensor
) -> tuple[Tensor, tuple[Operator, ...]]:
    """What attention or MLP reads, or what is added to the residual: `source`, or what a norm makes
    of it where one is `there`. The gradient of what is added is the residual's as well, which
    waits."""
    if not there:
        return source, ()
    output = hidden(shape, f"{name}_out")
    operator = norm(shape, name, module, source, output)
    waits = output.num_bytes if module in _ADDED else 0
    return output, (replace(operator, backward_workspace=operator.backward_workspace + waits),)


_ADDED = (Module.POST_ATTENTION_LAYERNORM, Module.POST_MLP_LAYERNORM)


def _is_gpt2(shape: RankShape) -> bool:
    return shape.model.position_embedding_type is PositionEmbedding.LEARNED


def _attention(
    shape: RankShape, source: Tensor, skip: Tensor, output: Tensor, kind: LayerKind
) -> tuple[Operator, ...]:
    """q_proj, k_proj, v_proj (or GPT-2's c_attn), q/k norms, rotary, attention, o_proj, residual.
    sdpa_attention_forward passes grouped keys and values on unexpanded (enable_gqa)."""
    model = shape.model
    query, key, value, before = _query_key_value(shape, source, kind)
    query, key, cast = _narrow(shape, query, key)
    core = (*cast, *core_attention(shape, query, key, value, kind))
    (attended,), out = core[-1].outputs, hidden(shape, "o_proj_out", shape.dtype)
    bias, held = model.add_bias_linear, (source, query, key, value)
    o_proj = linear(shape, "o_proj", Module.LINEAR_PROJ, attended, out, bias=bias, holds=held)
    branch, dropped = dropout("resid_dropout_out", Module.SELF_ATTN_BDA, out, model.hidden_dropout)
    after, place = model.norm_placement.after, Module.POST_ATTENTION_LAYERNORM
    branch, norm = _norm(after, shape, "post_attention_layernorm", place, branch)
    add = residual("attention_residual", Module.SELF_ATTN_BDA, branch, skip, output)
    return (*before, *core, o_proj, *dropped, *norm, add)


def _narrow(
    shape: RankShape, query: Tensor, key: Tensor
) -> tuple[Tensor, Tensor, tuple[Operator, ...]]:
    """Queries and keys as attention takes them: of fp32 ones autocast makes 16-bit copies."""
    if query.dtype is shape.dtype:
        return query, key, ()
    first, second = (Tensor(f"{t.name}.narrow", t.shape, shape.dtype) for t in (query, key))
    copies = first, second
    return *copies, (Operator("attention_cast", Module.CORE_ATTENTION, (query, key), copies),)


def _query_key_value(
    shape: RankShape, source: Tensor, kind: LayerKind
) -> tuple[Tensor, Tensor, Tensor, tuple[Operator, ...]]:
    model = shape.model
    heads, groups = shape.local_heads * model.kv_channels, shape.local_groups * model.kv_channels
    if _is_gpt2(shape):
        return _c_attn(shape, source, heads, groups)
    bias = model.add_bias_linear or model.add_qkv_bias
    operators: list[Operator] = []
    projected = []
    for name, width in (("q", heads), ("k", groups), ("v", groups)):
        reads = "k" if name == "v" and model.attention_k_eq_v else name
        if kind.reuses_keys and name != "q":
            elsewhere = Tensor(f"{name}_of_another_layer", (0,), shape.dtype)
            projected.append(elsewhere.view(f"shared_{name}", (*source.shape[:2], width)))
            continue
        out = activation(shape, f"{reads}_proj_out", width)
        if reads == name:
            operators.append(
                linear(shape, f"{name}_proj", Module.LINEAR_QKV, source, out, bias=bias)
            )
        if model.v_layernorm if name == "v" else model.qk_layernorm:
            if not model.qk_layernorm_across_heads:
                out = by_head(shape, out, width // model.kv_channels)
            normed, place = Tensor(f"{name}_norm_out", out.shape, out.dtype), Module.QK_LAYERNORM
            operators.append(norm(shape, f"{name}_norm", place, out, normed, scaled=name != "v"))
            out = normed
        projected.append(out)
    query, key, value = projected
    if model.position_embedding_type is PositionEmbedding.ROPE:
        if shape.use_liger_kernel:
            operators += liger_rotary(query, key)
            query, key = (operator.outputs[0] for operator in operators[-2:])
        else:
            tables = _own_tables(shape) if model.rotary_interleaved else ()
            turned = (query,) if kind.reuses_keys else (query, key)
            operators.append(rotate_half(turned, tables, shape.stream_dtype))
            query, key = (*operators[-1].outputs, key)[:2]
    return query, key, value, tuple(operators)


def _own_tables(shape: RankShape) -> tuple[Tensor, Tensor]:
    """cos and sin of neighbouring channels, which each layer puts together in fp32 (ERNIE 4.5)."""
    size = shape.local_seq, shape.model.rotary_dim
    return Tensor("rotary_cos", size, DType.FP32), Tensor("rotary_sin", size, DType.FP32)


def _c_attn(
    shape: RankShape, source: Tensor, heads: int, groups: int
) -> tuple[Tensor, Tensor, Tensor, tuple[Operator, ...]]:
    """GPT-2's one projection, of which q, k and v are views."""
    mixed = activation(shape, "c_attn_out", heads + 2 * groups)
    projection = linear(shape, "c_attn", Module.LINEAR_QKV, source, mixed, bias=True)
    views = tuple(
        mixed.view(name, (*mixed.shape[:2], width))
        for name, width in (("query", heads), ("key", groups), ("value", groups))
    )
    split = Operator("split", Module.LINEAR_QKV, (mixed,), views)
    query, key, value = views
    return query, key, value, (projection, split)


def _mlp(
    shape: RankShape, source: Tensor, skip: Tensor, held: tuple[Tensor, ...]
) -> tuple[Operator, ...]:
    """The MLP and the residual."""
    if shape.tiled_mlp:
        *tiled, last = tiled_mlp(shape, source)
        output = hidden(shape, "layer_output")
        add = residual("mlp_residual", Module.MLP_BDA, last.outputs[0], skip, output, holds=held)
        return (*tiled, last, add)
    operators, branch = _linear_layers(shape, source)
    return (*operators, *_end(shape, branch, skip, held))


def _linear_layers(shape: RankShape, source: Tensor) -> tuple[tuple[Operator, ...], Tensor]:
    """down_proj(act(gate_proj x) * up_proj x), or GPT-2's c_fc, act, c_proj, and its dropout."""
    model = shape.model
    bias, width = model.add_bias_linear, model.ffn_hidden_size
    gated = model.activation.gated
    first = activation(shape, "gate_proj_out" if gated else "c_fc_out", width)
    name = first.name.removesuffix("_out")
    operators = [linear(shape, name, Module.LINEAR_FC1, source, first, bias=bias)]
    activated = activation(shape, "act_fn_out", width)
    fused = shape.use_liger_kernel
    if not fused:
        operators += _activation(model.activation, first, activated)
    if gated or fused:
        up, product = activation(shape, "up_proj_out", width), activation(shape, "product", width)
        operators += [
            linear(shape, "up_proj", Module.LINEAR_FC1, source, up, bias=bias),
            liger_swiglu(first, up, product) if fused else multiplied(activated, up, product),
        ]
        activated = product
    name = "mlp_out" if model.moe_separate_norms else "down_proj_out"  # experts have the other
    out = hidden(shape, name, shape.dtype)
    operators.append(
        linear(shape, "down_proj", Module.LINEAR_FC2, activated, out, bias=bias, holds=(source,))
    )
    branch, dropped = dropout("mlp_dropout_out", Module.MLP_BDA, out, model.hidden_dropout)
    return (*operators, *dropped), branch


def _end(
    shape: RankShape, branch: Tensor, skip: Tensor, held: tuple[Tensor, ...]
) -> tuple[Operator, ...]:
    """Norm of the branch and residual, which Gemma 4 multiplies by a number where it lies."""
    after, place = shape.model.norm_placement.after, Module.POST_MLP_LAYERNORM
    branch, norm = _norm(after, shape, "post_feedforward_layernorm", place, branch)
    output = hidden(shape, "layer_output")
    if not shape.model.layer_scalar:
        return (*norm, residual("mlp_residual", Module.MLP_BDA, branch, skip, output, held))
    total = hidden(shape, "mlp_residual_out")
    add = residual("mlp_residual", Module.MLP_BDA, branch, skip, total, held)
    own: tuple[Operator, ...] = ()
    if shape.model.hidden_size_per_layer_input is not None:
        own, total = with_own_input(shape, total, held)
    product = total.view(output.name, output.shape)
    return (*norm, add, *own, Operator("layer_scalar", Module.MLP_BDA, (total,), (product,)))


def _experts_and_mlp(
    shape: RankShape, source: Tensor, skip: Tensor, held: tuple[Tensor, ...]
) -> tuple[Operator, ...]:
    """Gemma 4's dense MLP and experts, which read what came before its norm; norms around each."""
    dense, branch = _linear_layers(shape, source)
    before, after = Module.PRE_MLP_LAYERNORM, Module.POST_MLP_LAYERNORM
    first, norm = _norm(True, shape, "post_feedforward_layernorm_1", after, branch)
    read, norm_before = _norm(True, shape, "pre_feedforward_layernorm_2", before, skip)
    experts = sparse_moe_block(shape, read, skip)
    (routed,) = experts[-1].outputs
    second, norm_after = _norm(True, shape, "post_feedforward_layernorm_2", after, routed)
    total = hidden(shape, "mlp_and_experts")
    add = residual("add_experts", Module.COMBINE, first, second, total, (branch,))
    end = _end(shape, total, skip, held)
    return (*dense, *norm, *norm_before, *experts, *norm_after, add, *end)


def _activation(activation: Activation, source: Tensor, output: Tensor) -> list[Operator]:
    """What ACT2FN makes of the model's activation; only gelu_new is more than torch's function."""
    if activation is not Activation.GELU:
        return nonlinearity(activation, source, output)
    half, inner, tanh, one_plus = (
        Tensor(f"gelu.{name}", source.shape, source.dtype)
        for name in ("half", "inner", "tanh", "one_plus_tanh")
    )
    size = source.num_bytes
    return [
        Operator("gelu.half", Module.ACTIVATION, (source,), (half,)),
        Operator(
            "gelu.cubic",
            Module.ACTIVATION,
            (source,),
            (inner,),
            saved=(source,),
            forward_workspace=size,
            backward_workspace=3 * size,
        ),
        Operator("gelu.tanh", Module.ACTIVATION, (inner,), (tanh,), saved=(tanh,)),
        Operator("gelu.one_plus", Module.ACTIVATION, (tanh,), (one_plus,)),
        multiplied(half, one_plus, output, "gelu.multiply"),
    ]
