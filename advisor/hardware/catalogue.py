"""GPU types by name, from configs/hardware.

A file's name is FAMILY-FORM-MEMORY, e.g. ``H100-SXM-80GB``. Any part but the family may be left
out: of the types that are left, SXM comes before PCIe, then more memory before less, so that a bare
A100 or H100 is the 80 GB SXM part. Case does not matter; the names that torch and nvidia-smi print
(``NVIDIA A100-SXM4-40GB``, ``NVIDIA H100 80GB HBM3``) are understood.
"""

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Final

from msgspec import Struct

from advisor.base.configuration import Group, config_names, load_config
from advisor.base.errors import UserError
from advisor.base.fields import convert, read_record, show
from advisor.base.units import GIB, nearest_names
from advisor.hardware.gpu import Gpu, HostProcessor

_FLAG: Final = "--gpus"
_GIGA: Final = 10**9
_TERA: Final = 10**12
_NOISE: Final = frozenset(
    ("nvidia", "tensor", "core", "gpu", "nvl72", "hbm2", "hbm2e", "hbm3", "hbm3e")
)


class Datasheet(Struct, frozen=True, kw_only=True):
    """One GPU type as its file has it: GiB = 2^30 bytes, GB = 10^9 bytes, bandwidths per second.

    Peaks are dense; bandwidths are one direction of one GPU. Without NVLink its fields are left
    out. ``calibration`` names the fitted efficiencies that hold for this type.
    """

    memory_torch_total_gib: float
    memory_bandwidth_gb_per_second: float
    bf16_tflops: float
    fp16_tflops: float
    fp8_tflops: float | None = None
    fp4_tflops: float | None = None
    sm_count: int
    compute_capability: float
    nvlink_gb_per_second: float = 0.0
    nvlink_domain_size: int = 1
    internode_gb_per_second: float
    host_link_gb_per_second: float
    host_processor: HostProcessor = HostProcessor.X86
    calibration: str | None = None
    notes: str = ""

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if isinstance(value, int | float) and value <= 0 and name != _NVLINK:
                raise UserError(name, value, "must be positive")
        if (self.nvlink_domain_size > 1) != (self.nvlink_gb_per_second > 0):
            raise UserError(
                "nvlink_domain_size",
                self.nvlink_domain_size,
                f"must be 1 without NVLink, and more with {_NVLINK} = {self.nvlink_gb_per_second}",
            )

    def gpu(self, name: str) -> Gpu:
        """The type in bytes and FLOP/s."""
        fp8, fp4 = self.fp8_tflops, self.fp4_tflops
        return Gpu(
            name=name,
            memory_bytes=int(self.memory_torch_total_gib * GIB),
            memory_bandwidth_bytes_per_second=self.memory_bandwidth_gb_per_second * _GIGA,
            bf16_flops=self.bf16_tflops * _TERA,
            fp16_flops=self.fp16_tflops * _TERA,
            fp8_flops=None if fp8 is None else fp8 * _TERA,
            fp4_flops=None if fp4 is None else fp4 * _TERA,
            sm_count=self.sm_count,
            compute_capability=self.compute_capability,
            nvlink_bytes_per_second=self.nvlink_gb_per_second * _GIGA,
            nvlink_domain_size=self.nvlink_domain_size,
            internode_bytes_per_second=self.internode_gb_per_second * _GIGA,
            host_link_bytes_per_second=self.host_link_gb_per_second * _GIGA,
            host_processor=self.host_processor,
            calibration=self.calibration,
        )


_NVLINK: Final = "nvlink_gb_per_second"


def gpu_names(config_dir: Path | None = None) -> tuple[str, ...]:
    """Names of all GPU types, sorted."""
    return config_names(Group.HARDWARE, config_dir)


def load_gpu(gpu_type: str, config_dir: Path | None = None) -> Gpu:
    """The GPU type that a name or a part of it means; UserError with the nearest names."""
    gpu_type = convert(gpu_type, str, "", "gpu_type")
    name = resolve_gpu(gpu_type, config_dir)
    document = load_config(Group.HARDWARE, name, config_dir, _FLAG)
    values = dict(document.values)
    _check_sources(values.pop("sources", {}), document.path)
    return read_record(Datasheet, values, document.path).gpu(name)


def resolve_gpu(gpu_type: str, config_dir: Path | None = None) -> str:
    """Full name of a type, e.g. ``a100-40gb`` -> ``A100-SXM-40GB``."""
    names, wanted = gpu_names(config_dir), _parts(gpu_type)
    hits = [name for name in names if name.lower() == gpu_type.lower()]
    hits = hits or [name for name in names if _matches(wanted, _parts(name))]
    if not hits:
        raise UserError(_FLAG, show(gpu_type), "unknown GPU type", nearest_names(gpu_type, names))
    return min(hits, key=_preference)


def _check_sources(sources: object, path: Path) -> None:
    """Where the numbers come from is for readers; only its keys are checked."""
    known = list(Datasheet.__struct_fields__)
    if not isinstance(sources, Mapping):
        raise UserError(f"{path}: sources", show(sources), "must map a field to its source")
    for key in sources:
        if key not in known:
            raise UserError(
                f"{path}: sources.{key}",
                show(sources[key]),
                "must name a field",
                nearest_names(str(key), known),
            )


@cache
def _parts(name: str) -> tuple[str, ...]:
    """``NVIDIA A100-SXM4-40GB`` -> ``("a100", "sxm", "40gb")``."""
    words = re.split(r"[\s_-]+", name.lower())
    return tuple(_spelt(word) for word in words if word and word not in _NOISE)


def _spelt(word: str) -> str:
    return re.sub(r"^(sxm)\d$", r"\1", re.sub(r"^(\d+)g(i?b)?$", r"\1gb", word))


def _matches(wanted: tuple[str, ...], parts: tuple[str, ...]) -> bool:
    """Whether the family is the same and every other part that is asked for is there."""
    return bool(wanted) and wanted[:1] == parts[:1] and set(wanted) <= set(parts)


def _preference(name: str) -> tuple[bool, int, str]:
    parts = _parts(name)
    memory = next((int(part[:-2]) for part in parts if re.fullmatch(r"[0-9]{1,9}gb", part)), 0)
    return ("sxm" not in parts, -memory, name)
