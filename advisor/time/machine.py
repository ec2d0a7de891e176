"""A GPU together with its calibration: rates that times are computed from."""

from functools import lru_cache

from msgspec import Struct

from advisor.base.dtypes import Precision
from advisor.hardware.calibration import Calibration
from advisor.hardware.gpu import Gpu


class Machine(Struct, frozen=True, kw_only=True):
    """Reached rates of one GPU at one precision, FLOP/s and byte/s.

    linear_flops is the rate of the linear layers' GEMMs, in 8 bits where `quantize_bytes` is not
    zero: the memory traffic of bringing one 16-bit element into 8 bits, both layouts.
    attention_half_rate_rows, attention_half_rate_tokens: of a Calibration.
    hidden_fraction: of a collective that runs beside an operator, the part that costs no time.
    """

    linear_flops: float
    bf16_flops: float
    attention_forward_flops: float
    attention_backward_flops: float
    memory_bytes_per_second: float
    optimizer_bytes_per_second: float
    kernel_seconds: float
    hidden_fraction: float
    attention_half_rate_rows: float = 0.0
    attention_half_rate_tokens: float = 0.0
    quantize_bytes: int = 0
    host_bytes_per_second: float = 1.0


_HOST_LINK_EFFICIENCY = 0.85
"""Of the paper rate, pinned copies; a judgement: `harness calibrate` prints the machine's own."""

_QUANTIZE_BYTES = {
    Precision.FP8_DELAYED: 4,
    Precision.FP8_CURRENT: 6,
    Precision.FP8_BLOCKWISE: 4,
    Precision.MXFP8: 4,
    Precision.NVFP4: 3,
}
"""Read 16 bit, write row- and column-wise copies of 8 or 4 bit; current scaling reads once more,
for the largest value, before it casts (TE common/cast, recipe/current_scaling.cu). Scales of blocks
(1/128 or 1/32 of the elements) are left out."""


@lru_cache(maxsize=64)
def machine(gpu: Gpu, calibration: Calibration, precision: Precision) -> Machine:
    """Datasheet rates times efficiencies; in 4 bits that of 8, of which published runs exist.

    FLOP/s are dense, bytes/s in one direction. A GPU without such tensor cores stays at 16 bit.
    Sources: configs/hardware, and configs/calibration with what each was fitted on. Clocks that a
    power limit lowers are in the efficiencies alone.
    """
    sixteen_bit = gpu.fp16_flops if precision is Precision.FP16 else gpu.bf16_flops
    narrow = gpu.quantized_flops(precision)
    linear = sixteen_bit * calibration.gemm_efficiency
    if narrow is not None:
        linear = narrow * calibration.fp8_gemm_efficiency
    return Machine(
        linear_flops=linear,
        bf16_flops=sixteen_bit * calibration.gemm_efficiency,
        attention_forward_flops=sixteen_bit * calibration.attention_forward_efficiency,
        attention_backward_flops=sixteen_bit * calibration.attention_backward_efficiency,
        memory_bytes_per_second=(
            gpu.memory_bandwidth_bytes_per_second * calibration.bandwidth_efficiency
        ),
        optimizer_bytes_per_second=gpu.memory_bandwidth_bytes_per_second
        * (calibration.optimizer_bandwidth_efficiency or calibration.bandwidth_efficiency),
        attention_half_rate_rows=calibration.attention_half_rate_rows,
        attention_half_rate_tokens=calibration.attention_half_rate_tokens,
        kernel_seconds=calibration.kernel_seconds,
        hidden_fraction=calibration.hidden_fraction,
        quantize_bytes=_QUANTIZE_BYTES[precision] if narrow is not None else 0,
        host_bytes_per_second=gpu.host_link_bytes_per_second * _HOST_LINK_EFFICIENCY,
    )
