"""LayerNorm and RMSNorm operators."""

from advisor.base.dtypes import DType
from advisor.layers.operators import Module, Operator, Tensor
from advisor.layers.shape import RankShape
from advisor.layers.weights import norm_weights
from advisor.models.options import Normalization


def norm_operator(shape: RankShape, module: Module, source: Tensor, output: Tensor) -> Operator:
    """Normalization over the last dimension of `source`.

    Saves its input and, in fp32 per row, rstd (RMSNorm) or mean and rstd (LayerNorm): torch's and
    Transformer Engine's fused kernels alike (TE layernorm_linear.py; ATen layer_norm_kernel.cu).
    """
    rows, width = source.shape[:-1], source.shape[-1]
    statistics: tuple[str, ...] = ("rstd",)
    if shape.model.normalization is Normalization.LAYER_NORM:
        statistics = ("mean", "rstd")
    saved = tuple(Tensor(f"{output.name}.{name}", rows, DType.FP32) for name in statistics)
    return Operator(
        f"{output.name}.norm" if module is Module.QK_LAYERNORM else str(module),
        module,
        (source,),
        (output,),
        saved=(source, *saved),
        weights=norm_weights(shape, module, width),
    )
