"""A GPU and its processor together with their calibration: rates that times are computed from."""

from functools import lru_cache
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from advisor.base.dtypes import Precision
from advisor.hardware.calibration import Calibration
from advisor.hardware.gpu import Gpu, HostProcessor
from advisor.job.job import CudaGraphImpl, Job
from advisor.layers.operators import Module
from advisor.models.options import FlexBackend, TransformerImpl
from advisor.time.attention import AttentionRates, Reached, softmax_flops
from advisor.time.gemm import GemmRates
from advisor.time.launches import Host
from advisor.time.rank_links import Network


class Machine(Struct, frozen=True, kw_only=True, cache_hash=True):
    """Reached rates of one GPU at one precision, FLOP/s and byte/s.

    linear: of the linear layers' GEMMs in 16 bits; quantized: in the 8 or 4 bits of the job, if it
    has such. quantize_bytes: memory traffic of bringing one 16-bit element into these, both
    layouts. bf16_flops: of large matmuls of 16 bits outside the linear layers.
    chain_bytes_per_second: of memory, chains of torch's own kernels where layers are made of them.
    hidden_fraction: of a collective that runs next to an operator, the part that costs no time.
    scan_flops: of the scans of linear attention. compiled: chains of torch's kernels are one.
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
    scan_flops: float = 1.0
    quantized: GemmRates | None = None
    quantize_bytes: int = 0
    host_bytes_per_second: float = 1.0
    compiled: bool = False
    host_memory_bytes_per_second: float = 1.0
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
_UNFUSED_QUANTIZE_BYTES: Final = 33
"""torchao without torch.compile: absolute values and their largest (6), a copy in fp32 (6), times
the scale (8), clamped (8), cast (5). torchao 0.18.0 float8/float8_utils.py tensor_to_amax and
to_fp8_saturated, float8_training_tensor.py _ToFloat8ConstrFunc."""


def machine_of(job: Job, calibration: Calibration, host: Host | None = None) -> Machine:
    """The job's GPU, at its precision and with its layers, compiled if `host` says so or there is
    none."""
    eager, precision = job.model.transformer_impl.is_eager, job.config.precision
    compiled = job.config.torch_compile if host is None else host.compiled
    return machine(job.gpu, calibration, precision, eager=eager, compiled=compiled, host=host)


_NCCL_SMS: Final = 32
"""Multiprocessors of NCCL's all-to-all: its most channels for point-to-point messages."""


def hidden_exchange(job: Job, rates: Network) -> float:
    """Part of the experts' exchange that kernels of another microbatch hide, on the multiprocessors
    that it leaves them; 0 where none runs next to it.

    Source: megatron-core 0.16.1 pipeline_parallel/combined_1f1b.py.
    """
    if not job.layout.overlap_moe_expert_parallel_comm:
        return 0.0
    taken = (rates.dispatcher.sms if rates.dispatcher else _NCCL_SMS) / job.gpu.sm_count
    return 1 - taken


def host_of(
    job: Job,
    calibration: Calibration,
    graphed: frozenset[Module],
    hidden_share: float,
    passes: int,
    compiled: bool,
) -> Host:
    """The processor next to the job's GPU; the first of all `passes` has no other microbatch.

    DeepEP's dispatch keeps the thread until every rank has counted its tokens (csrc/deep_ep.cpp
    waits for moe_recv_counter); an all-to-all reads its counts on a stream of their own
    (token_dispatcher.py), and runs with HybridEP show no such wait under overlap.
    """
    grace = job.gpu.host_processor is HostProcessor.GRACE
    slower = calibration.grace_slowdown if grace else 1.0
    wrapped = job.model.transformer_impl is TransformerImpl.TRANSFORMER_ENGINE
    call = calibration.host_wrapped_call_seconds if wrapped else calibration.host_call_seconds
    return Host(
        call_seconds=slower * call,
        module_seconds=slower * calibration.host_module_seconds,
        quantize_seconds=slower * calibration.host_quantize_seconds,
        answer_seconds=slower * calibration.host_answer_seconds,
        graphed=graphed,
        whole=job.config.cuda_graph_impl is CudaGraphImpl.FULL_ITERATION,
        hidden_share=hidden_share * (passes - 1) / passes,
        blocks=calibration.deepep_blocks and job.model.flex_backend == FlexBackend.DEEPEP,
        compiled=compiled and job.model.transformer_impl.is_eager,
    )


