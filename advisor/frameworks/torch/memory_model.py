"""What settings of the PyTorch stacks keep, and what a rank of eager torch holds besides:
weights, gradients, optimizer states and buffers.

On one device nothing is sharded: a gradient is its weight's own as soon as it is made, or is added
to that of earlier microbatches. Source: torch 2.13 csrc/autograd/functions/accumulate_grad.h (run
in tests/oracles).
"""

from typing import Final

from msgspec.structs import replace

from advisor.base.dtypes import DType
from advisor.frameworks.framework_parts import MemoryModel
from advisor.frameworks.part_types import FixedMemory, StaticLabels
from advisor.frameworks.torch import parameter_groups
from advisor.frameworks.torch.adam import adam_memory, adam_words
from advisor.frameworks.torch.plan import Semantics, chunk_plan
from advisor.frameworks.torch.setting import as_torch
from advisor.job.job import Job, JobConfig
from advisor.job.layout import DataParallelSharding
from advisor.job.pipeline_split import ModelChunk
from advisor.layers.shape import RankShape
from advisor.layers.weights import embedding_weights, output_weights
from advisor.memory.resident import NamedBytes, cublas_workspaces
from advisor.memory.static import (
    StaticMemory,
    layer_elements,
    num_elements,
    stage_elements,
    stage_expert_elements,
)
from advisor.memory.working_set import ShardingOverhead, WorkingSet
from advisor.models.layer_kind import LayerKind
from advisor.models.options import PositionEmbedding, TransformerImpl
from advisor.plan.recompute_plan import RecomputePlan, Setting


def lone_memory(
    job: Job,
    shape: RankShape,
    chunks: tuple[ModelChunk, ...],
    dtype: DType,
    buffers: tuple[NamedBytes, ...],
) -> FixedMemory:
    """Memory except the activations, of weights in `dtype`, whose gradients have their type."""
    accumulates, steps = job.num_microbatches > 1, job.config.optimizer_in_backward
    adam = adam_memory(shape, chunks, job.config, dtype)
    whole = stage_elements(shape, chunks) * dtype.itemsize
    static = StaticMemory(
        weights=whole, gradients=whole if accumulates else 0, optimizer=adam.states
    )
    appearing = not (accumulates or steps)
    step = 0 if steps else adam.step + (whole if appearing else 0)
    return FixedMemory(
        static=static,
        words=StaticLabels(
            weights=(f"weights in {dtype}", "torch nn.Module"),
            gradients=(f"gradients of earlier microbatches in {dtype}", "torch autograd"),
            optimizer=adam_words(job.config),
        ),
        buffers=buffers,
        working_set=_working_set(shape, dtype, step, appearing=appearing),
    )


def _working_set(shape: RankShape, dtype: DType, step: int, *, appearing: bool) -> WorkingSet:
    """Gradients that stay when a block has gone back. Those of tied ends are summed when both are
    there, into a third tensor."""
    kinds = shape.model.layer_kinds
    layers = sum(layer_elements(shape, kind) for kind in kinds) // len(kinds)
    embedding = num_elements(embedding_weights(shape))
    tied = shape.model.share_embeddings_and_output_weights
    head = num_elements(output_weights(shape, holds_embedding=tied))
    left = dtype.itemsize if appearing else 0
    layer = ShardingOverhead(left=layers * left)
    sums = 2 * embedding * shape.dtype.itemsize if tied else 0
    return WorkingSet(
        embedding=ShardingOverhead(exit=sums, left=embedding * left),
        first_layer=layer,
        layer=layer,
        last_layer=layer,
        head=ShardingOverhead(left=head * left),
        step=step,
        weight_grads_dtype=dtype,
        adds_weight_grads=not appearing,
    )


_COMPLEX64_BYTES: Final = 8
_CACHES: Final = "communication streams' caches"
_CACHES_SOURCE: Final = "torch _fsdp_param_group.py FSDPCommContext, CUDACachingAllocator"


