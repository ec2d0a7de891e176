"""Time of operators: tensor cores, attention kernels, or memory traffic, and communication.

A roofline (Williams, Waterman and Patterson 2009, CACM 52(4)) with reached rates in place of peaks:
an operator takes its FLOPs or its bytes over the rate of the unit that bounds it, and a kernel's
fixed time. Left out: tile and wave quantization, caches, and kernels that run beside each other.
"""

from msgspec import Struct

from advisor.layers.operators import (
    Collective,
    CollectiveKind,
    ComputeUnit,
    Gemm,
    Operator,
)
from advisor.time.machine import Machine
from advisor.time.network.fabric import Network

_ATTENTION_BACKWARD_MATMULS = 2.5  # five matmuls against two, scores replayed (arXiv 2307.08691)
_UNFUSED_BACKWARD_MATMULS = 2.0
_SCAN_BACKWARD_MATMULS = 3.0  # two gradients of every product; states are computed again
_GEMM_BACKWARD_PASSES = 2


class Seconds(Struct, frozen=True):
    """Time of one operator: kernels, and communication that nothing hides."""

    compute: float
    exposed: float

    def __add__(self, other: "Seconds") -> "Seconds":
        return Seconds(self.compute + other.compute, self.exposed + other.exposed)


def forward_seconds(operator: Operator, machine: Machine, network: Network) -> Seconds:
    """Seconds of one forward pass of `operator` on one rank, one microbatch: its kernels, and the
    communication that they do not hide."""
    compute = _compute(operator, machine, backward=False)
    return _with_communication(compute, operator, operator.forward_collectives, machine, network)


def backward_seconds(operator: Operator, machine: Machine, network: Network) -> Seconds:
    """Seconds of one backward pass of `operator`, its replay not included: two GEMMs for each of
    the forward's, 2.5 times flash attention's products (arXiv 2307.08691)."""
    compute = _compute(operator, machine, backward=True)
    return _with_communication(compute, operator, operator.backward_collectives, machine, network)


def bound_by(operator: Operator) -> str:
    """What limits the operator, in words for `--explain`."""
    return {
        ComputeUnit.GEMM: "tensor cores",
        ComputeUnit.ATTENTION: "attention kernel",
        ComputeUnit.BANDWIDTH: "memory bandwidth",
        ComputeUnit.SCAN: "scan kernels",
    }[operator.unit]


def _in_8_bit(operator: Operator, machine: Machine) -> bool:
    """Whether a linear layer computes in 8 bits: the output layer stays at 16 (Megatron)."""
    return machine.quantize_bytes > 0 and operator.gemm is not None and operator.gemm.quantized


def _compute(operator: Operator, machine: Machine, *, backward: bool) -> float:
    if operator.gemm is not None:
        return _linear_seconds(operator, operator.gemm, machine, backward)
    traffic = operator.backward_bytes if backward else operator.forward_bytes
    if operator.unit is ComputeUnit.ATTENTION:
        return _attention_seconds(operator, machine, backward, traffic)
    seconds = traffic / machine.memory_bytes_per_second
    if operator.unit is ComputeUnit.SCAN:
        factor = _SCAN_BACKWARD_MATMULS if backward else 1.0
        seconds = max(seconds, factor * operator.attention_flops / machine.bf16_flops)
    return seconds + machine.kernel_seconds


def _linear_seconds(operator: Operator, gemm: Gemm, machine: Machine, backward: bool) -> float:
    """GEMMs of a linear layer: one forward, and back those of the input's and weight's gradients.

    In 8 bits the cast of the input comes first, or of the output's gradient. Small n or k cost no
    more than a kernel's fixed time: tile and wave quantization did not fit the published rows
    better. The weight's cast, once a step, is left out.
    """
    passes = _GEMM_BACKWARD_PASSES if backward else 1
    narrow = _in_8_bit(operator, machine)
    rate = machine.linear_flops if narrow else machine.bf16_flops
    seconds = passes * (gemm.flops / rate + machine.kernel_seconds)
    if narrow:
        elements = gemm.m * (gemm.n if backward else gemm.k)
        traffic = elements * machine.quantize_bytes
        seconds += traffic / machine.memory_bytes_per_second + machine.kernel_seconds
    return seconds


def _attention_seconds(operator: Operator, machine: Machine, backward: bool, traffic: int) -> float:
    """Flash attention is bound by its matmuls, beside which context parallelism copies and adds;
    unfused matmuls by them or by their traffic."""
    flash = operator.name == "core_attention"
    factor = 1.0
    if backward:
        factor = _ATTENTION_BACKWARD_MATMULS if flash else _UNFUSED_BACKWARD_MATMULS
    if flash:
        rate = machine.attention_backward_flops if backward else machine.attention_forward_flops
        copied = operator.extra_backward_bytes if backward else operator.extra_forward_bytes
        beside = copied / machine.memory_bytes_per_second + machine.kernel_seconds
        return factor * operator.attention_flops / rate * _ramp(operator, machine) + beside
    matmul = factor * operator.attention_flops / machine.bf16_flops
    return max(matmul, traffic / machine.memory_bytes_per_second) + factor * machine.kernel_seconds


def _ramp(operator: Operator, machine: Machine) -> float:
    """How much longer flash attention takes than at the rate of endlessly many rows and tokens."""
    if not operator.attention_rows:
        return 1.0
    rows = machine.attention_half_rate_rows / operator.attention_rows
    return 1.0 + rows + machine.attention_half_rate_tokens / operator.attention_tokens


def _with_communication(
    compute: float,
    operator: Operator,
    collectives: tuple[Collective, ...],
    machine: Machine,
    network: Network,
) -> Seconds:
    """Overlapped collectives hide behind the operator's own kernels, in part: they take SMs and
    memory bandwidth from them, and a GEMM cut into chunks is less efficient."""
    narrow = _in_8_bit(operator, machine)
    exposed = overlapped = 0.0
    for collective in collectives:
        seconds = network.seconds(collective)
        if narrow and collective.kind is CollectiveKind.ALL_GATHER:
            seconds /= 2  # Transformer Engine gathers the 8-bit copy (module/_common.py)
        if collective.overlapped:
            overlapped += seconds
        else:
            exposed += seconds
    hidden = machine.hidden_fraction * min(overlapped, compute)
    return Seconds(compute, exposed + overlapped - hidden)
