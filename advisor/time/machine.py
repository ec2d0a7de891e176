"""A GPU together with its calibration: rates that times are computed from."""

from functools import lru_cache

from msgspec import Struct

from advisor.base.dtypes import Precision
from advisor.hardware.calibration import Calibration
from advisor.hardware.gpu import Gpu
from advisor.job.layout import ParallelLayout
from advisor.layers.operators import Group
from advisor.models.options import CpCommType
from advisor.time.attention import AttentionRates, Reached, softmax_flops
from advisor.time.gemm import GemmRates
from advisor.time.launches import Host


class Link(Struct, frozen=True, kw_only=True):
    """What joins the ranks of one group: bytes per second of one GPU, one direction, as reached."""

    bytes_per_second: float
    latency_seconds: float


class Machine(Struct, frozen=True, kw_only=True):
    """Reached rates of one GPU at one precision, FLOP/s and byte/s.

    linear: of the linear layers' GEMMs in 16 bits; quantized: in the 8 or 4 bits of the job, if it
    has such. quantize_bytes: memory traffic of bringing one 16-bit element into these, both
    layouts. bf16_flops: of large matmuls of 16 bits outside the linear layers.
    chain_bytes_per_second: of memory, chains of torch's own kernels where layers are made of them.
    hidden_fraction: of a collective that runs beside an operator, the part that costs no time.
    host: the processor that launches kernels; None: it never keeps the GPU waiting.
    """

    linear: GemmRates
    bf16_flops: float
    attention: AttentionRates
    memory_bytes_per_second: float
    chain_bytes_per_second: float
    optimizer_bytes_per_second: float
    kernel_seconds: float
    hidden_fraction: float
    quantized: GemmRates | None = None
    quantize_bytes: int = 0
    host_bytes_per_second: float = 1.0
    host: Host | None = None


_HOST_LINK_EFFICIENCY = 0.85
"""Of the paper rate, pinned copies; a judgement: `harness calibrate` prints the machine's own."""

_QUANTIZE_BYTES = {
    Precision.FP8_DELAYED: 4,
    Precision.FP8_CURRENT: 6,
    Precision.FP8_BLOCKWISE: 4,
    Precision.MXFP8: 4,
    Precision.NVFP4: 7,
}
"""Read 16 bit, write row- and column-wise copies of 8 or 4 bit; current scaling reads once more,
for the largest value, before it casts (TE common/cast, recipe/current_scaling.cu). NVFP4 does too,
and makes the columns' copy of a Hadamard transform, by a kernel of its own (TE common/hadamard).
Scales of blocks (1/128 or 1/32 of the elements) are left out. Transformer Engine's own table of
B300 (results/published/kernels, casts.csv) has 0.72, 0.48 and 0.68 ms for 6, 4 and 7 bytes."""


@lru_cache(maxsize=64)
def machine(
    gpu: Gpu, calibration: Calibration, precision: Precision, *, eager: bool = False
) -> Machine:
    """Datasheet rates times efficiencies.

    FLOP/s are dense, bytes/s in one direction. A GPU without such tensor cores stays at 16 bit.
    Sources: configs/hardware, and configs/calibration with what each was fitted on.
    """
    sixteen_bit = gpu.fp16_flops if precision is Precision.FP16 else gpu.bf16_flops
    linear = gemm_rates(
        gpu, calibration, Precision.FP16 if precision is Precision.FP16 else Precision.BF16
    )
    narrow = gpu.quantized_flops(precision)
    memory = gpu.memory_bandwidth_bytes_per_second
    reached = memory * calibration.bandwidth_efficiency
    return Machine(
        linear=linear,
        quantized=gemm_rates(gpu, calibration, precision) if narrow is not None else None,
        bf16_flops=linear.sustained_flops,
        attention=_attention_rates(gpu, calibration, sixteen_bit),
        memory_bytes_per_second=reached,
        chain_bytes_per_second=reached * (calibration.eager_bandwidth_share if eager else 1.0),
        optimizer_bytes_per_second=memory
        * (calibration.optimizer_bandwidth_efficiency or calibration.bandwidth_efficiency),
        kernel_seconds=calibration.kernel_seconds,
        hidden_fraction=calibration.hidden_fraction,
        quantize_bytes=_QUANTIZE_BYTES[precision] if narrow is not None else 0,
        host_bytes_per_second=gpu.host_link_bytes_per_second * _HOST_LINK_EFFICIENCY,
    )


@lru_cache(maxsize=64)
def gemm_rates(gpu: Gpu, calibration: Calibration, precision: Precision) -> GemmRates:
    """Rates of GEMMs whose operands have `precision`, which the GPU must have."""
    peak, efficiency, operand_bytes = gpu.bf16_flops, calibration.gemm_efficiency, 2.0
    if precision is Precision.FP16:
        peak = gpu.fp16_flops
    elif precision.is_quantized and gpu.fp8_flops is not None:
        peak, efficiency, operand_bytes = gpu.fp8_flops, calibration.fp8_gemm_efficiency, 1.0
        if precision is Precision.NVFP4:
            efficiency = calibration.fp4_gemm_efficiency or efficiency
            peak, operand_bytes = _FP4_OVER_FP8 * peak, _NVFP4_BYTES
    flops = peak * efficiency * calibration.gemm_training_share
    return GemmRates(
        flops=flops,
        sustained_flops=flops * calibration.gemm_sustained_share,
        multiprocessors=gpu.sm_count,
        bytes_per_second=gpu.memory_bandwidth_bytes_per_second
        * calibration.gemm_bandwidth_efficiency,
        kernel_seconds=calibration.kernel_seconds,
        operand_bytes=operand_bytes,
        tile_seconds=calibration.gemm_tile_seconds,
        grouped_share=calibration.grouped_gemm_share,
    )


