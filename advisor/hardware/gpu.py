"""Datasheet facts of one GPU type, read from configs/hardware."""

from enum import StrEnum
from typing import Final

from msgspec import Struct

from advisor.base.dtypes import Precision
from advisor.base.errors import UserError
from advisor.base.units import human_bytes


class Vendor(StrEnum):
    """Who makes a GPU: CUDA and its libraries run on NVIDIA's, ROCm and its own on AMD's."""

    NVIDIA = "nvidia"
    AMD = "amd"


class HostProcessor(StrEnum):
    """Processor of the server or superchip that a GPU is in."""

    X86 = "x86"
    GRACE = "grace"


class GpuFields(Struct, frozen=True, kw_only=True):
    """What a datasheet says of a GPU type; peaks are dense, bandwidths one direction per GPU.

    ``memory_bytes`` is what torch sees (get_device_properties().total_memory, the low end over
    drivers): context and communicators still come out of it. ``fp8_flops`` and ``fp4_flops`` are
    None where the chip has no 8-bit or 4-bit tensor cores. ``sm_count``: streaming multiprocessors,
    on AMD compute units. ``board_power_watts``: the power limit that it is sold with.
    ``compute_capability`` is what torch reports: on AMD 9.4 of gfx942, 9.5 of
    gfx950. ``nvlink_*`` is AMD's xGMI as well; ``nvlink_domain_size`` is 1 where there is neither.
    ``pair_bytes_per_second``: of one pair of GPUs where such links are point to point, 0 where
    switches join them. ``peer_to_peer``: whether a GPU reads another's memory over PCIe.
    ``host_processor``: what launches its kernels. ``assumed_fields``: those that no source gives.
    ``same_chip_as``: the type with the same chip and faster links, whose recipes are for it, too;
    empty where there is none.
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
    vendor: Vendor = Vendor.NVIDIA
    pair_bytes_per_second: float = 0.0
    peer_to_peer: bool = True
    board_power_watts: float | None = None
    assumed_fields: tuple[str, ...] = ()
    same_chip_as: str = ""


_SWITCHED: Final = 8
_MULTICAST: Final = 9.0
_SERVERS: Final = (8.0, 9.0, 10.0, 10.3)
"""Compute capabilities of A100, Hopper, B200 and GB200, B300 and GB300."""


class Gpu(GpuFields, frozen=True, kw_only=True):
    """One GPU type by its name, e.g. ``H100-SXM-80GB``."""

    name: str

    @property
    def cuda_capability(self) -> float:
        """Compute capability of an NVIDIA GPU; 0 on AMD, which has none of what it stands for."""
        return self.compute_capability if self.vendor is Vendor.NVIDIA else 0.0

    @property
    def is_joined(self) -> bool:
        """Whether NVLink or xGMI joins it to others."""
        return self.nvlink_domain_size > 1

    @property
    def is_nvlink_server(self) -> bool:
        """Whether it is what CUDA's libraries for training are built for: A100, Hopper, B200 and
        newer, joined by NVLink."""
        return self.is_joined and self.cuda_capability in _SERVERS

    @property
    def has_multicast(self) -> bool:
        """Whether switches copy what it sends and add what it receives (CUDA multicast, NVLink
        SHARP): those of Hopper's systems and later ones."""
        return self.nvlink_domain_size >= _SWITCHED and self.cuda_capability >= _MULTICAST

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
        fix = "leave it out to use the whole card, or name a larger GPU in --gpus"
        raise UserError(field, human_bytes(budget_bytes), f"exceeds the {card} of {gpu.name}", fix)
