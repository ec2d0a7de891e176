"""A GPU together with its calibration: rates that times are computed from."""

from dataclasses import dataclass
from functools import lru_cache

from advisor.cost.calibration import Calibration
from advisor.cost.hardware import Gpu
from advisor.dtypes import Precision
from advisor.layers.operators import Group
from advisor.layout import ParallelLayout


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """What joins the ranks of one group: bytes per second of one GPU, one direction, as reached."""

    bytes_per_second: float
    latency_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Reached rates of one GPU at one precision, FLOP/s and byte/s."""

    linear_flops: float
    bf16_flops: float
    attention_forward_flops: float
    attention_backward_flops: float
    memory_bytes_per_second: float
    kernel_seconds: float
    quantizes: bool


@lru_cache(maxsize=64)
def machine(gpu: Gpu, calibration: Calibration, precision: Precision) -> Machine:
    """Datasheet rates times efficiencies."""
    sixteen_bit = gpu.fp16_flops if precision is Precision.FP16 else gpu.bf16_flops
    return Machine(
        linear_flops=gpu.peak_flops(precision) * calibration.linear_efficiency(precision),
        bf16_flops=sixteen_bit * calibration.gemm_efficiency,
        attention_forward_flops=sixteen_bit * calibration.attention_forward_efficiency,
        attention_backward_flops=sixteen_bit * calibration.attention_backward_efficiency,
        memory_bytes_per_second=(
            gpu.memory_bandwidth_bytes_per_second * calibration.bandwidth_efficiency
        ),
        kernel_seconds=calibration.kernel_seconds,
        quantizes=precision.is_fp8 and gpu.fp8_flops is not None,
    )


def link(gpu: Gpu, calibration: Calibration, span: int) -> Link:
    """Link of a group whose ranks lie within `span` consecutive GPUs.

    Megatron numbers ranks TP first, then CP, DP, PP: a group that spans no more than one NVLink
    domain stays on NVLink, any other is bound by the network.
    """
    if 1 < gpu.nvlink_domain_size >= span:
        rate = gpu.nvlink_bytes_per_second * calibration.nvlink_efficiency
    elif gpu.nvlink_domain_size == 1 and span <= _PCIE_NODE:
        rate = gpu.host_link_bytes_per_second * calibration.nvlink_efficiency
    else:
        rate = gpu.internode_bytes_per_second * calibration.internode_efficiency
    return Link(bytes_per_second=rate, latency_seconds=calibration.collective_seconds)


_PCIE_NODE = 8  # GPUs of a server without NVLink


def group_span(layout: ParallelLayout, group: Group) -> int:
    """Consecutive GPUs that one group of ranks lies in."""
    if group is Group.TENSOR:
        return layout.tensor_model_parallel_size
    return layout.tensor_model_parallel_size * layout.context_parallel_size
