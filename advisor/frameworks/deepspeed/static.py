"""Weights, gradients, optimizer states and buffers under DeepSpeed's ZeRO with bf16.

Source: DeepSpeed 0.19.8 runtime/zero/stage_1_and_2.py, stage3.py, config.py and
offload_config.py (defaults). Read; only its coordinator of parameters was run, in tests/oracles.
"""

from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from advisor.base.dtypes import DType
from advisor.frameworks.part_types import FixedMemory, StaticLabels
from advisor.frameworks.torch.memory_model import torch_buffers
from advisor.job.job import Job
from advisor.job.layout import DataParallelSharding
from advisor.job.pipeline_split import ModelChunk
from advisor.layers.heads.chunked import CHUNKED
from advisor.layers.shape import RankShape, output_weights
from advisor.layers.transformer import transformer_layer
from advisor.memory.static import (
    NamedBytes,
    StaticMemory,
    layer_elements,
    scale_bytes,
    stage_weights,
    tuned_bytes,
)
from advisor.memory.working_set import ShardingOverhead, WorkingSet

SUB_GROUP_ELEMENTS: Final = 1_000_000_000
REDUCE_BUCKET_ELEMENTS: Final = 500_000_000
MAX_LIVE_ELEMENTS: Final = 1_000_000_000
_BUCKETS_AHEAD: Final = 2
_FP32_STATES: Final = 3  # main parameter and two Adam moments
_WORDS: Final = StaticLabels(
    weights=(
        "bf16 weights, whole or (stage 3) a shard and those gathered ahead",
        "DeepSpeed runtime/zero, max_live_parameters",
    ),
    gradients=("bf16 gradients, whole or a shard (from stage 2)", "DeepSpeed runtime/zero"),
    optimizer=(
        "fp32 master weights and moments",
        "12 bytes per parameter, divided over ranks from stage 1",
    ),
)


def zero_memory(job: Job, shape: RankShape, chunks: tuple[ModelChunk, ...]) -> FixedMemory:
    """Memory of one rank besides its activations, by ZeRO stage."""
    sharding = job.layout.data_parallel_sharding
    held, ranks = Held.of(shape, chunks), job.layout.sharding_ranks
    trained = held.trained
    buffers = (*torch_buffers(job, shape), *_buckets(trained, sharding))
    static = _static(held, sharding, ranks)
    working_set = _working_set(shape, held, sharding, ranks)
    gathered = working_set.embedding.stays
    if job.config.optimizer_cpu_offload:
        static = _without_optimizer(static, elements_that_stay(trained, job), sharding)
        buffers += _accumulation_buffer(shape, sharding)
        working_set = replace(working_set, step=-gathered)
    if job.config.param_cpu_offload:
        static = replace(static, weights=0)
    static = replace(static, weights=static.weights + gathered)
    return FixedMemory(
        static=static,
        words=_WORDS,
        buffers=buffers,
        pools=_stream_pools(shape, held, sharding),
        working_set=working_set,
        host_bytes=host_bytes(job, trained),
    )


