"""Element types and training precisions, with their sizes; no bare byte count stands elsewhere."""

from enum import StrEnum


class DType(StrEnum):
    """Element type of a tensor, by torch's name."""

    BOOL = "bool"
    UINT8 = "uint8"
    FLOAT8 = "float8"
    BF16 = "bfloat16"
    FP16 = "float16"
    FP32 = "float32"
    FP64 = "float64"
    INT32 = "int32"
    INT64 = "int64"

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return _ITEMSIZE[self]


_ITEMSIZE = {
    DType.BOOL: 1,
    DType.UINT8: 1,
    DType.FLOAT8: 1,
    DType.BF16: 2,
    DType.FP16: 2,
    DType.FP32: 4,
    DType.FP64: 8,
    DType.INT32: 4,
    DType.INT64: 8,
}


class Precision(StrEnum):
    """Training precision of a job: the compute type and, below 16 bits, its scaling recipe."""

    BF16 = "bf16"
    FP16 = "fp16"
    FP8_DELAYED = "fp8_delayed"
    FP8_CURRENT = "fp8_current"
    FP8_BLOCKWISE = "fp8_blockwise"
    MXFP8 = "mxfp8"
    NVFP4 = "nvfp4"

    @property
    def is_fp8(self) -> bool:
        """Whether the linear layers compute in 8 bits."""
        return self.is_quantized and self is not Precision.NVFP4

    @property
    def is_quantized(self) -> bool:
        """Whether the linear layers compute in 8 or 4 bits."""
        return self not in (Precision.BF16, Precision.FP16)

    @property
    def parameter_dtype(self) -> DType:
        """Type of the model weights and of activations outside the 8-bit linear layers."""
        return DType.FP16 if self is Precision.FP16 else DType.BF16
