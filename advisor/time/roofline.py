"""Time of operators: tensor cores, attention kernels, or memory traffic, and communication.

A roofline (Williams, Waterman and Patterson 2009, CACM 52(4)) with reached rates in place of peaks:
an operator takes its FLOPs or its bytes over the rate of the unit that bounds it, and a kernel's
fixed time; GEMMs by their shape (advisor.time.gemm). Left out: caches, and kernels that run next to
each other.
"""

from msgspec import Struct

from advisor.layers.operators import CollectiveKind, ComputeUnit, Gemm, Module, Operator
from advisor.time.attention import attention_seconds
from advisor.time.gemm import forward_gemm_seconds, input_gradient_seconds, weight_gradient_seconds
from advisor.time.launches import is_exchange
from advisor.time.machine import Machine
from advisor.time.rank_links import Network

_UNFUSED_BACKWARD_MATMULS = 2.0
_FP32_SLOWER = 16.0  # than 16 bits: A100 312 / 19.5 TFLOP/s, H100 989 / 67; Blackwell's twice that
_SCAN_BACKWARD_MATMULS = 3.0  # two gradients of every product; states are computed again
_STREAMED = frozenset({Module.EMBEDDING, Module.SELF_ATTN_BDA, Module.MLP_BDA, Module.LOSS})
"""Look-ups, additions, casts and softmaxes: torch's own kernels stream as well as fused ones."""


class Seconds(Struct, frozen=True):
    """Time of one operator: kernels, and communication that nothing hides."""

    compute: float
    exposed: float


def forward_seconds(operator: Operator, machine: Machine, network: Network) -> Seconds:
    """Seconds of one forward pass of `operator` on one rank, one microbatch: its kernels, and the
    communication that they do not hide."""
    return _seconds(operator, machine, network, backward=False)


def backward_seconds(operator: Operator, machine: Machine, network: Network) -> Seconds:
    """Seconds of one backward pass of `operator`, its replay not included: two GEMMs for each of
    the forward's, of flash attention five products for two (arXiv 2307.08691)."""
    return _seconds(operator, machine, network, backward=True)


def bound_by(operator: Operator) -> str:
    """What limits the operator, in words for `--explain`."""
    return {
        ComputeUnit.GEMM: "tensor cores",
        ComputeUnit.ATTENTION: "attention kernel",
        ComputeUnit.BANDWIDTH: "memory bandwidth",
        ComputeUnit.SCAN: "scan kernels",
    }[operator.unit]


def _compute(operator: Operator, machine: Machine, *, backward: bool) -> float:
    extra = operator.extra_backward_bytes if backward else operator.extra_forward_bytes
    if operator.gemm is not None:
        copied = extra / machine.memory_bytes_per_second
        weights = operator.weights
        trained = not weights or any(not weight.frozen for weight in weights)
        if backward and operator.replays_gemm:
            copied += linear_seconds(operator.gemm, machine, backward=False)
        seconds = linear_seconds(operator.gemm, machine, backward=backward, trained=trained)
        return seconds + copied
    if is_exchange(operator):
        return 0.0  # memory is read and written while the tokens are sent
    traffic = operator.backward_bytes if backward else operator.forward_bytes
    if operator.unit is ComputeUnit.ATTENTION:
        return _attention_seconds(operator, machine, backward, traffic, extra)
    kernels = operator.backward_kernels if backward else operator.forward_kernels
    if machine.compiled:
        traffic, kernels = traffic - extra, 1
    streamed = operator.module in _STREAMED
    rate = machine.memory_bytes_per_second if streamed else machine.chain_bytes_per_second
    seconds = traffic / rate
    if operator.unit is ComputeUnit.SCAN:
        factor = _SCAN_BACKWARD_MATMULS if backward else 1.0
        seconds += factor * operator.attention_flops / machine.scan_flops
    return seconds + kernels * machine.kernel_seconds


