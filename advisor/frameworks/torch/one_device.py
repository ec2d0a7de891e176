"""Weights, gradients and optimizer states of eager torch on one device, where nothing is sharded.

A gradient is its weight's own as soon as it is made, or is added to that of earlier microbatches.
Source: torch 2.13 csrc/autograd/functions/accumulate_grad.h (run in tests/oracles).
"""

from advisor.base.dtypes import DType
from advisor.frameworks.part_types import FixedMemory, StaticLabels
from advisor.frameworks.torch.adam import adam_memory, adam_words
from advisor.job.job import Job
from advisor.job.pipeline_split import ModelChunk
from advisor.layers.shape import RankShape
from advisor.layers.weights import embedding_weights, output_weights
from advisor.memory.resident import NamedBytes
from advisor.memory.static import StaticMemory, layer_elements, num_elements, stage_elements
from advisor.memory.working_set import ShardingOverhead, WorkingSet


def lone_memory(
    job: Job,
    shape: RankShape,
    chunks: tuple[ModelChunk, ...],
    dtype: DType,
    buffers: tuple[NamedBytes, ...],
) -> FixedMemory:
    """Memory beside the activations of weights in `dtype`, whose gradients have their type."""
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
