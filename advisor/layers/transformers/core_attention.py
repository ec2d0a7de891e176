"""Core attention of transformers: a flash kernel, one with a mask, or scores in Python.

Source: transformers 5.23.0 integrations/sdpa_attention.py, masking_utils.py and
models/gemma2/modeling_gemma2.py (eager_attention_forward); torch 2.13 transformers/attention.cpp.
"""

from msgspec.structs import replace

from advisor.base.dtypes import DType
from advisor.layers.eager.context_parallel import attention_over_ranks
from advisor.layers.eager.parts import activation, attention, in_fp32, with_weight_gradients
from advisor.layers.operators import (
    WIDEST_FLASH_HEAD,
    ComputeUnit,
    Module,
    Operator,
    Tensor,
    Weight,
)
from advisor.layers.shape import RankShape
from advisor.layers.softcap import soft_cap
from advisor.models.layer_kind import LayerKind, Mixer
from advisor.models.options import SoftmaxType

_CORE = Module.CORE_ATTENTION


def core_attention(
    shape: RankShape, query: Tensor, key: Tensor, value: Tensor, kind: LayerKind
) -> tuple[Operator, ...]:
    """Flash attention where no mask is needed; SDPA with a mask where a window is; and where scores
    are capped, which SDPA cannot, eager attention."""
    if _is_eager(shape):
        return _eager_attention(shape, query, key, value)
    if shape.masked or (kind.mixer is Mixer.SLIDING_WINDOW and _is_masked(shape)):
        return _masked_attention(shape, query, key, value)
    if shape.model.kv_channels > WIDEST_FLASH_HEAD and shape.context_parallel_size == 1:
        return _wide_attention(shape, query, key, value)
    attended = attention_over_ranks(shape, query, key, value)
    if shape.model.rotary_percent == 1.0 or shape.context_parallel_size > 1:
        return attended
    return *attended, _by_token(attended[-1].outputs[0])


def _is_eager(shape: RankShape) -> bool:
    """Whether scores are made in Python: sinks as well have no kernel but flash attention's."""
    sinks = shape.model.softmax_type is not SoftmaxType.VANILLA and not shape.flash_attention
    return shape.eager_attention or shape.model.attn_logit_softcapping is not None or sinks


def _by_token(attended: Tensor) -> Operator:
    """The copy that o_proj reads: where a part of each head is rotated, q is put together by heads,
    and so is what the kernel makes of it."""
    copy = Tensor("attended_by_token", attended.shape, attended.dtype)
    return Operator("attention_transpose", _CORE, (attended,), (copy,))


def _is_masked(shape: RankShape) -> bool:
    """Whether the window is short enough to need a mask (_ignore_causal_mask_sdpa)."""
    window = shape.model.window_size
    return window is not None and shape.seq_length >= window


def mask_bytes(shape: RankShape) -> int:
    """Bytes of the masks that a model of transformers makes for all its layers: booleans [seq, seq]
    for SDPA, of all sequences together, or of each where samples differ; eager attention has 16-bit
    ones [micro_batch_size, 1, seq, seq], for layers with a window and for those without."""
    model, pairs = shape.model, shape.seq_length**2
    if _is_eager(shape):
        kinds = 1 if model.window_size is None else 2
        return kinds * shape.micro_batch_size * pairs * shape.dtype.itemsize
    if shape.masked:
        return pairs * shape.micro_batch_size * (1 + _is_masked(shape))
    return pairs if _is_masked(shape) else 0


def _expanded(
    shape: RankShape, key: Tensor, value: Tensor, *, copied: bool = False
) -> tuple[Tensor, Tensor, Operator]:
    """Keys and values of all query heads (repeat_kv); the same where there are as many. Those of
    one head are views, which products in Python copy, and autocast's cast of the keys."""
    sources = key, value
    if shape.local_heads != shape.local_groups:
        width = shape.local_heads * shape.model.kv_channels
        copied = copied or shape.local_groups > 1
        keys, values = activation(shape, "key_all", width), activation(shape, "value_all", width)
        if not copied:
            keys = keys if shape.autocast else key.view(keys.name, keys.shape)
            values = value.view(values.name, values.shape)
        sources = keys, values
    return (*sources, Operator("repeat_kv", _CORE, (key, value), sources))


def _wide_attention(
    shape: RankShape, query: Tensor, key: Tensor, value: Tensor
) -> tuple[Operator, ...]:
    """torch's memory-efficient kernel, which keeps what the flash kernel does, of expanded keys and
    values. Nobody timed it: its rates are those of FlashAttention-2."""
    key, value, repeat = _expanded(shape, key, value)
    kernel = attention(shape, query, key, value)
    assert kernel.attention is not None
    return repeat, replace(kernel, attention=replace(kernel.attention, fused=False))


