"""Weights, gradients, optimizer states and buffers under DeepSpeed's ZeRO with bf16.

Source: DeepSpeed 0.19.8 runtime/zero/stage_1_and_2.py, stage3.py and config.py (defaults). Read,
not run: no oracle of DeepSpeed's memory runs without a GPU.
"""

from typing import Final

from advisor.dtypes import DType
from advisor.frameworks.base import FixedMemory, StaticWords
from advisor.frameworks.torch.memory import torch_buffers
from advisor.job import Job
from advisor.layers.shape import RankShape
from advisor.layout import DataParallelSharding
from advisor.memory.resident import NamedBytes
from advisor.memory.static import StaticMemory, layer_elements, stage_elements
from advisor.memory.working_set import Beside, WorkingSet
from advisor.pipeline import ModelChunk

REDUCE_BUCKET_ELEMENTS: Final = 500_000_000
PREFETCH_BUCKET_ELEMENTS: Final = 50_000_000
_FP32_STATES: Final = 3  # main parameter and two Adam moments
_WORDS: Final = StaticWords(
    weights=("bf16 weights, whole or a shard (stage 3)", "DeepSpeed runtime/zero"),
    gradients=("bf16 gradients, whole or a shard (from stage 2)", "DeepSpeed runtime/zero"),
    optimizer=("fp32 master weights and moments", "12 bytes a parameter, from stage 1 over ranks"),
)  # fmt: skip


def zero_memory(job: Job, shape: RankShape, chunks: tuple[ModelChunk, ...]) -> FixedMemory:
    """Memory of one rank beside its activations, by ZeRO stage."""
    sharding = job.layout.data_parallel_sharding
    elements = stage_elements(shape, chunks)
    return FixedMemory(
        static=_static(elements, sharding, job.layout.data_parallel_size),
        words=_WORDS,
        buffers=(*torch_buffers(job, shape), *_buckets(elements, sharding)),
        working_set=_working_set(shape, elements, sharding, job.layout.data_parallel_size),
    )


def _shard(num_bytes: int, ranks: int, *, cut: bool) -> int:
    return -(-num_bytes // ranks) if cut else num_bytes


def _static(elements: int, sharding: DataParallelSharding | None, ranks: int) -> StaticMemory:
    narrow, wide = DType.BF16.itemsize, DType.FP32.itemsize
    full = sharding is DataParallelSharding.FULL
    gradients = full or sharding is DataParallelSharding.GRADIENTS
    optimizer = gradients or sharding is DataParallelSharding.OPTIMIZER
    return StaticMemory(
        weights=_shard(elements * narrow, ranks, cut=full),
        gradients=_shard(elements * narrow, ranks, cut=gradients),
        optimizer=_shard(elements * _FP32_STATES * wide, ranks, cut=optimizer),
    )


def _buckets(elements: int, sharding: DataParallelSharding | None) -> tuple[NamedBytes, ...]:
    """The contiguous gradient bucket: one, or two where communication overlaps (stage 3)."""
    if sharding is DataParallelSharding.NONE:
        return ()
    number = 2 if sharding is DataParallelSharding.FULL else 1
    bucket = min(elements, REDUCE_BUCKET_ELEMENTS) * DType.BF16.itemsize
    return (NamedBytes("reduce buckets", number * bucket, "DeepSpeed reduce_bucket_size"),)


def _working_set(
    shape: RankShape, elements: int, sharding: DataParallelSharding | None, ranks: int
) -> WorkingSet:
    """Stage 3 gathers a layer and what it prefetches. The step brings the shard's gradients to
    fp32, all at once (stage 3: sub_group_size parameters at a time, 1e9 by default)."""
    narrow = DType.BF16.itemsize
    cut = sharding is not DataParallelSharding.NONE
    step = _shard(elements * DType.FP32.itemsize, ranks, cut=cut)
    if sharding is not DataParallelSharding.FULL:
        return WorkingSet(step=step)
    layer = (layer_elements(shape) + PREFETCH_BUCKET_ELEMENTS) * narrow
    ends = shape.model.padded_vocab_size(1) * shape.model.hidden_size * narrow
    beside, end = Beside(forward=layer, backward=layer), Beside(forward=ends, backward=ends)
    return WorkingSet(
        embedding=end, first_layer=beside, layer=beside, last_layer=beside, head=end, step=step
    )
