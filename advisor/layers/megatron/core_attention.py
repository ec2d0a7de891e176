"""Core attention: flash and cuDNN kernels, and Megatron's unfused DotProductAttention."""

from msgspec.structs import replace

from advisor.base.dtypes import DType, Precision
from advisor.layers.megatron.context_parallel import over_context_ranks, ring_steps
from advisor.layers.operators import AttentionShape, ComputeUnit, Module, Operator, Tensor, Weight
from advisor.layers.shape import RankShape
from advisor.layers.softcap import soft_cap
from advisor.models.layer_kind import Mixer
from advisor.models.options import AttentionBackend, SoftmaxType

MIXED_QKV = "mixed_qkv"
"""Name of linear_qkv's output, of which q, k and v may be views."""


def heads_tensor(shape: RankShape, name: str, heads: int, channels: int | None = None) -> Tensor:
    """[seq_length / cp, micro_batch_size, heads, channels]; by default, kv_channels."""
    return shape.activation(name, heads, channels or shape.model.kv_channels)


def _output(shape: RankShape, name: str) -> Tensor:
    return heads_tensor(shape, name, shape.local_heads, shape.model.v_channels)


def core_attention(
    shape: RankShape, query: Tensor, key: Tensor, value: Tensor, mixer: Mixer = Mixer.FULL
) -> tuple[Operator, ...]:
    """Core attention; Transformer Engine first makes k and v contiguous where q is no view.

    Its layout detection knows q, k, v as views of one buffer, or as three tensors (TE
    attention/dot_product_attention/utils.py, get_qkv_layout); under context parallelism all three
    are made contiguous (backends.py). The copies are made inside the module: a checkpoint around it
    keeps the views, and with them the whole mixed_qkv."""
    unfused = shape.model.attention_backend is AttentionBackend.UNFUSED
    attention = _unfused_attention if unfused else _flash_attention
    if unfused and not is_transformer_engines(shape):
        return attention(shape, query, key, value, mixer)
    copies: list[Operator] = []
    if not shape.is_local and (query.base is None or shape.context_parallel_size > 1):
        query, key, value = (_contiguous(shape, source, copies) for source in (query, key, value))
    return (*copies, *attention(shape, query, key, value, mixer))


def is_transformer_engines(shape: RankShape) -> bool:
    """Whether core attention is Transformer Engine's: not the local spec's, nor that of Megatron
    Bridge with capped scores, which is Megatron's own (0.3.1, gemma2_provider.py)."""
    return not shape.is_local and shape.model.attn_logit_softcapping is None


def _contiguous(shape: RankShape, source: Tensor, copies: list[Operator]) -> Tensor:
    """`source` itself, or its copy where it is a view."""
    if source.base is None:
        return source
    copy = Tensor(f"{source.name}_contiguous", source.shape, shape.dtype)
    copies.append(Operator(copy.name, Module.CORE_ATTENTION, (source,), (copy,)))
    return copy


def _matmul_flops(shape: RankShape, channels: int, keys: int) -> int:
    """One matmul of all heads: 2 x b x s / cp x keys of a query x heads x channels."""
    return 2 * shape.tokens * keys * shape.local_heads * channels


def attended_keys(shape: RankShape, mixer: Mixer) -> int:
    """Twice the keys that a query attends to on average: the sequence under a causal mask; with a
    window w < s, s^2 - (s - w)^2 pairs of s^2 are left of it."""
    length, window = shape.attended_length, shape.model.window_size
    if mixer is not Mixer.SLIDING_WINDOW or window is None or window >= length:
        return length
    return window * (2 * length - window) // length


def _sinks(shape: RankShape) -> tuple[Weight, ...]:
    """One learnt logit a head in the softmax's denominator (dot_product_attention.py)."""
    if shape.model.softmax_type is not SoftmaxType.LEARNABLE:
        return ()
    return (Weight("core_attention.softmax_offset", (shape.local_heads,), True),)


