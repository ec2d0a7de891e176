"""Weights, gradients, optimizer states and buffers of a rank under FSDP2."""

from typing import Final

from advisor.frameworks.protocols import FixedMemory, StaticLabels
from advisor.frameworks.torch.parameter_groups import (
    Sharding,
    fsdp_static,
    fsdp_working_set,
    stream_pools,
)
from advisor.job.job import Job
from advisor.job.layout import DataParallelSharding
from advisor.job.pipeline_split import ModelChunk
from advisor.layers.shape import RankShape
from advisor.memory.resident import NamedBytes, cublas_workspaces
from advisor.memory.static import stage_elements, stage_expert_elements
from advisor.models.options import PositionEmbedding, TransformerImpl

_COMPLEX64_BYTES: Final = 8
_WORDS: Final = StaticLabels(
    weights=(
        "fp32 shards of the parameters, and 16-bit ones that stay gathered",
        "torch distributed/fsdp",
    ),
    gradients=("gradients of earlier microbatches", "torch distributed/fsdp"),
    optimizer=("Adam moments", "8 bytes a parameter over the ranks (fused Adam: no temporaries)"),
)


def fsdp_memory(
    job: Job,
    shape: RankShape,
    chunks: tuple[ModelChunk, ...],
    *,
    root_holds_ends: bool,
    syncs_every_microbatch: bool = True,
) -> FixedMemory:
    """Memory beside the activations. Between microbatches gradients are shards, or whole where
    they are reduced with the last microbatch alone."""
    layout = job.layout
    apart = shape.expert_model_parallel_size > 1
    sharding = Sharding(
        ranks=layout.data_parallel_size,
        expert_ranks=layout.expert_data_parallel_size if apart else 0,
        reshards=layout.data_parallel_sharding is DataParallelSharding.FULL,
        root_holds_ends=root_holds_ends,
        reduce_dtype=job.config.main_grads_dtype,
        accumulates=job.num_microbatches > 1,
        accumulates_whole=job.num_microbatches > 1 and not syncs_every_microbatch,
    )
    experts = stage_expert_elements(shape, chunks)
    return FixedMemory(
        static=fsdp_static(stage_elements(shape, chunks), sharding, experts),
        words=_WORDS,
        buffers=torch_buffers(job, shape),
        pools=(
            NamedBytes(
                "communication streams' caches",
                stream_pools(shape, sharding),
                "torch _fsdp_param_group.py FSDPCommContext, CUDACachingAllocator",
            ),
        ),
        working_set=fsdp_working_set(shape, sharding),
    )


def torch_buffers(job: Job, shape: RankShape) -> tuple[NamedBytes, ...]:
    """cuBLAS workspaces, and torchtitan's rotary frequencies [seq_length, rotary_dim / 2]."""
    terms = [cublas_workspaces(job.gpu.compute_capability)]
    model = shape.model
    rope = model.position_embedding_type is PositionEmbedding.ROPE
    if rope and model.transformer_impl is TransformerImpl.TORCH:
        size = shape.seq_length * model.rotary_dim // 2 * _COMPLEX64_BYTES
        terms.append(NamedBytes("rotary frequencies", size, "torchtitan precompute_freqs_cis"))
    return tuple(terms)
