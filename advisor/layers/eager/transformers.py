"""Decoder layers of Hugging Face's transformers with SDPA attention: Llama's, and GPT-2's.

Source: transformers 5.23.0 models/llama/modeling_llama.py (Mistral, Qwen2 and Qwen3 share its
parts), models/gpt2/modeling_gpt2.py, activations.py, integrations/sdpa_attention.py.
"""

from dataclasses import replace
from functools import lru_cache

from advisor.dtypes import DType
from advisor.layers.eager.parts import (
    activation,
    attention,
    by_head,
    dropout,
    fused_norm,
    hidden,
    in_fp32,
    linear,
    nonlinearity,
    pointwise,
    residual,
    rotate_half,
    with_weight_gradients,
)
from advisor.layers.operators import (
    LAYER_INPUT,
    Module,
    Operator,
    Tensor,
    Weight,
)
from advisor.layers.shape import RankShape
from advisor.models.spec import Activation, Normalization, PositionEmbedding


@lru_cache(maxsize=4096)
def transformers_layer(shape: RankShape) -> tuple[Operator, ...]:
    """Operators of one decoder layer: input norm, attention, add, norm, MLP, add."""
    layer_input = hidden(shape, LAYER_INPUT)
    normed = hidden(shape, "input_layernorm_out")
    attended = _attention(shape, normed, layer_input, hidden(shape, "after_attention"))
    # GPT2Block's variable attn_output lives until the block returns, as does its caller's input.
    held = (layer_input, attended[-1].inputs[0]) if _is_gpt2(shape) else (layer_input,)
    after_attention = hidden(shape, "after_attention")
    mlp_input = hidden(shape, "post_attention_layernorm_out")
    return (
        norm(shape, "input_layernorm", Module.INPUT_LAYERNORM, layer_input, normed),
        *attended,
        norm(shape, "post_attention_layernorm", Module.PRE_MLP_LAYERNORM, after_attention,
             mlp_input),
        *_mlp(shape, mlp_input, after_attention, held),
    )  # fmt: skip


def _is_gpt2(shape: RankShape) -> bool:
    return shape.model.position_embedding_type is PositionEmbedding.LEARNED


def norm(shape: RankShape, name: str, module: Module, source: Tensor, output: Tensor) -> Operator:
    """LayerNorm is torch's kernel; LlamaRMSNorm computes in fp32, step by step.

    It keeps the fp32 copy of its input, 1/rms of each row, and the normalized tensor in 16 bit,
    which the weight multiplies; the input itself it does not keep. One more fp32 tensor lives while
    it runs forward (the square, then the product). In the backward five live beside the copy, when
    the 16-bit tensors are gone.
    """
    if shape.model.normalization is Normalization.LAYER_NORM:
        return fused_norm(shape, name, module, source, output)
    copy = in_fp32(source, f"{name}.fp32")
    inverse = Tensor(f"{name}.rsqrt", (*source.shape[:-1], 1), DType.FP32)
    normalized = Tensor(f"{name}.normalized", source.shape, source.dtype)
    operator = pointwise(
        name, module, (source,), output, saved=(copy, inverse, normalized),
        forward_workspace=copy.num_bytes - output.num_bytes,
        backward_workspace=5 * copy.num_bytes - 3 * output.num_bytes - inverse.num_bytes,
    )  # fmt: skip
    operator = replace(
        operator, weights=(Weight(f"{name}.weight", (source.shape[-1],)),),
        extra_forward_bytes=5 * copy.num_bytes, extra_backward_bytes=8 * copy.num_bytes,
    )  # fmt: skip
    return with_weight_gradients(operator)


def _attention(
    shape: RankShape, source: Tensor, skip: Tensor, output: Tensor
) -> tuple[Operator, ...]:
    """q_proj, k_proj, v_proj (or GPT-2's c_attn), q/k norms, rotary, attention, o_proj, residual.

    sdpa_attention_forward passes grouped keys and values on unexpanded (enable_gqa).
    """
    model = shape.model
    query, key, value, before = _query_key_value(shape, source)
    core = attention(shape, query, key, value)
    out = hidden(shape, "o_proj_out")
    o_proj = linear(shape, "o_proj", Module.LINEAR_PROJ, core.outputs[0], out,
                    bias=model.add_bias_linear, holds=(source, query, key, value))  # fmt: skip
    branch, dropped = dropout(
        shape, "resid_dropout_out", Module.SELF_ATTN_BDA, out, model.hidden_dropout
    )
    add = residual("attention_residual", Module.SELF_ATTN_BDA, branch, skip, output)
    return (*before, core, o_proj, *dropped, add)


