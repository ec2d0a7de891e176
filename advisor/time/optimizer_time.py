"""Seconds of the optimizer's step: Adam on the device or on the host, Muon, casts of weights."""

from collections.abc import Sequence

from advisor.base.dtypes import DType
from advisor.job.job import Job, Optimizer
from advisor.job.layout import SHARDED_GRADIENTS
from advisor.job.pipeline_split import ModelChunk
from advisor.layers.parameters import parameter_count
from advisor.layers.shape import RankShape
from advisor.memory.muon_shares import muon_shares
from advisor.time.machine import Machine
from advisor.time.passes import layer_cast_seconds
from advisor.time.step_tail import ParameterGroup

_OPTIMIZER_BYTES_PER_ELEMENT = 4 + 8 + 16 + 12 + 6
"""fp32 shard: norm reads the gradient; clipping reads and writes it; Adam reads gradient, main
parameter and two moments and writes three; a copy brings the parameter to 16 bit."""

_GRADIENT_PASSES = 3  # zeroing the buffer; scaling it before the reduction reads and writes it


def optimizer_seconds(
    elements: int, shards: int, gradient_itemsize: int, machine: Machine, *, on_host: float = 0.0
) -> float:
    """Adam over this rank's shard without the part `on_host`, and passes over its gradient buffer;
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


_HOST_ADAM_BYTES_PER_ELEMENT = 28
"""fp32 on the host: reads gradient, parameter and two moments, writes all but the gradient."""


def host_optimizer_seconds(
    elements: float, copied: int, machine: Machine, *, overlapped: bool
) -> float:
    """Adam on the host for `elements` of this rank: gradients there, the update, parameters back,
    of each both `copied` bytes; the copies run during the update where `overlapped`
    (overlap_cpu_optimizer_d2h_h2d)."""
    copies = elements * copied / machine.host_bytes_per_second
    update = elements * _HOST_ADAM_BYTES_PER_ELEMENT / machine.host_memory_bytes_per_second
    return max(copies, update) if overlapped else copies + update


def stage_optimizer_seconds(
    job: Job,
    shape: RankShape,
    chunks: tuple[ModelChunk, ...],
    parameters: Sequence[ParameterGroup],
    machine: Machine,
) -> float:
    """Of a rank of a stage that holds these `chunks`, of Muon the one that works longest: Adam's
    traffic, and the multiplications of Newton and Schulz in 16 bits (OptimizerConfig
    muon_fp32_matmul_prec "medium"). With the casts of its weights into 8 or 4 bits in a step's
    first microbatch (megatron-core 0.16.1 extensions/transformer_engine.py, is_first_microbatch),
    where they are not kept so."""
    layout, seconds = job.layout, 0.0
    if job.config.optimizer.is_muon:
        dealt = job.config.optimizer is Optimizer.DIST_MUON
        gradients = job.config.main_grads_dtype.itemsize * sum(one.elements for one in parameters)
        for share in set(muon_shares(shape, chunks, layout, dealt=dealt)):
            traffic = share.elements * _OPTIMIZER_BYTES_PER_ELEMENT + gradients * _GRADIENT_PASSES
            multiplied = share.flops / machine.bf16_flops
            seconds = max(seconds, traffic / machine.optimizer_bytes_per_second + multiplied)
    else:
        sharded = layout.data_parallel_sharding in SHARDED_GRADIENTS
        for part in parameters:
            elements, shards = part.elements, part.shards
            if sharded:
                elements, shards = -(-elements // shards), 1  # no gradient but the shard's
            for one in _adam_seconds(job, elements, shards, machine):
                seconds += one
    if machine.quantized is None or job.config.fp8_param_gather or job.has_te_linear:
        return seconds  # te.Linear's weights are cast in every forward
    return seconds + sum(
        layer_cast_seconds(shape, machine, kind) for chunk in chunks for kind in chunk.layers
    )


def least_optimizer_seconds(job: Job, machine: Machine) -> float:
    """Seconds of the step where the states of all parameters are spread evenly over all GPUs: no
    layout spreads them further. 0 for Muon, whose step depends on the matrices' shapes, and where
    parameters are frozen."""
    if job.config.optimizer.is_muon or not job.config.tuning.trains_all:
        return 0.0
    return sum(_adam_seconds(job, parameter_count(job.model).total // job.num_gpus, 1, machine))


def _adam_seconds(job: Job, elements: int, shards: int, machine: Machine) -> tuple[float, float]:
    """On the device and on the host. Megatron's copies are fp32 both ways, as torch converts on the
    GPU (hybrid_optimizer.py, ATen native/cuda/Copy.cu); others bring 16-bit parameters back. Left
    out: Adam on the device runs during the host's, which takes a hundred times as long."""
    config, plain = job.config, job.layout.data_parallel_sharding is None
    itemsize, away = config.main_grads_dtype.itemsize, config.offloaded_fraction
    on_host = host_optimizer_seconds(
        away * elements / shards,
        2 * DType.FP32.itemsize if plain else itemsize + DType.BF16.itemsize,
        machine,
        overlapped=config.overlap_cpu_optimizer_d2h_h2d,
    )
    return optimizer_seconds(elements, shards, itemsize, machine, on_host=away), on_host
