"""Datasheet facts of one GPU type, read from configs/hardware."""

from enum import StrEnum

from msgspec import Struct

from advisor.base.dtypes import Precision
from advisor.base.errors import UserError
from advisor.base.units import human_bytes


class HostProcessor(StrEnum):
    """Processor of the server or superchip that a GPU is in."""

    X86 = "x86"
    GRACE = "grace"


class GpuFields(Struct, frozen=True, kw_only=True):
    """What a datasheet says of a GPU type; peaks are dense, bandwidths one direction per GPU.

    ``memory_bytes`` is what torch sees (get_device_properties().total_memory, the low end over
    drivers): context and communicators still come out of it. ``fp8_flops`` and ``fp4_flops`` are
    None where the chip has no 8-bit or 4-bit tensor cores. ``nvlink_domain_size`` is 1 where there
    is no NVLink. ``host_processor``: what launches its kernels.
    """

    memory_bytes: int
    memory_bandwidth_bytes_per_second: float
    bf16_flops: float
    fp16_flops: float
    fp8_flops: float | None
    sm_count: int
    compute_capability: float
    nvlink_bytes_per_second: float
    nvlink_domain_size: int
    internode_bytes_per_second: float
    host_link_bytes_per_second: float
    calibration: str | None = None
    fp4_flops: float | None = None
    host_processor: HostProcessor = HostProcessor.X86


class Gpu(GpuFields, frozen=True, kw_only=True):
    """One GPU type by its name, e.g. ``H100-SXM-80GB``."""

    name: str

    def quantized_flops(self, precision: Precision) -> float | None:
        """Dense peak in 8 or 4 bits; None at 16 bits and where the chip has no such cores."""
        if precision is Precision.NVFP4:
            return self.fp4_flops
        return self.fp8_flops if precision.is_fp8 else None

    def peak_flops(self, precision: Precision) -> float:
        """Dense peak of the linear layers at `precision`, FLOP/s."""
        narrow = self.quantized_flops(precision)
        if narrow is not None:
            return narrow
        return self.fp16_flops if precision is Precision.FP16 else self.bf16_flops


def check_budget(budget_bytes: int | None, gpu: Gpu, field: str) -> None:
    """UserError, under `field`, where the budget is more than the whole card."""
    if budget_bytes is not None and budget_bytes > gpu.memory_bytes:
        card = human_bytes(gpu.memory_bytes)
        raise UserError(
            field,
            human_bytes(budget_bytes),
            f"exceeds the {card} of {gpu.name}",
            "leave it out to use the whole card, or name a larger GPU in --gpus",
        )
