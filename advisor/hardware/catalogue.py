"""GPU types by name, from configs/hardware.

A file's name is FAMILY-FORM-MEMORY, e.g. ``H100-SXM-80GB``. Any part but the family may be left
out: of the types that are left, SXM comes before PCIe, then more memory before less, so that a bare
A100 or H100 is the 80 GB SXM part. Case does not matter; the names that torch and nvidia-smi print
(``NVIDIA A100-SXM4-40GB``, ``NVIDIA GeForce RTX 4090``, ``AMD Instinct MI300X``) are understood.
"""

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Final

from msgspec import Struct

from advisor.base.configuration import ConfigGroup, config_names, load_config
from advisor.base.errors import UserError, nearest_names, show
from advisor.base.fields import convert, read_record
from advisor.base.units import GIB
from advisor.hardware.gpu import Gpu, HostProcessor, Vendor

_FLAG: Final = "--gpus"
_OTHERS: Final = (
    "(advise gpus lists all; add your own as DIR/hardware/NAME.yaml with --config-dir DIR)"
)
_GIGA: Final = 10**9
_TERA: Final = 10**12
_NOISE: Final = frozenset(
    (
        *("nvidia", "geforce", "amd", "instinct", "tensor", "core", "gpu", "nvl72", "oam"),
        *("hbm2", "hbm2e", "hbm3", "hbm3e", "blackwell", "workstation", "server", "edition"),
    )
)
_FAMILY: Final = re.compile(r"\brtx[\s_-]*(pro)?[\s_-]*(?=[0-9]{4}\b)")
"""``RTX 4090``, ``rtx-4090`` and ``RTX4090`` are one word."""
_WORKSTATION: Final = re.compile(r"\brtx[\s_-]*(?=a[0-9]{4}\b)")
"""``RTX A6000`` is an A6000."""


class Datasheet(Struct, frozen=True, kw_only=True):
    """One GPU type as its file has it: GiB = 2^30 bytes, GB = 10^9 bytes, bandwidths per second, in
    one direction of one GPU; peaks are dense. Without NVLink or xGMI its fields are left out; see
    Gpu. ``nvlink_pair_gb_per_second``: of one pair of GPUs where no switch joins them.
    """

    memory_torch_total_gib: float
    memory_bandwidth_gb_per_second: float
    bf16_tflops: float
    fp16_tflops: float
    fp8_tflops: float | None = None
    fp4_tflops: float | None = None
    sm_count: int
    board_power_watts: float | None = None
    compute_capability: float
    nvlink_gb_per_second: float = 0.0
    nvlink_domain_size: int = 1
    nvlink_pair_gb_per_second: float = 0.0
    peer_to_peer: bool = True
    internode_gb_per_second: float
    host_link_gb_per_second: float
    host_processor: HostProcessor = HostProcessor.X86
    vendor: Vendor = Vendor.NVIDIA
    calibration: str | None = None
    same_chip_as: str = ""
    notes: str = ""

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value = getattr(self, name)
            number = isinstance(value, int | float) and not isinstance(value, bool)
            if number and (value < 0 or (value == 0 and name not in (_NVLINK, _PAIR))):
                raise UserError(name, value, "must be positive")
        joined, pair = f"{_NVLINK} = {self.nvlink_gb_per_second}", self.nvlink_pair_gb_per_second
        if pair > self.nvlink_gb_per_second:
            raise UserError(_PAIR, pair, f"must be at most {joined}")
        if (self.nvlink_domain_size > 1) != (self.nvlink_gb_per_second > 0):
            relation = f"must be 1 without NVLink and at least 2 with it ({joined})"
            raise UserError("nvlink_domain_size", self.nvlink_domain_size, relation)

    def gpu(self, name: str, assumed: tuple[str, ...] = ()) -> Gpu:
        """The type in bytes and FLOP/s; assumed: fields that no source gives."""
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
            board_power_watts=self.board_power_watts,
            compute_capability=self.compute_capability,
            nvlink_bytes_per_second=self.nvlink_gb_per_second * _GIGA,
            nvlink_domain_size=self.nvlink_domain_size,
            internode_bytes_per_second=self.internode_gb_per_second * _GIGA,
            host_link_bytes_per_second=self.host_link_gb_per_second * _GIGA,
            host_processor=self.host_processor,
            vendor=self.vendor,
            pair_bytes_per_second=self.nvlink_pair_gb_per_second * _GIGA,
            peer_to_peer=self.peer_to_peer,
            assumed_fields=assumed,
            calibration=self.calibration,
            same_chip_as=self.same_chip_as,
        )


