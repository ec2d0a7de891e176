"""Gated delta net: linear attention by the gated delta rule (arXiv 2412.06464), in chunks.

Source: megatron-core 0.16.1 ssm/gated_delta_net.py, run in tests/oracles, and 0.19.0
ssm/gated_delta_net/{common,gdn}.py, which keep the same; kernels of flash-linear-attention 0.4.1,
the release line that 0.19.0 asks for (ops/gated_delta_rule/chunk.py,
modules/{convolution,l2norm}.py). Its later 0.6.0 keeps in_proj's whole output in place of the
convolution's copied input.
"""

from advisor.base.dtypes import DType
from advisor.layers.megatron import linear
from advisor.layers.megatron.mappings import exchange_sequence_for_heads
from advisor.layers.operators import ComputeUnit, Module, Operator, Tensor, Weight
from advisor.layers.shape import RankShape

_CHUNK = 64
"""Tokens that are multiplied at once (chunk.py; megatron-core gives none)."""


def gated_delta_net_operators(shape: RankShape, source: Tensor) -> tuple[Operator, ...]:
    """From the normalized input to out_proj's output, the tensor that the residual is added to.
    Context parallelism trades the sequence for heads around the mixer: a rank then has all tokens
    of some heads, which are as many elements; shapes here keep [seq_length / cp, b, all heads]."""
    model = shape.model
    keys, values = _widths(shape)
    heads = model.linear_num_value_heads // shape.tp
    mixed = shape.activation("in_proj_out", 2 * (keys + values + heads))
    projection = linear.column_parallel_linear(
        shape, "in_proj", Module.GDN_IN_PROJ, source, mixed, bias=False
    )
    there, local = exchange_sequence_for_heads(shape, Module.GDN_IN_PROJ, mixed)
    gate = _heads(shape, "gate", model.linear_num_value_heads, model.linear_value_head_dim)
    convolved = shape.activation("conv_out", 2 * keys + values)
    alpha, beta = (shape.activation(name, heads) for name in ("alpha", "beta_logits"))
    conv_in = shape.activation("conv_in", 2 * keys + values)
    split = Operator("split_in_proj", Module.GDN_CONV, (local,), (conv_in, gate, alpha, beta))
    query, key, value, prepare = _query_key_value(shape, convolved)
    gates = _gates(shape, alpha, beta)
    rule = _gated_delta_rule(shape, (query, key, value), gates)
    norm, gated = _gated_norm(shape, rule.outputs[0], gate)
    back, normed = exchange_sequence_for_heads(shape, Module.GDN_NORM_OUT, gated.outputs[0])
    return (
        projection,
        *there,
        split,
        _convolution(shape, conv_in, convolved),
        *prepare,
        gates,
        rule,
        norm,
        gated,
        *back,
        linear.row_parallel_linear(
            shape,
            "out_proj",
            Module.GDN_OUT_PROJ,
            normed,
            shape.hidden("attention_out"),
            bias=False,
            forward_holds=(mixed, convolved),
        ),
    )


def _widths(shape: RankShape) -> tuple[int, int]:
    """Channels of all key heads, and of all value heads, of one TP rank."""
    model = shape.model
    keys = model.linear_num_key_heads * model.linear_key_head_dim
    values = model.linear_num_value_heads * model.linear_value_head_dim
    return keys // shape.tp, values // shape.tp