def linear_seconds(gemm: Gemm, machine: Machine, *, backward: bool, trained: bool = True) -> float:
    """GEMMs of a linear layer: one forward, and back those of the input's and, where it is
    `trained`, of the weight's gradients.

    In 8 or 4 bits the cast of the input comes first, or of the output's gradient.
    """
    rates, cast = machine.linear, 0.0
    if gemm.quantized and machine.quantized is not None:
        rates = machine.quantized
        elements = gemm.m * (gemm.n if backward else gemm.k)
        cast = cast_seconds(elements, gemm.kernels, machine)
    if backward:
        of_weight = weight_gradient_seconds(gemm, rates) if trained else 0.0
        return input_gradient_seconds(gemm, rates) + of_weight + cast
    return forward_gemm_seconds(gemm, rates) + cast


def cast_seconds(elements: int, kernels: int, machine: Machine) -> float:
    """Bringing `elements` of 16 bits into the job's 8 or 4: a kernel an expert (TE 2.20.2
    pytorch/csrc/extensions/cast.cpp, split_quantize)."""
    traffic = elements * machine.quantize_bytes
    return traffic / machine.memory_bytes_per_second + kernels * machine.kernel_seconds


def weight_cast_seconds(gemm: Gemm, machine: Machine) -> float:
    """The weight's own cast, which Transformer Engine does in a step's first microbatch; none where
    parameters are kept in 8 bits."""
    if not (gemm.quantized and machine.quantized is not None):
        return 0.0
    return cast_seconds(gemm.n * gemm.k * gemm.groups, gemm.kernels, machine)


def _attention_seconds(
    operator: Operator, machine: Machine, backward: bool, traffic: int, copied: int
) -> float:
    """Fused kernels (advisor.time.attention) with what context parallelism copies and adds next to
    them; unfused matmuls are bound by their products or by their traffic."""
    kernel = operator.attention
    if kernel is None:
        factor = _UNFUSED_BACKWARD_MATMULS if backward else 1.0
        slower = _FP32_SLOWER if operator.fp32 else 1.0
        matmul = factor * slower * operator.attention_flops / machine.bf16_flops
        moved = traffic / machine.memory_bytes_per_second
        bound = matmul + moved if operator.fp32 else max(matmul, moved)
        return bound + factor * machine.kernel_seconds
    flops = operator.attention_flops
    seconds = attention_seconds(kernel, flops, machine.attention, backward=backward)
    moved = (traffic - copied) / machine.memory_bytes_per_second
    cast = copied / machine.memory_bytes_per_second + machine.kernel_seconds
    return max(seconds, moved) + cast


def _seconds(operator: Operator, machine: Machine, network: Network, *, backward: bool) -> Seconds:
    """Overlapped collectives hide behind the operator's own kernels or the GEMMs next to it, in
    part: they take SMs and memory bandwidth from them, and a GEMM in chunks is less efficient."""
    if backward and operator.no_grad:
        return Seconds(0.0, 0.0)
    compute = _compute(operator, machine, backward=backward)
    collectives = operator.backward_collectives if backward else operator.forward_collectives
    if not collectives:
        return Seconds(compute, 0.0)
    gemm = operator.gemm  # the output layer's stays at 16 bits (Megatron)
    narrow = machine.quantized is not None and gemm is not None and gemm.quantized
    exposed = overlapped = 0.0
    for collective in collectives:
        seconds = network.seconds(collective)
        if narrow and collective.kind is CollectiveKind.ALL_GATHER:
            seconds /= 2  # Transformer Engine gathers the 8-bit copy (module/_common.py)
        if collective.overlapped:
            overlapped += seconds
        else:
            exposed += seconds
    gemms = sum(linear_seconds(gemm, machine, backward=False) for gemm in operator.overlapped_gemms)
    hidden = machine.hidden_fraction * min(overlapped, compute + gemms)
    return Seconds(compute, exposed + overlapped - hidden)