def _flash_attention(
    shape: RankShape, query: Tensor, key: Tensor, value: Tensor, mixer: Mixer
) -> tuple[Operator, ...]:
    """Keeps q, k, v, the output and the log-sum-exp [b, heads, s] in fp32 (arXiv 2205.14135).

    K and V are not expanded to the query heads. The backward sums the query's gradient up in fp32,
    next to a number a row (2307.08691, algorithm 2). The flash-attn package works batch first: with
    several sequences Transformer Engine hands a transposed copy of the output on, while cuDNN's
    fused attention needs none."""
    model, output = shape.model, _output(shape, "core_attn_out")
    rows = shape.micro_batch_size, shape.local_heads, shape.local_seq
    lse = Tensor("softmax_lse", rows, DType.FP32)
    flops = _matmul_flops(shape, model.qk_channels + model.v_channels, attended_keys(shape, mixer))
    sources = (query, key, value)
    operator = Operator(
        "core_attention",
        Module.CORE_ATTENTION,
        sources,
        (output,),
        unit=ComputeUnit.ATTENTION,
        saved=(*_kept_by_attention(shape, sources, output), lse),
        weights=_sinks(shape),
        attention_flops=flops // 2,
        attention=_attention_shape(shape, mixer),
        backward_workspace=2 * query.num_bytes + lse.num_bytes if not shape.is_local else 0,
    )
    if shape.context_parallel_size > 1:
        operator = over_context_ranks(shape, operator)
    batch_first = model.attention_backend is AttentionBackend.FLASH and not shape.is_local
    if not batch_first or shape.micro_batch_size == 1:
        return (operator,)
    transposed = _output(shape, "core_attn_out_transposed")
    return operator, Operator("transpose_output", Module.CORE_ATTENTION, (output,), (transposed,))


def _attention_shape(shape: RankShape, mixer: Mixer) -> AttentionShape:
    """The kernel: cuDNN's, or FlashAttention-2 (the third has to be installed by hand, TE
    attention/dot_product_attention/utils.py), which takes no values narrower than keys."""
    model, window = shape.model, shape.model.window_size
    windowed = attended_keys(shape, mixer) < shape.attended_length
    return AttentionShape(
        rows=shape.micro_batch_size * shape.local_heads * shape.local_seq,
        longest=window if windowed and window is not None else shape.attended_length,
        qk_channels=model.qk_channels,
        v_channels=model.v_channels,
        windowed=windowed,
        fused=model.attention_backend is AttentionBackend.FUSED
        or model.qk_channels != model.v_channels,
        narrow=shape.quantizes and model.fp8_dot_product_attention,
        steps=ring_steps(shape),
    )


