"""Buffers that torch counts as allocated and that stay from the first step on."""

from msgspec import Struct

from advisor.hardware.gpu import Gpu, Vendor

_CUBLAS_WORKSPACE_BYTES = 8_519_680  # :4096:2:16:8 (pytorch CublasHandlePool.cpp)
_CUBLAS_WORKSPACE_HOPPER_BYTES = 33_554_432  # 4096 KiB x 8, the default of 9.0 alone
_HIPBLAS_WORKSPACE_BYTES = 134_217_728  # of gfx942 and gfx950
_CUBLAS_HANDLES = 2  # one of the forward's thread, one of autograd's


class NamedBytes(Struct, frozen=True):
    """A term of the memory that is no activation: name, bytes, source."""

    name: str
    num_bytes: int
    source: str


def cublas_workspaces(gpu: Gpu, *, deterministic: bool = False) -> NamedBytes:
    """Workspaces of torch's matmuls, bytes: one of the forward's thread, one of autograd's; the
    default of CUBLAS_WORKSPACE_CONFIG (pytorch CublasHandlePool.cpp), or :4096:8 where runs repeat
    to the bit; on AMD hipBLAS's default."""
    amd = gpu.vendor is Vendor.AMD
    large = deterministic or gpu.cuda_capability == 9.0
    each = _CUBLAS_WORKSPACE_HOPPER_BYTES if large else _CUBLAS_WORKSPACE_BYTES
    each = _HIPBLAS_WORKSPACE_BYTES if amd else each
    name = "hipBLAS workspaces" if amd else "cuBLAS workspaces"
    return NamedBytes(name, each * _CUBLAS_HANDLES, "pytorch CublasHandlePool.cpp")