def _heads(
    shape: RankShape, name: str, heads: int, *channels: int, dtype: DType | None = None
) -> Tensor:
    """[seq_length / cp, b, heads / tp, channels]; `heads` are those of the model."""
    tokens = shape.local_seq, shape.micro_batch_size
    return Tensor(name, (*tokens, heads // shape.tp, *channels), dtype or shape.dtype)


def _convolution(shape: RankShape, source: Tensor, output: Tensor) -> Operator:
    """Causal convolution of every channel with SiLU; keeps its contiguous input alone."""
    width, kernel = output.shape[-1], shape.model.linear_conv_kernel_dim
    return Operator(
        "conv1d",
        Module.GDN_CONV,
        (source,),
        (output,),
        saved=(source,),
        weights=(Weight("conv1d.weight", (width, kernel), True),),
    )


def _query_key_value(
    shape: RankShape, convolved: Tensor
) -> tuple[Tensor, Tensor, Tensor, tuple[Operator, ...]]:
    """q and k over their length, which keeps its output; both repeated to all value heads."""
    model = shape.model
    keys, values = model.linear_num_key_heads, model.linear_num_value_heads
    normed = _heads(shape, "query_key", 2 * keys, model.linear_key_head_dim)
    length = _heads(shape, "query_key.rstd", 2 * keys, dtype=DType.FP32)
    value = _heads(shape, "value", values, model.linear_value_head_dim)
    query, key = (
        _heads(shape, name, values, model.linear_key_head_dim) for name in ("query", "key")
    )
    l2norm = Operator(
        "l2norm",
        Module.GDN_RULE,
        (convolved,),
        (normed, value),
        saved=(normed, length),
        forward_workspace=normed.num_bytes,  # the kernel's contiguous input
    )
    repeat = Operator("repeat_heads", Module.GDN_RULE, (normed,), (query, key))
    return query, key, value, (l2norm, repeat)


def _gates(shape: RankShape, alpha: Tensor, beta: Tensor) -> Operator:
    """Decay (fp32) and strength of the update, of every value head, one compiled kernel from 0.18:
    keeps alpha and the strength. Before, two fp32 tensors stood in alpha's place."""
    heads = shape.model.linear_num_value_heads
    decay = _heads(shape, "g", heads, dtype=DType.FP32)
    strength = _heads(shape, "beta", heads)
    return Operator(
        "g_and_beta",
        Module.GDN_RULE,
        (alpha, beta),
        (decay, strength),
        saved=(alpha, strength),
        weights=tuple(Weight(name, (heads // shape.tp,), True) for name in ("A_log", "dt_bias")),
    )


def _gated_delta_rule(shape: RankShape, sources: tuple[Tensor, ...], gates: Operator) -> Operator:
    """Keeps q, k, v, beta, the decay summed up within its chunk (fp32), and the inverse of every
    chunk's triangle [s, b, heads, 64]; w, u and the states of all chunks are computed again.

    Per token and head, forward, with key width k, value width v and chunk C: 6 C k + 4 C v for the
    products within a chunk, 6 k v for those with the state."""
    model = shape.model
    heads = model.linear_num_value_heads
    query, _, value = sources
    decay = _heads(shape, "g_cumsum", heads, dtype=DType.FP32)
    triangle = _heads(shape, "A", heads, _CHUNK)
    output = Tensor("core_attn_out", value.shape, shape.dtype)
    k, v = model.linear_key_head_dim, model.linear_value_head_dim
    chunks = shape.micro_batch_size * -(-shape.local_seq // _CHUNK)
    state = chunks * heads // shape.tp * k * v * shape.dtype.itemsize
    forward = query.num_bytes + 2 * value.num_bytes + state + 2 * triangle.num_bytes
    backward = 3 * query.num_bytes + 3 * value.num_bytes + 2 * state
    per_head = 6 * _CHUNK * k + 4 * _CHUNK * v + 6 * k * v
    return Operator(
        "gated_delta_rule",
        Module.GDN_RULE,
        (*sources, *gates.outputs),
        (output,),
        unit=ComputeUnit.SCAN,
        saved=(*sources, decay, gates.outputs[1], triangle),
        attention_flops=shape.tokens * heads // shape.tp * per_head,
        forward_workspace=forward,
        backward_workspace=backward,
        extra_forward_bytes=2 * forward,
        extra_backward_bytes=2 * backward,
    )


def _gated_norm(shape: RankShape, source: Tensor, gate: Tensor) -> tuple[Operator, Operator]:
    """Norm over every value head, times SiLU of the gate: the norm keeps its input, the compiled
    product both factors. Its output goes sequence first, a copy with several sequences."""
    normed = Tensor("out_norm_out", source.shape, shape.dtype)
    output = shape.activation("norm_out", _widths(shape)[1])
    norm = linear.norm_operator(shape, Module.GDN_NORM_OUT, source, normed)
    several = shape.micro_batch_size > 1
    return norm, Operator(
        "gated_norm",
        Module.GDN_NORM_OUT,
        (normed, gate),
        (output,),
        saved=(normed, gate),
        forward_workspace=output.num_bytes if several else 0,
        extra_forward_bytes=2 * output.num_bytes if several else 0,
    )