def _query_key_value(
    shape: RankShape, source: Tensor
) -> tuple[Tensor, Tensor, Tensor, tuple[Operator, ...]]:
    model = shape.model
    heads, groups = shape.local_heads * model.kv_channels, shape.local_groups * model.kv_channels
    if _is_gpt2(shape):
        return _c_attn(shape, source, heads, groups)
    bias = model.add_bias_linear or model.add_qkv_bias
    operators: list[Operator] = []
    projected = []
    for name, width in (("q", heads), ("k", groups), ("v", groups)):
        out = activation(shape, f"{name}_proj_out", width)
        operators.append(linear(shape, f"{name}_proj", Module.LINEAR_QKV, source, out, bias=bias))
        if model.qk_layernorm and name != "v":
            out = by_head(shape, out, width // model.kv_channels)
            normed = Tensor(f"{name}_norm_out", out.shape, out.dtype)
            operators.append(norm(shape, f"{name}_norm", Module.QK_LAYERNORM, out, normed))
            out = normed
        projected.append(out)
    query, key, value = projected
    if model.position_embedding_type is PositionEmbedding.ROPE:
        operators.append(rotate_half(query, key))
        query, key = operators[-1].outputs
    return query, key, value, tuple(operators)


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
    split = replace(pointwise("split", Module.LINEAR_QKV, (mixed,), views[0]), outputs=views)
    query, key, value = views
    return query, key, value, (projection, split)


def _mlp(
    shape: RankShape, source: Tensor, skip: Tensor, held: tuple[Tensor, ...]
) -> tuple[Operator, ...]:
    """down_proj(act(gate_proj x) * up_proj x), or GPT-2's c_fc, act, c_proj; residual."""
    model = shape.model
    bias, width = model.add_bias_linear, model.ffn_hidden_size
    gated = model.activation.gated
    first = activation(shape, "gate_proj_out" if gated else "c_fc_out", width)
    name = first.name.removesuffix("_out")
    operators = [linear(shape, name, Module.LINEAR_FC1, source, first, bias=bias)]
    activated = activation(shape, "act_fn_out", width)
    operators += _activation(model.activation, first, activated)
    if gated:
        up, product = activation(shape, "up_proj_out", width), activation(shape, "product", width)
        operators += [
            linear(shape, "up_proj", Module.LINEAR_FC1, source, up, bias=bias),
            pointwise("multiply", Module.ACTIVATION, (activated, up), product,
                      saved=(activated, up)),
        ]  # fmt: skip
        activated = product
    out = hidden(shape, "down_proj_out")
    operators.append(
        linear(shape, "down_proj", Module.LINEAR_FC2, activated, out, bias=bias, holds=(source,))
    )
    branch, dropped = dropout(shape, "mlp_dropout_out", Module.MLP_BDA, out, model.hidden_dropout)
    add = residual(
        "mlp_residual", Module.MLP_BDA, branch, skip, hidden(shape, "layer_output"),
        holds=held,
    )  # fmt: skip
    return (*operators, *dropped, add)


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
        pointwise("gelu.half", Module.ACTIVATION, (source,), half),
        pointwise("gelu.cubic", Module.ACTIVATION, (source,), inner, saved=(source,),
                  forward_workspace=size, backward_workspace=3 * size),
        pointwise("gelu.tanh", Module.ACTIVATION, (inner,), tanh, saved=(tanh,)),
        pointwise("gelu.one_plus", Module.ACTIVATION, (tanh,), one_plus),
        pointwise("gelu.multiply", Module.ACTIVATION, (half, one_plus), output,
                  saved=(half, one_plus)),
    ]  # fmt: skip