class TorchMemory(MemoryModel):
    """Memory of a stack; subclasses say what differs."""

    def plan(
        self, setting: Setting, shape: RankShape, layers: tuple[LayerKind, ...], job: Job
    ) -> RecomputePlan:
        """See plan.chunk_plan."""
        how = replace(self.semantics(job), compiled=self.compiles_blocks(job))
        return chunk_plan(as_torch(setting), shape, layers, how)

    def semantics(self, job: Job) -> Semantics:
        """How checkpoints run in the job's version."""
        return Semantics()

    def compiles_blocks(self, job: Job) -> bool:
        """Whether a block is one graph of torch.compile."""
        return job.config.torch_compile

    def fixed_memory(
        self, job: Job, shape: RankShape, chunks: tuple[ModelChunk, ...]
    ) -> FixedMemory:
        """FSDP2 with embedding and head in the root's group; one device in 16 bits."""
        return eager_memory(job, shape, chunks, root_holds_ends=True)


def eager_memory(
    job: Job,
    shape: RankShape,
    chunks: tuple[ModelChunk, ...],
    *,
    root_holds_ends: bool,
    syncs_every_microbatch: bool = True,
    upcasts: bool = False,
) -> FixedMemory:
    """Memory except the activations, under FSDP2 or on one device, where weights are in 16 bits
    unless the job says otherwise; FSDP2's shards are fp32 in any case where a framework
    `upcasts` them. Between microbatches gradients are shards, or whole where
    they are reduced with the last microbatch alone."""
    layout, config = job.layout, job.config
    buffers = torch_buffers(job, shape)
    if job.num_gpus == 1:
        return lone_memory(job, shape, chunks, config.weights_dtype or DType.BF16, buffers)
    dtype = DType.FP32 if upcasts else config.weights_dtype or DType.FP32
    apart = shape.expert_model_parallel_size > 1
    sharding = parameter_groups.Sharding(
        ranks=layout.sharding_ranks,
        expert_ranks=layout.expert_data_parallel_size if apart else 0,
        reshards=layout.data_parallel_sharding is DataParallelSharding.FULL,
        root_holds_ends=root_holds_ends,
        reduce_dtype=job.config.main_grads_dtype,
        accumulates=job.num_microbatches > 1,
        accumulates_whole=job.num_microbatches > 1 and not syncs_every_microbatch,
        weights_dtype=dtype,
        steps_in_backward=config.optimizer_in_backward,
        flat=config.flat_parameters,
        in_8_bits=config.fp8_param_gather,
    )
    elements, experts = stage_elements(shape, chunks), stage_expert_elements(shape, chunks)
    own = sharding.elements(elements, experts)
    adam = adam_memory(shape, chunks, config, dtype, ranks=sharding.ranks, elements=own)
    working_set = parameter_groups.fsdp_working_set(shape, sharding)
    step = 0 if config.optimizer_in_backward else working_set.step + adam.step
    return FixedMemory(
        static=parameter_groups.fsdp_static(elements, sharding, experts, adam.states),
        words=_words(config, dtype),
        buffers=buffers,
        pools=(
            NamedBytes(_CACHES, parameter_groups.stream_pools(shape, sharding), _CACHES_SOURCE),
        ),
        working_set=replace(working_set, step=step),
    )


def _words(config: JobConfig, dtype: DType) -> StaticLabels:
    source = "torch distributed/fsdp"
    weights = f"{dtype} shards of the parameters, and 16-bit parameters that stay gathered"
    return StaticLabels(
        weights=(weights, source),
        gradients=("gradients of earlier microbatches", source),
        optimizer=adam_words(config),
    )


def torch_buffers(job: Job, shape: RankShape) -> tuple[NamedBytes, ...]:
    """cuBLAS workspaces, and torchtitan's rotary frequencies [seq_length, rotary_dim / 2]."""
    terms = [cublas_workspaces(job.gpu)]
    model = shape.model
    rope = model.position_embedding_type is PositionEmbedding.ROPE
    if rope and model.transformer_impl is TransformerImpl.TORCH:
        size = shape.seq_length * model.rotary_dim // 2 * _COMPLEX64_BYTES
        terms.append(NamedBytes("rotary frequencies", size, "torchtitan precompute_freqs_cis"))
    return tuple(terms)