class Held(Struct, frozen=True, kw_only=True):
    """What a model's parameters are on one rank before ZeRO cuts them, all in 16 bits but frozen
    ones that are stored in 8 or 4, of which two or four are an element here (their
    bnb_4bit_quant_storage), as they are gathered. trained: elements that the optimizer has.
    scales: bytes of what quantized weights have next to them, which nothing cuts."""

    elements: int
    trained: int
    scales: int

    @staticmethod
    def of(shape: RankShape, chunks: tuple[ModelChunk, ...]) -> "Held":
        """Of the whole model."""
        weights = list(stage_weights(shape, chunks))
        scales = sum(n * scale_bytes(weight, shape.tuning) for weight, n in weights)
        whole = sum(tuned_bytes(weights, DType.BF16, shape.tuning)) - scales
        trained = sum(weight.num_elements * n for weight, n in weights if not weight.frozen)
        return Held(elements=whole // DType.BF16.itemsize, trained=trained, scales=scales)


def elements_that_stay(elements: int, job: Job) -> int:
    """Elements of this rank's shard whose optimizer states stay on the device.

    Stage 3 offloads whole groups of sub_group_size: with a ratio r the first int((1 - r) x groups)
    stay, none of a single one (stage3.py _create_fp32_partitions).
    """
    shard = _shard(elements, job.layout.sharding_ranks, cut=True)
    groups = -(-shard // SUB_GROUP_ELEMENTS)
    return min(shard, int((1 - job.config.offloaded_fraction) * groups) * SUB_GROUP_ELEMENTS)


def host_bytes(job: Job, elements: int) -> int:
    """Pinned host memory of one rank, of a model of `elements`: states and fp32 gradients of
    its shard, and its 16-bit parameters (stage 1, 2: a copy on the way back) or gradients."""
    shard, total = _shard(elements, job.layout.sharding_ranks, cut=True), 0
    if job.config.optimizer_cpu_offload:
        total += (shard - elements_that_stay(elements, job)) * (_FP32_STATES + 1) * 4
        total += shard * DType.BF16.itemsize
    if job.config.param_cpu_offload:
        total += shard * DType.BF16.itemsize
    return total


def _without_optimizer(
    static: StaticMemory, stays: int, sharding: DataParallelSharding | None
) -> StaticMemory:
    """What ZeRO-Offload leaves: states and fp32 gradients of the elements that stay, and in stage 1
    the whole 16-bit gradients; from stage 2 on the shard's gradients go to the host as well."""
    wide = DType.FP32.itemsize
    whole = sharding is DataParallelSharding.OPTIMIZER
    return StaticMemory(
        weights=static.weights,
        frozen=static.frozen,
        gradients=(static.gradients if whole else 0) + stays * wide,
        optimizer=stays * _FP32_STATES * wide,
    )


def _accumulation_buffer(
    shape: RankShape, sharding: DataParallelSharding | None
) -> tuple[NamedBytes, ...]:
    """Stage 1 and 2 accumulate on the device: a buffer for the largest parameter in 16 bit."""
    if sharding is DataParallelSharding.FULL:
        return ()
    ends = shape.model.padded_vocab_size(1) * shape.model.hidden_size
    kinds = {*shape.model.layer_kinds}
    weights = (w for kind in kinds for o in transformer_layer(shape, kind) for w in o.weights)
    sizes = [weight.num_elements for weight in weights if not weight.frozen]
    largest = max(sizes if shape.tuning.trains_parts else [ends, *sizes])
    return (
        NamedBytes(
            "gradient in transfer",
            largest * DType.BF16.itemsize,
            "DeepSpeed temp_grad_buffer_for_gpu_offload",
        ),
    )


def _shard(num_bytes: int, ranks: int, *, cut: bool) -> int:
    return -(-num_bytes // ranks) if cut else num_bytes


def _static(held: Held, sharding: DataParallelSharding | None, ranks: int) -> StaticMemory:
    elements, trained = held.elements, held.trained
    narrow, wide = DType.BF16.itemsize, DType.FP32.itemsize
    full = sharding is DataParallelSharding.FULL
    gradients = full or sharding is DataParallelSharding.GRADIENTS
    optimizer = gradients or sharding is DataParallelSharding.OPTIMIZER
    return StaticMemory(
        weights=_shard(elements * narrow, ranks, cut=full) + held.scales,
        gradients=_shard(trained * narrow, ranks, cut=gradients),
        optimizer=_shard(trained * _FP32_STATES * wide, ranks, cut=optimizer),
        frozen=_shard((elements - trained) * narrow, ranks, cut=full) + held.scales,
    )


def _buckets(elements: int, sharding: DataParallelSharding | None) -> tuple[NamedBytes, ...]:
    """The contiguous gradient bucket; two where communication overlaps, which is not the default of
    stages 1 and 2, and stage 3 has one in any case (IPGBucketZ3)."""
    if sharding is DataParallelSharding.NONE:
        return ()
    return (NamedBytes("reduce bucket", _bucket(elements), "DeepSpeed reduce_bucket_size"),)


def _bucket(elements: int) -> int:
    return min(elements, REDUCE_BUCKET_ELEMENTS) * DType.BF16.itemsize


def _stream_pools(
    shape: RankShape, held: Held, sharding: DataParallelSharding | None
) -> tuple[NamedBytes, ...]:
    """What the allocator keeps for the streams of stage 3 besides the peak.

    Parameters are gathered on a stream of their own, the embedding on top of all that are live:
    once it has gone back, its bytes are of no use to kernels. A bucket is put in the order of the
    ranks before it is sent (reduce_scatter_coalesced). Gradients that have gone into a bucket are
    free only when the stream that sends it comes to that (record_stream), and the processor is up
    to so many buckets ahead of it (max_param_reduce_events).
    """
    if sharding is not DataParallelSharding.FULL:
        return ()
    elements, bucket = held.elements, _bucket(held.trained)
    left = max(0, elements - _live(shape, elements))
    end = min(_end(shape), left) * DType.BF16.itemsize
    return (
        NamedBytes("all-gather stream's cache", end, "DeepSpeed partitioned_param_coordinator.py"),
        NamedBytes(
            "reduce bucket copied in rank order", bucket, "DeepSpeed coalesced_collectives.py"
        ),
        NamedBytes(
            "gradients sent but not yet freed", _BUCKETS_AHEAD * bucket, "DeepSpeed stage3.py"
        ),
    )


def _live(shape: RankShape, elements: int) -> int:
    """Elements that are gathered at once, in either pass: at the call of every module the next ones
    are prefetched, at least one parameter, so that max_live_parameters are soon reached. What a
    module asks for is gathered in any case: a whole layer, which its replay leaves until it goes
    back, and next to it the output layer where the loss holds it."""
    layer = max(layer_elements(shape, kind) for kind in {*shape.model.layer_kinds})
    fused = shape.use_liger_kernel or shape.head.implementation in CHUNKED
    asked = max(layer, _end(shape)) + _end(shape) * fused
    return min(elements, max(MAX_LIVE_ELEMENTS, asked))


def _end(shape: RankShape) -> int:
    """Elements of the embedding, or of the output layer."""
    return shape.model.padded_vocab_size(1) * shape.model.hidden_size


def _working_set(
    shape: RankShape, held: Held, sharding: DataParallelSharding | None, ranks: int
) -> WorkingSet:
    """Stage 3 gathers ahead (see _live). Liger's loss reads the output layer's weight without a
    call of the layer: it is the model's (register_external_parameter), gathered from its first
    operator to its last. A weight's gradient goes into the bucket as soon as it is made; one that
    is larger waits for the next (__add_grad_to_ipg_bucket). The step brings the shard's gradients
    to fp32, all at once (stage 3: sub_group_size parameters at a time, 1e9 by default)."""
    narrow = DType.BF16.itemsize
    cut = sharding is not DataParallelSharding.NONE
    step = _shard(held.trained * DType.FP32.itemsize, ranks, cut=cut)
    if sharding is not DataParallelSharding.FULL:
        return WorkingSet(step=step)
    live, end = _live(shape, held.elements) * narrow, _end(shape)
    trains = any(not one.frozen for one in output_weights(shape, holds_embedding=False))
    waits = end * narrow if trains and end > REDUCE_BUCKET_ELEMENTS else 0
    return WorkingSet(
        embedding=ShardingOverhead(stays=live),
        last_layer=ShardingOverhead(backward=waits),
        step=step - live,
        adds_weight_grads=True,
    )