@lru_cache(maxsize=64)
def machine(
    gpu: Gpu,
    calibration: Calibration,
    precision: Precision,
    *,
    eager: bool = False,
    compiled: bool = False,
    host: Host | None = None,
) -> Machine:
    """Datasheet rates times efficiencies. eager: layers are torch's own kernels; compiled: fused;
    host: the processor.

    FLOP/s are dense, bytes/s in one direction. A GPU without such tensor cores stays at 16 bit.
    Sources: configs/hardware, and configs/calibration with what each was fitted on.
    """
    half = Precision.FP16 if precision is Precision.FP16 else Precision.BF16
    if not eager:  # Transformer Engine runs a GEMM of cuBLAS's for each expert
        calibration = replace(calibration, grouped_gemm_share=1.0)
    linear = gemm_rates(gpu, calibration, half)
    narrow, fused = gpu.quantized_flops(precision), compiled or not eager
    of_engine = fused or precision is Precision.FP8_DELAYED  # te.Linear's own kernels
    cast_bytes = _QUANTIZE_BYTES.get(precision, 0) if of_engine else _UNFUSED_QUANTIZE_BYTES
    memory = gpu.memory_bandwidth_bytes_per_second
    reached = memory * calibration.bandwidth_efficiency
    scan_width = min(1.0, _SM_FLOPS * gpu.sm_count / gpu.bf16_flops)  # of the tensor cores' rate
    return Machine(
        linear=linear,
        quantized=gemm_rates(gpu, calibration, precision) if narrow is not None else None,
        bf16_flops=linear.sustained_flops,
        attention=_attention_rates(gpu, calibration, gpu.peak_flops(half)),
        memory_bytes_per_second=reached,
        chain_bytes_per_second=reached * (1.0 if fused else calibration.eager_bandwidth_share),
        compiled=compiled,
        host_memory_bytes_per_second=calibration.host_memory_bytes_per_second,
        optimizer_bytes_per_second=memory
        * (calibration.optimizer_bandwidth_efficiency or calibration.bandwidth_efficiency),
        kernel_seconds=calibration.kernel_seconds,
        hidden_fraction=calibration.hidden_fraction,
        scan_flops=linear.sustained_flops * calibration.scan_share * scan_width,
        quantize_bytes=0 if narrow is None else cast_bytes,
        host_bytes_per_second=gpu.host_link_bytes_per_second * _HOST_LINK_EFFICIENCY,
        host=host,
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
            operand_bytes = _NVFP4_BYTES
            efficiency *= ((gpu.fp4_flops or peak) / peak) ** calibration.fp4_speed_exponent
    flops = peak * efficiency
    clock = calibration.gemm_sustained_share * power_ratio(gpu, calibration)
    if precision in (Precision.MXFP8, Precision.FP8_BLOCKWISE):
        flops *= _SCALED_BLOCKS
    return GemmRates(
        flops=flops,
        sustained_flops=flops * clock * calibration.gemm_training_share,
        multiprocessors=gpu.sm_count,
        bytes_per_second=gpu.memory_bandwidth_bytes_per_second
        * calibration.gemm_bandwidth_efficiency,
        kernel_seconds=calibration.kernel_seconds,
        operand_bytes=operand_bytes,
        tile_seconds=calibration.gemm_tile_seconds,
        grouped_share=calibration.grouped_gemm_share,
    )


_ULTRA: Final = 10.3
_ULTRA_RATE: Final = 1.05
"""Rate of Blackwell Ultra at the same power. Attention in 16 bits of 8,192 tokens and more is 1.17
times (forward, 21 shapes) and 1.15 times (backward, 18) as fast on GB300 as on GB200, in the
median, of which 1,400 W over 1,200 W explain 1.10 (results/published/kernels, attention.csv)."""


def power_ratio(gpu: Gpu, calibration: Calibration) -> float:
    """Rate of kernels under the power limit over that of the GPU that the calibration is of,
    in parts of their peaks. A FLOP takes less energy at a lower clock, whose voltage is lower."""
    reference = calibration.watts_per_teraflop
    if not (reference and gpu.board_power_watts):
        return 1.0
    more_power = gpu.board_power_watts / (gpu.bf16_flops / 10**12) / reference
    ratio: float = more_power**calibration.power_exponent
    if gpu.compute_capability == _ULTRA:
        ratio *= _ULTRA_RATE
    return min(ratio, 1 / calibration.gemm_sustained_share)  # no clock is above the full one


_SM_FLOPS: Final = 989e12 / 132
"""Dense 16-bit FLOP/s of a multiprocessor of H100, whose matrix instructions have 64 rows. The
products of a scan's chunks are too small for Blackwell's, of 128 rows and more (PTX ISA: wgmma,
tcgen05.mma)."""


_SCALED_BLOCKS = 0.951
"""GEMMs with scales of blocks over those with one scale a tensor: Transformer Engine's table of
B300, MXFP8 over current scaling, all three passes (results/published/kernels, gemm.csv)."""
_NVFP4_BYTES = 0.5625  # and one scale byte to 16 elements


def _attention_rates(gpu: Gpu, calibration: Calibration, peak_flops: float) -> AttentionRates:
    forward = calibration.attention_forward_efficiency
    backward = calibration.attention_backward_efficiency
    return AttentionRates(
        peak_flops=peak_flops * power_ratio(gpu, calibration),
        flash=Reached(forward, backward),
        fused=Reached(
            calibration.fused_attention_forward_efficiency or forward,
            calibration.fused_attention_backward_efficiency or backward,
        ),
        softmax_flops=softmax_flops(gpu.cuda_capability),
        narrow_speedup=gpu.fp8_flops / gpu.bf16_flops if gpu.fp8_flops else 1.0,
        half_rate_rows=calibration.attention_half_rate_rows,
        half_rate_tokens=calibration.attention_half_rate_tokens,
    )