def _kept_by_attention(
    shape: RankShape, sources: tuple[Tensor, ...], output: Tensor
) -> tuple[Tensor, ...]:
    """q, k, v and the output. With fp8_dot_product_attention in 8 bits, the output under delayed
    scaling alone; MXFP8 keeps q, k and v along both dimensions, with a byte of scale for 32
    elements each (TE 2.20 attention/dot_product_attention/backends.py, FusedAttnFunc, and utils.py,
    combine_and_quantize, which is asked for forward and backward at once)."""
    if not (shape.quantizes and shape.model.fp8_dot_product_attention):
        return (*sources, output)
    if shape.precision is Precision.MXFP8:
        both = tuple(
            Tensor(f"{tensor.name}_mxfp8", (2 * (n + n // 32),), DType.UINT8)
            for tensor, n in ((source, source.num_elements) for source in sources)
        )
        return (*both, output)
    narrow = tuple(
        Tensor(f"{tensor.name}_fp8", tensor.shape, DType.FLOAT8) for tensor in (*sources, output)
    )
    return narrow if shape.precision is Precision.FP8_DELAYED else (*narrow[:-1], output)


def _unfused_attention(
    shape: RankShape, query: Tensor, key: Tensor, value: Tensor, mixer: Mixer
) -> tuple[Operator, ...]:
    """Scores, softmax, dropout and context as Megatron's DotProductAttention and Transformer
    Engine's UnfusedDotProductAttention run them.

    Scores are not kept. They are computed out of place, next to a tensor of their size that nobody
    reads: Megatron's is a buffer of the process, Transformer Engine's goes after it. Softmax keeps
    its output: fp32 where attention_softmax_in_fp32 and no fused kernel (then a copy in the compute
    type feeds the second matmul), else the compute type. Dropout keeps a 1-byte mask; its output
    feeds the matmul. K and V of grouped attention are expanded to all query heads. Capped scores
    keep a tanh of their size."""
    model, heads = shape.model, shape.local_heads
    scores_shape = (shape.micro_batch_size, heads, shape.local_seq, shape.seq_length)
    operators: list[Operator] = []
    if heads > shape.local_groups:
        expanded = heads_tensor(shape, "key_all", heads), heads_tensor(shape, "value_all", heads)
        operators.append(Operator("expand_kv", Module.CORE_ATTENTION, (key, value), expanded))
        key, value = expanded
    scores = Tensor("attention_scores", scores_shape, shape.dtype)
    operators.append(
        Operator(
            "attention_scores",
            Module.CORE_ATTENTION,
            (query, key),
            (scores,),
            weights=_sinks(shape),
            unit=ComputeUnit.ATTENTION,
            saved=(query, key),
            forward_workspace=scores.num_bytes if is_transformer_engines(shape) else 0,
            attention_flops=_matmul_flops(shape, model.qk_channels, shape.seq_length),
        )
    )
    if model.attn_logit_softcapping is not None:
        operators += soft_cap(scores, Module.CORE_ATTENTION, held=True)
        (scores,) = operators[-1].outputs
    probs, softmax = _softmax(shape, scores, scores_shape)
    operators.append(_masked_by_window(shape, softmax, mixer))
    if model.attention_dropout > 0:
        dropped = Tensor("attention_probs_dropped", scores_shape, shape.dtype)
        mask = Tensor("attention_dropout_mask", scores_shape, DType.BOOL)
        core = Module.CORE_ATTENTION
        operators.append(Operator("attention_dropout", core, (probs,), (dropped,), saved=(mask,)))
        probs = dropped
    context = _output(shape, "core_attn_out")
    operators.append(
        Operator(
            "attention_context",
            Module.CORE_ATTENTION,
            (probs, value),
            (context,),
            unit=ComputeUnit.ATTENTION,
            saved=(probs, value),
            attention_flops=_matmul_flops(shape, model.v_channels, shape.seq_length),
            forward_holds=(scores, query, key),
            forward_workspace=context.num_bytes,  # a copy puts the sequence first
        )
    )
    return tuple(operators)


def _masked_by_window(shape: RankShape, softmax: Operator, mixer: Mixer) -> Operator:
    """Under capped scores every layer with a window makes its own mask, which masking keeps unless
    the fused kernel takes no mask at all (Megatron Bridge 0.3.1 gemma2_provider.py get_swa)."""
    capped = shape.model.attn_logit_softcapping is not None
    if not capped or mixer is not Mixer.SLIDING_WINDOW or _has_fused_softmax(shape):
        return softmax
    mask = Tensor("sliding_window_mask", (shape.local_seq, shape.seq_length), DType.BOOL)
    return replace(softmax, saved=(*softmax.saved, mask))


def _softmax(
    shape: RankShape, scores: Tensor, scores_shape: tuple[int, ...]
) -> tuple[Tensor, Operator]:
    """Softmax over the scores and the tensor it hands on (fusions/fused_softmax.py).

    Without the fused kernel the mask is applied in place: to a view of the scores in the compute
    type, whose backward holds four score-sized tensors, or to their fp32 copy, with three. The walk
    counts kept, incoming and outgoing ones by itself."""
    probs = Tensor("attention_probs", scores_shape, shape.dtype)
    fused = _has_fused_softmax(shape)
    kept, copy, alive = probs, 0, 4
    if (shape.model.attention_softmax_in_fp32 or is_transformer_engines(shape)) and not fused:
        kept, alive = Tensor("softmax_fp32", scores_shape, DType.FP32), 3
        copy = kept.num_bytes
    counted = kept.num_bytes + probs.num_bytes + scores.num_bytes
    return probs, Operator(
        "softmax",
        Module.CORE_ATTENTION,
        (scores,),
        (probs,),
        saved=(kept,),
        forward_workspace=copy,
        backward_workspace=0 if fused else alive * kept.num_bytes - counted,
    )


def _has_fused_softmax(shape: RankShape) -> bool:
    """is_kernel_available of either: 16-bit input, multiples of four; Megatron's takes 16 < keys <=
    4096, Transformer Engine's 16 < keys < 16384, multiples of eight, and no sink next to them (TE
    attention/dot_product_attention/softmax.py)."""
    keys, queries = shape.seq_length, shape.local_seq
    batches = shape.micro_batch_size * shape.local_heads
    if is_transformer_engines(shape):
        vanilla = shape.model.softmax_type is SoftmaxType.VANILLA
        return vanilla and 16 < keys < 16384 and keys % 8 == queries % 4 == batches % 4 == 0
    multiples = keys % 4 == queries % 4 == batches % 4 == 0
    return shape.model.masked_softmax_fusion and 16 < keys <= 4096 and multiples
