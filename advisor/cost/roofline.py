"""Time of operators: tensor cores, attention kernels, or memory traffic, and communication."""

from dataclasses import dataclass

from advisor.cost.machine import Link, Machine
from advisor.layers.operators import (
    Collective,
    CollectiveKind,
    ComputeUnit,
    Group,
    Module,
    Operator,
)

_ATTENTION_BACKWARD_MATMULS = 2.5  # five matmuls against two, scores replayed (arXiv 2307.08691)
_UNFUSED_BACKWARD_MATMULS = 2.0
_GEMM_BACKWARD_PASSES = 2  # gradients of the input and of the weight
_QUANTIZE_BYTES = 2 + 2 + 2  # amax pass and cast pass read 16 bit; row- and column-wise copies out


@dataclass(frozen=True, slots=True)
class Seconds:
    """Time of one operator: kernels, and communication that nothing hides."""

    compute: float
    exposed: float

    def __add__(self, other: "Seconds") -> "Seconds":
        return Seconds(self.compute + other.compute, self.exposed + other.exposed)


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """Links and sizes of the groups that layers communicate in."""

    tensor: Link
    context: Link
    tensor_ranks: int
    context_ranks: int

    def seconds(self, collective: Collective) -> float:
        """Time of one collective (ring algorithms: (n - 1) / n of the bytes per pass)."""
        tensor = collective.group is Group.TENSOR
        ranks = self.tensor_ranks if tensor else self.context_ranks
        joined = self.tensor if tensor else self.context
        return collective_seconds(collective.kind, collective.num_bytes, ranks, joined)


def collective_seconds(kind: CollectiveKind, num_bytes: float, ranks: int, joined: Link) -> float:
    """Seconds of a collective over `ranks` ranks; `num_bytes` is the full tensor's size.

    An all-reduce is a reduce-scatter and an all-gather. A ring passes its bytes on once.
    """
    if ranks == 1:
        return 0.0
    if kind is CollectiveKind.RING:
        return num_bytes / joined.bytes_per_second + (ranks - 1) * joined.latency_seconds
    passes = 2 if kind is CollectiveKind.ALL_REDUCE else 1
    share = num_bytes * (ranks - 1) / ranks
    return passes * share / joined.bytes_per_second + joined.latency_seconds


def forward_seconds(operator: Operator, machine: Machine, network: Network) -> Seconds:
    """One forward pass of `operator`."""
    compute = _compute(operator, machine, gemm_passes=1, backward=False)
    return _with_communication(compute, operator.forward_collectives, network)


def backward_seconds(operator: Operator, machine: Machine, network: Network) -> Seconds:
    """One backward pass of `operator`, its replay not included."""
    compute = _compute(operator, machine, gemm_passes=_GEMM_BACKWARD_PASSES, backward=True)
    return _with_communication(compute, operator.backward_collectives, network)


def bound_by(operator: Operator) -> str:
    """What limits the operator, in words for `--explain`."""
    return {
        ComputeUnit.GEMM: "tensor cores",
        ComputeUnit.ATTENTION: "attention kernel",
        ComputeUnit.BANDWIDTH: "memory bandwidth",
    }[operator.unit]


def _compute(operator: Operator, machine: Machine, *, gemm_passes: int, backward: bool) -> float:
    traffic = operator.backward_bytes if backward else operator.forward_bytes
    if operator.gemm is not None:
        return _gemm_seconds(operator, machine, gemm_passes)
    if operator.unit is ComputeUnit.ATTENTION:
        return _attention_seconds(operator, machine, backward, traffic)
    return traffic / machine.memory_bytes_per_second + machine.kernel_seconds


def _gemm_seconds(operator: Operator, machine: Machine, passes: int) -> float:
    gemm = operator.gemm
    assert gemm is not None
    if not machine.quantizes or operator.module is Module.OUTPUT_LAYER:
        rate, quantize = machine.bf16_flops, 0.0
    else:
        rate = machine.linear_flops
        source = gemm.m * (gemm.k if passes == 1 else gemm.n)
        quantize = source * _QUANTIZE_BYTES / machine.memory_bytes_per_second
    return passes * (gemm.flops / rate + machine.kernel_seconds) + quantize


def _attention_seconds(operator: Operator, machine: Machine, backward: bool, traffic: int) -> float:
    """Flash attention is bound by its matmuls; unfused matmuls by them or by their traffic."""
    flash = operator.name == "core_attention"
    factor = 1.0
    if backward:
        factor = _ATTENTION_BACKWARD_MATMULS if flash else _UNFUSED_BACKWARD_MATMULS
    if flash:
        rate = machine.attention_backward_flops if backward else machine.attention_forward_flops
        return factor * operator.attention_flops / rate + machine.kernel_seconds
    matmul = factor * operator.attention_flops / machine.bf16_flops
    return max(matmul, traffic / machine.memory_bytes_per_second) + factor * machine.kernel_seconds


def _with_communication(
    compute: float, collectives: tuple[Collective, ...], network: Network
) -> Seconds:
    """Overlapped collectives hide behind the operator's own kernels, as far as these last."""
    hidden = sum(network.seconds(c) for c in collectives if c.overlapped)
    exposed = sum(network.seconds(c) for c in collectives if not c.overlapped)
    return Seconds(compute, exposed + max(0.0, hidden - compute))
