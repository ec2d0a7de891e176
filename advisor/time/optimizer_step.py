"""Time of the optimizer step: Adam and Muon on the GPU, Adam on the host."""

from advisor.base.dtypes import DType
from advisor.memory.muon_shares import MuonShare
from advisor.time.machine import Machine

_OPTIMIZER_BYTES_PER_ELEMENT = 4 + 8 + 16 + 12 + 6
"""fp32 shard: norm reads the gradient; clipping reads and writes it; Adam reads gradient, main
parameter and two moments and writes three; a copy brings the parameter to 16 bit."""
_GRADIENT_PASSES = 3  # zeroing the buffer; scaling it before the reduction reads and writes it


def optimizer_seconds(
    elements: int, shards: int, gradient_itemsize: int, machine: Machine, *, on_host: float = 0.0
) -> float:
    """Adam over this rank's shard but for the part `on_host`, and passes over its gradient buffer;
    bandwidth bound."""
    traffic = float(optimizer_traffic(elements, shards, gradient_itemsize))
    traffic -= on_host * -(-elements // shards) * _OPTIMIZER_BYTES_PER_ELEMENT
    return traffic / machine.optimizer_bytes_per_second


def optimizer_traffic(elements: int, shards: int, gradient_itemsize: int) -> int:
    """Bytes that Adam moves over this rank's shard, and passes over its gradient buffer: every
    tensor once for each kernel that reads or writes it (megatron-core 0.16.1 distrib_optimizer.py,
    clip_grads.py; TE FusedAdam). Caches are left out: shards are far larger."""
    shard = -(-elements // shards)
    return shard * _OPTIMIZER_BYTES_PER_ELEMENT + elements * gradient_itemsize * _GRADIENT_PASSES


def muon_seconds(
    share: MuonShare, elements: int, gradient_itemsize: int, machine: Machine
) -> float:
    """Muon and Adam over this rank's `share`, and passes over the gradients of all `elements`: the
    traffic of Adam, and the multiplications of Newton and Schulz in 16 bits (OptimizerConfig
    muon_fp32_matmul_prec "medium")."""
    traffic = share.elements * _OPTIMIZER_BYTES_PER_ELEMENT
    traffic += elements * gradient_itemsize * _GRADIENT_PASSES
    return traffic / machine.optimizer_bytes_per_second + share.flops / machine.bf16_flops


_HOST_ADAM_BYTES_PER_ELEMENT = 28
"""fp32 on the host: reads gradient, parameter and two moments, writes all but the gradient."""


def host_optimizer_seconds(
    elements: float, gradient_itemsize: int, machine: Machine, *, overlapped: bool
) -> float:
    """Adam on the host for `elements` of this rank: gradients there, the update, 16-bit parameters
    back; the copies run beside the update where `overlapped` (overlap_cpu_optimizer_d2h_h2d)."""
    copies = elements * (gradient_itemsize + 2) / machine.host_bytes_per_second
    update = elements * _HOST_ADAM_BYTES_PER_ELEMENT / machine.host_memory_bytes_per_second
    return max(copies, update) if overlapped else copies + update


def host_accumulation_seconds(elements: float, microbatches: int, machine: Machine) -> float:
    """ZeRO-Offload's accumulation of this rank's 16-bit gradients on the host: every microbatch
    but the first brings the sum to the device, and each takes it back. One microbatch alone goes
    straight into the host's fp32 gradients, which host_optimizer_seconds counts.
    Source: DeepSpeed runtime/zero/stage_1_and_2.py async_accumulate_grad_in_cpu_via_gpu."""
    if microbatches == 1:
        return 0.0
    copied = (2 * microbatches - 1) * elements * DType.BF16.itemsize
    return copied / machine.host_bytes_per_second