_FP4_OVER_FP8 = 2
"""B200's FP4 peak over its FP8 peak. That of B300 and GB300 is three times theirs, of which no
published GEMM reaches more than two (results/published/kernels)."""
_NVFP4_BYTES = 0.5625  # and one scale byte to 16 elements


def _attention_rates(gpu: Gpu, calibration: Calibration, peak_flops: float) -> AttentionRates:
    forward = calibration.attention_forward_efficiency
    backward = calibration.attention_backward_efficiency
    return AttentionRates(
        peak_flops=peak_flops * calibration.attention_training_share,
        flash=Reached(forward, backward),
        fused=Reached(
            calibration.fused_attention_forward_efficiency or forward,
            calibration.fused_attention_backward_efficiency or backward,
        ),
        softmax_flops=softmax_flops(gpu.compute_capability),
        narrow_speedup=gpu.fp8_flops / gpu.bf16_flops if gpu.fp8_flops else 1.0,
        half_rate_rows=calibration.attention_half_rate_rows,
        half_rate_tokens=calibration.attention_half_rate_tokens,
    )


def link(gpu: Gpu, calibration: Calibration, span: int, ranks_per_node: int = 1) -> Link:
    """Link of a group whose ranks lie within `span` consecutive GPUs.

    Megatron numbers ranks TP first, then CP, DP, PP: a group that spans no more than one NVLink
    domain stays on NVLink. Any other is bound by the network, where every rank of the group on a
    node brings its own adapter: a collective's bytes enter a node through all of them. Bytes/s of
    one GPU in one direction: datasheet rates (configs/hardware) times fitted efficiencies
    (configs/calibration). Congestion between jobs and the network's topology are left out.
    """
    nvlink = gpu.nvlink_bytes_per_second * calibration.nvlink_efficiency
    if 1 < gpu.nvlink_domain_size >= span:
        rate = nvlink
    elif gpu.nvlink_domain_size == 1 and span <= _PCIE_NODE:
        rate = gpu.host_link_bytes_per_second * calibration.nvlink_efficiency
    else:
        rate = gpu.internode_bytes_per_second * calibration.internode_efficiency * ranks_per_node
        rate = min(rate, nvlink) if gpu.nvlink_domain_size > 1 else rate
    return Link(bytes_per_second=rate, latency_seconds=calibration.collective_seconds)


_PCIE_NODE = 8  # GPUs of a server without NVLink


def group_span(layout: ParallelLayout, group: Group) -> int:
    """Consecutive GPUs that one group of ranks lies in, by Megatron's numbering of ranks (TP, CP,
    DP, PP; of experts ETP, EP: megatron-core 0.16.1 parallel_state.py)."""
    if group is Group.TENSOR:
        return layout.tensor_model_parallel_size
    if group is Group.CONTEXT:
        return layout.tensor_model_parallel_size * layout.context_parallel_size
    etp = layout.expert_tensor_degree
    return etp if group is Group.EXPERT_TENSOR else etp * layout.expert_model_parallel_size


def all_to_all_link(gpu: Gpu, calibration: Calibration, ranks: int, apart: int) -> Link:
    """Link of an all-to-all over `ranks` ranks, each `apart` GPUs from the next.

    Of what a rank sends, the part for ranks of its own node stays on NVLink, beside what leaves it
    through its one adapter: the slower of both, as a rate for the bytes of all other ranks, bytes/s
    of one GPU. Every rank is taken to send as much to each other one.
    """
    near = max(1, min(ranks, gpu.nvlink_domain_size // apart))
    inside = link(gpu, calibration, apart * near)
    if near == ranks:
        return inside
    outside = link(gpu, calibration, ranks * apart)
    seconds = max((ranks - near) / outside.bytes_per_second, (near - 1) / inside.bytes_per_second)
    return Link(bytes_per_second=(ranks - 1) / seconds, latency_seconds=outside.latency_seconds)


def context_link(gpu: Gpu, calibration: Calibration, layout: ParallelLayout) -> Link:
    """Link of the context-parallel ranks but for their all-to-alls.

    Of a ring one rank of a node sends to the next node, in an all-gather all do. Source:
    Transformer Engine's context parallelism by cp_comm_type (pytorch/attention).
    """
    gathers = layout.cp_comm_type is CpCommType.ALL_GATHER
    per_node = gpu.nvlink_domain_size // layout.tensor_model_parallel_size if gathers else 1
    return link(gpu, calibration, group_span(layout, Group.CONTEXT), max(1, per_node))


def expert_data_parallel_link(gpu: Gpu, calibration: Calibration, layout: ParallelLayout) -> Link:
    """Link of the ranks that share routed experts, EP x ETP apart."""
    apart = layout.expert_model_parallel_size * layout.expert_tensor_degree
    span = apart * layout.expert_data_parallel_size
    return link(gpu, calibration, span, max(1, gpu.nvlink_domain_size // apart))


def data_parallel_link(gpu: Gpu, calibration: Calibration, layout: ParallelLayout) -> Link:
    """Link of the ranks that share a model shard: DP x CP of them, TP apart."""
    tp = layout.tensor_model_parallel_size
    span = tp * layout.context_parallel_size * layout.data_parallel_size
    return link(gpu, calibration, span, max(1, gpu.nvlink_domain_size // tp))
