"""Norms of transformers: LayerNorm is torch's kernel, RMSNorm is Python, in fp32 and step by step.

Source: transformers 5.23.0 LlamaRMSNorm, Gemma2RMSNorm, Gemma3RMSNorm, Gemma4RMSNorm,
Olmo2RMSNorm.
"""

from advisor.base.dtypes import DType
from advisor.layers.eager.parts import fused_norm, in_fp32, with_weight_gradients
from advisor.layers.operators import Module, Operator, Tensor, Weight
from advisor.layers.shape import RankShape
from advisor.models.options import Normalization, NormPlacement, SoftmaxType


def norm(
    shape: RankShape,
    name: str,
    module: Module,
    source: Tensor,
    output: Tensor,
    *,
    scaled: bool = True,
) -> Operator:
    """Keeps the fp32 copy of its input, 1/rms of each row, and the normalized tensor, which the
    weight multiplies; the input itself it does not keep.

    Of an element move, in fp32 tensors next to those: the copy read for its square, the square
    written and read for the mean, the copy and its product with 1/rms, which is read to be cast.
    Going back 20: products with the normalized tensor and with the copy, of which sums are made,
    three products for the gradient of the square, two sums and the casts.

    Llama multiplies in 16 bit. Gemma, OLMo 2 and gpt-oss do in fp32, where the normalized tensor is
    twice as large; Gemma keeps 1 + weight next to it, Gemma 4 the weight in fp32, and the mean
    square of each row. One that is not `scaled` has no weight, and keeps no normalized tensor."""
    if shape.model.normalization is Normalization.LAYER_NORM:
        return fused_norm(shape, name, module, source, output)
    if shape.use_liger_kernel:
        from advisor.layers.transformers.liger import liger_norm

        return liger_norm(shape, name, module, source, output)
    copy = source if source.dtype is DType.FP32 else in_fp32(source, f"{name}.fp32")
    inverse = Tensor(f"{name}.rsqrt", (*source.shape[:-1], 1), DType.FP32)
    model, placement = shape.model, shape.model.norm_placement
    wide = model.layernorm_zero_centered_gamma or placement is not NormPlacement.PRE
    wide = wide or model.softmax_type is not SoftmaxType.VANILLA
    normalized = Tensor(f"{name}.normalized", source.shape, DType.FP32 if wide else source.dtype)
    saved = [copy, inverse, normalized] if scaled else [copy, inverse]
    if model.layernorm_zero_centered_gamma:
        saved.append(Tensor(f"{name}.one_plus_weight", source.shape[-1:], DType.FP32))
    elif placement is NormPlacement.PRE_AND_POST:
        saved.append(Tensor(f"{name}.mean_square", inverse.shape, DType.FP32))
        if scaled and not shape.autocast:
            saved.append(Tensor(f"{name}.fp32_weight", source.shape[-1:], DType.FP32))
    operator = Operator(
        name,
        module,
        (source,),
        (output,),
        saved=tuple(saved),
        saved_for_weights=frozenset({normalized.name}),
        forward_workspace=copy.num_bytes,
        backward_workspace=_backward_workspace(copy, normalized, inverse, output),
        weights=(Weight(f"{name}.weight", (source.shape[-1],)),) if scaled else (),
        extra_forward_bytes=6 * copy.num_bytes,
        extra_backward_bytes=20 * copy.num_bytes,
        forward_kernels=8,
        backward_kernels=20,
    )
    return with_weight_gradients(shape, operator)


def _backward_workspace(copy: Tensor, normalized: Tensor, inverse: Tensor, output: Tensor) -> int:
    """Five fp32 tensors live next to the copy when the 16-bit tensors are gone, four where all are
    fp32; the walk counts the normalized one and two of the output's size."""
    others = normalized.num_bytes + 2 * output.num_bytes + inverse.num_bytes
    return (5 if output.dtype is not DType.FP32 else 4) * copy.num_bytes - others