_NVLINK: Final = "nvlink_gb_per_second"
_PAIR: Final = "nvlink_pair_gb_per_second"
_ASSUMED: Final = "assumed:"
"""How a source begins that is none."""


def gpu_names(config_dir: Path | None = None) -> tuple[str, ...]:
    """Names of all GPU types, sorted."""
    return config_names(ConfigGroup.HARDWARE, config_dir)


def load_gpu(gpu_type: str, config_dir: Path | None = None) -> Gpu:
    """The GPU type of a name or of an unambiguous part of it. UserError, with similar names, if
    there is none."""
    gpu_type = convert(gpu_type, str, "", "gpu_type")
    name = resolve_gpu(gpu_type, config_dir)
    document = load_config(ConfigGroup.HARDWARE, name, config_dir, _FLAG)
    values = dict(document.values)
    assumed = _assumed_fields(values.pop("sources", {}), document.path)
    return read_record(Datasheet, values, document.path).gpu(name, assumed)


def resolve_gpu(gpu_type: str, config_dir: Path | None = None) -> str:
    """Full name of a type, e.g. ``a100-40gb`` -> ``A100-SXM-40GB``."""
    names = gpu_names(config_dir)
    if found := full_name(gpu_type, names):
        return found
    if "mig" in _parts(gpu_type):
        fix = "use the whole GPU, or describe the slice in --config-dir DIR/hardware/NAME.yaml"
        raise UserError(_FLAG, gpu_type, "is a slice of a GPU (MIG), which has no preset", fix)
    near = f"{nearest_names(gpu_type, names)} {_OTHERS}"
    raise UserError(_FLAG, show(gpu_type), "unknown GPU type", near)


@cache
def full_name(gpu_type: str, names: tuple[str, ...]) -> str:
    """The one of `names` that a type means, of the same family and with every other part that is
    asked for; empty where it is none of them."""
    wanted = _parts(gpu_type)
    hits = [name for name in names if name.lower() == gpu_type.lower()]
    for name in () if hits or not wanted else names:
        parts = _parts(name)
        if wanted[:1] == parts[:1] and set(wanted) <= set(parts):
            hits.append(name)
    return min(hits, key=_preference, default="")


def _assumed_fields(sources: object, path: Path) -> tuple[str, ...]:
    """Fields whose source begins with ``assumed:``. Where the others come from is for readers."""
    known = list(Datasheet.__struct_fields__)
    if not isinstance(sources, Mapping):
        raise UserError(f"{path}: sources", show(sources), "must map a field to its source")
    for key in sources:
        if key not in known:
            near, said = nearest_names(str(key), known), show(sources[key])
            raise UserError(f"{path}: sources.{key}", said, "must name a field", near)
    return tuple(key for key, source in sources.items() if str(source).startswith(_ASSUMED))


@cache
def _parts(name: str) -> tuple[str, ...]:
    """``NVIDIA A100-SXM4-40GB`` -> ``("a100", "sxm", "40gb")``."""
    plain = _WORKSTATION.sub("", name.lower())
    words = re.split(r"[\s_-]+", _FAMILY.sub(r"rtx\1", plain))
    spelt = (re.sub(r"^(\d+)g(i?b)?$", r"\1gb", word) for word in words if word not in _NOISE)
    return tuple(re.sub(r"^(sxm)\d$", r"\1", word) for word in spelt if word)


def _preference(name: str) -> tuple[bool, int, str]:
    parts = _parts(name)
    memory = next((int(part[:-2]) for part in parts if re.fullmatch(r"[0-9]{1,9}gb", part)), 0)
    return ("sxm" not in parts, -memory, name)