def _masked_attention(
    shape: RankShape, query: Tensor, key: Tensor, value: Tensor
) -> tuple[Operator, ...]:
    """SDPA with a mask takes expanded keys and values, and keeps what it makes of the booleans: a
    16-bit bias [micro_batch_size, 1, seq, seq]. It computes all pairs, the hidden ones too."""
    key, value, repeat = _expanded(shape, key, value)
    kernel = attention(shape, query, key, value)
    pairs = (shape.micro_batch_size, 1, shape.seq_length, shape.seq_length)
    bias = Tensor("attention_bias", pairs, shape.dtype)
    flops = 2 * kernel.attention_flops
    return repeat, replace(kernel, saved=(*kernel.saved, bias), attention_flops=flops)


def _eager_attention(
    shape: RankShape, query: Tensor, key: Tensor, value: Tensor
) -> tuple[Operator, ...]:
    """Scores, cap, mask, softmax in fp32, its 16-bit copy, context: keeps expanded keys and values,
    the tanh [micro_batch_size, heads, seq, seq], the softmax in fp32 and its copy."""
    key, value, repeat = _expanded(shape, key, value, copied=True)
    size = (shape.micro_batch_size, shape.local_heads, shape.seq_length, shape.seq_length)
    raw, scores, masked, probs = (
        Tensor(f"attention_{name}", size, shape.dtype)
        for name in ("raw_scores", "scores", "masked", "probs")
    )
    if shape.model.softmax_type is not SoftmaxType.VANILLA:
        softmax, probs = _with_sinks(shape, masked)
    else:
        softmax, probs = _softmax(masked, probs)
    is_capped = shape.model.attn_logit_softcapping is not None
    capped = soft_cap(scores, _CORE, held=False) if is_capped else ()
    (read,) = capped[-1].outputs if capped else (scores,)
    width = shape.local_heads * shape.model.kv_channels
    context, output = (activation(shape, name, width) for name in ("context", "core_attention_out"))
    flops = 2 * shape.tokens * shape.seq_length * width
    return (
        repeat,
        _matmul("attention_scores", (query, key), raw, flops),
        Operator("attention_scale", _CORE, (raw,), (scores,)),
        *capped,
        Operator("attention_mask", _CORE, (read,), (masked,)),
        *softmax,
        _matmul("attention_context", (probs, value), context, flops),
        Operator("attention_transpose", _CORE, (context,), (output,)),
    )


def _softmax(masked: Tensor, probs: Tensor) -> tuple[tuple[Operator, ...], Tensor]:
    """In fp32, and its 16-bit copy."""
    wide = in_fp32(probs, "attention_softmax")
    softmax = Operator(
        "attention_softmax",
        _CORE,
        (masked,),
        (wide,),
        saved=(wide,),
        forward_workspace=wide.num_bytes,
        backward_workspace=wide.num_bytes - masked.num_bytes,  # its gradient in fp32
    )
    copy = Operator("attention_probs", _CORE, (wide,), (probs,), forward_holds=(masked,))
    return (softmax, copy), probs


def _with_sinks(shape: RankShape, masked: Tensor) -> tuple[tuple[Operator, ...], Tensor]:
    """Scores with a sink next to each row, less their largest, and their softmax in 16 bits, of
    which the columns without the sink are a view. Keeps where the largest was."""
    *rows, keys = masked.shape
    joined, shifted, probs = (
        Tensor(f"attention_{name}", (*rows, keys + 1), masked.dtype)
        for name in ("with_sinks", "shifted", "probs")
    )
    place = Tensor("attention_largest", (*rows, 1), DType.INT64)
    sinks = (Weight("sinks", (shape.local_heads,)),)
    cat = Operator("attention_sinks", _CORE, (masked,), (joined,), weights=sinks)
    operators = (
        with_weight_gradients(shape, cat),
        Operator("attention_shift", _CORE, (joined,), (shifted,), saved=(place,)),
        Operator("attention_softmax", _CORE, (shifted,), (probs,), saved=(probs,)),
    )
    return operators, probs.view("attention_scores_left", masked.shape)


def _matmul(name: str, inputs: tuple[Tensor, ...], output: Tensor, flops: int) -> Operator:
    return Operator(
        name,
        _CORE,
        inputs,
        (output,),
        unit=ComputeUnit.ATTENTION,
        saved=inputs,
        attention_flops=flops,
    )
