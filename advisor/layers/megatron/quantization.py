"""What linear layers keep and hold when they compute in 8 or 4 bits.

Source: transformer_engine 2.20 pytorch/module/linear.py, layernorm_linear.py,
module/base.py (get_weight_workspace), tensor/float8_tensor.py, float8_blockwise_tensor.py,
mxfp8_tensor.py, nvfp4_tensor.py. Megatron Core's own (local) layers stay at 16 bits.
"""

from msgspec import Struct

from advisor.base.dtypes import DType, Precision
from advisor.layers.operators import Tensor
from advisor.layers.shape import RankShape


class _Format(Struct, frozen=True):
    """A quantized copy: bits of an element, elements that share a scale (0: the whole tensor), and
    bytes of a scale."""

    bits: int
    block: int
    scale_bytes: int


_FORMATS = {
    Precision.FP8_DELAYED: _Format(8, 0, 0),
    Precision.FP8_CURRENT: _Format(8, 0, 0),
    Precision.FP8_BLOCKWISE: _Format(8, 128, 4),
    Precision.MXFP8: _Format(8, 32, 1),
    Precision.NVFP4: _Format(4, 16, 1),
}
"""The one scale of a whole tensor is left out."""
_WEIGHT_BLOCK = 128 * 128  # blockwise scaling of weights (float8_blockwise_tensor.py)


def saved_input(shape: RankShape, source: Tensor) -> tuple[Tensor, ...]:
    """What a linear layer keeps of its input: `source` itself, or its quantized copy and scales.
    One orientation is kept whatever the recipe (linear.py: the other usage is dropped before
    saving), so that it is 1 byte an element in 8 bits and half a byte in 4."""
    if not shape.quantizes:
        return (source,)
    form = _FORMATS[shape.precision]
    elements = source.num_bytes // source.dtype.itemsize
    packed = source.shape if form.bits == 8 else (elements * form.bits // 8,)
    data = Tensor(f"{source.name}_{shape.precision}", packed, DType.FLOAT8, copy_of=source.name)
    if not form.block:
        return (data,)
    scales = elements // form.block * form.scale_bytes
    return data, Tensor(f"{data.name}_scales", (scales,), DType.UINT8, copy_of=source.name)


def attention_output(shape: RankShape, source: Tensor) -> tuple[Tensor, ...]:
    """What linear_proj keeps of core attention's output, which attention keeps as well.

    Megatron has it keep the 16-bit tensor itself, so that both share one storage, except delayed
    scaling (set_save_original_input, attention.py and multi_latent_attention.py of megatron-core
    0.14 and later; Transformer Engine 2.6, in 4 bits 2.7). Seen on a GPU: results/measured/h200,
    rehearse_70b_te_fp8. Attention in 8 bits keeps the 16-bit output as well, except delayed
    scaling. megatron-core 0.13 and before kept a quantized copy, which is ignored here."""
    eight_bits = shape.precision in _KEEPS_ORIGINAL and shape.transformer_engine >= (2, 6)
    four_bits = shape.precision is Precision.NVFP4 and shape.transformer_engine >= (2, 7)
    return (source,) if eight_bits or four_bits else saved_input(shape, source)


_KEEPS_ORIGINAL = (Precision.FP8_CURRENT, Precision.FP8_BLOCKWISE, Precision.MXFP8)


def gradient_copies(shape: RankShape, output: Tensor) -> int:
    """Bytes of the output gradient's quantized copies, alive in a linear layer's backward. Row-wise
    for the input's gradient, column-wise for the weight's; from Blackwell on one of a tensor with
    one scale serves both (Transformer Engine 2.20 tensor/float8_tensor.py, inner_tensor_specs)."""
    elements = output.num_bytes // output.dtype.itemsize
    return _orientations(shape) * quantized_bytes(shape, elements) if shape.quantizes else 0


def _orientations(shape: RankShape) -> int:
    """Copies of a tensor that GEMMs read along both dimensions."""
    return 1 if shape.takes_any_layout and not _FORMATS[shape.precision].block else 2


def quantized_bytes(shape: RankShape, elements: int) -> int:
    """Bytes of one quantized copy of `elements` activations with its scales; 0 at 16 bits."""
    if not shape.quantizes:
        return 0
    form = _FORMATS[shape.precision]
    scales = elements // form.block * form.scale_bytes if form.block else 0
    return elements * form.bits // 8 + scales


def weight_copies(shape: RankShape, elements: int) -> int:
    """Bytes of the quantized copies of linear weights that stay from step to step.

    Row-wise for the forward and column-wise for the backward; from Blackwell on, tensors with one
    scale serve both. Kept because Megatron tells the layers which microbatch is the first
    (extensions/transformer_engine.py: is_first_microbatch)."""
    if not shape.quantizes:
        return 0
    form = _FORMATS[shape.precision]
    block = _WEIGHT_BLOCK if shape.precision is Precision.FP8_BLOCKWISE else form.block
    scales = elements // block * form.scale_bytes if block else 0
    return _orientations(shape) * (elements * form.bits // 8 + scales)
