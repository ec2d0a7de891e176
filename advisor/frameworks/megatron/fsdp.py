"""What a rank holds under Megatron-FSDP, by sharding strategy; padding of its buffers is left out.

Source: megatron-core 0.16.1 and 0.19.2 distributed/fsdp/src/megatron_fsdp/param_and_grad_buffer.py
(run on fake tensors and a fake process group in tests/oracles).
"""

from typing import Final

from msgspec.structs import replace

from advisor.base.dtypes import DType, Precision
from advisor.frameworks.megatron.buffers import Chunks, Terms, quantized_elements
from advisor.frameworks.megatron.fsdp_units import (
    bucketed_gradients,
    ends,
    layer_weights,
    unit_parameters,
)
from advisor.frameworks.part_types import FixedMemory, StaticLabels
from advisor.job.job import Job
from advisor.job.layout import SHARDED_GRADIENTS, DataParallelSharding
from advisor.job.pipeline_split import ModelChunk
from advisor.layers.shape import RankShape
from advisor.memory.resident import NamedBytes
from advisor.memory.static import (
    GRADIENT_COPIES,
    StaticMemory,
    num_elements,
    stage_elements,
    stage_expert_elements,
)

_FILE: Final = "megatron-core param_and_grad_buffer.py"
_WORDS: Final = StaticLabels(
    weights=("16-bit weights, whole, or a shard and both ends of the model", _FILE),
    gradients=("main gradients, whole or a shard", _FILE),
    optimizer=("master weights and Adam moments", "each in its type (fp32: 4 bytes), sharded"),
)
_NARROW, _WIDE = DType.BF16.itemsize, DType.FP32.itemsize


def fsdp_memory(job: Job, shape: RankShape, chunks: Chunks, buffers: Terms) -> FixedMemory:
    """Memory of one rank except its activations; `buffers`: Megatron's others."""
    layout, config, sharding = job.layout, job.config, job.layout.data_parallel_sharding
    full, cut = sharding is DataParallelSharding.FULL, sharding in SHARDED_GRADIENTS
    grads = config.main_grads_dtype.itemsize
    gathers_8_bits = full and config.fp8_param_gather
    experts = stage_expert_elements(shape, chunks) * (layout.expert_model_parallel_size > 1)
    eight = quantized_elements(shape, chunks) * gathers_8_bits
    of_experts = experts * gathers_8_bits
    by_rows_alone = config.precision is not Precision.MXFP8
    static, copies = StaticMemory(weights=0, gradients=0, optimizer=0), 0
    for elements, narrow, ranks, shards in (
        (
            stage_elements(shape, chunks) - experts,
            eight - of_experts,
            layout.sharding_ranks,
            layout.optimizer_shards,
        ),
        (
            experts,
            of_experts,
            layout.expert_data_parallel_size,
            layout.expert_optimizer_shards,
        ),
    ):
        weights, own = elements * _NARROW - narrow * by_rows_alone, -(-elements // shards)
        copies += own * _WIDE
        static += StaticMemory(
            weights=-(-weights // ranks) if full else weights,
            gradients=(-(-elements // ranks) if cut else elements) * grads,
            optimizer=own * config.optimizer_bytes,
        )
    if config.main_grads_dtype is not DType.FP32:  # from step to step (update_main_grads)
        buffers = (*buffers, NamedBytes(GRADIENT_COPIES, copies, _FILE))
    if not full:
        working_set = bucketed_gradients(job, shape, chunks) if cut else None
        return FixedMemory(static=static, words=_WORDS, buffers=buffers, working_set=working_set)
    kinds = dict.fromkeys(kind for chunk in chunks for kind in chunk.layers)
    largest = max(kinds, key=lambda kind: num_elements(layer_weights(shape, kind)))
    unit = num_elements(layer_weights(shape, largest))
    eight = quantized_elements(shape, (ModelChunk((largest,)),)) * gathers_8_bits
    gathered = unit * _NARROW - eight
    if gathers_8_bits:
        buffers = tuple(term for term in buffers if term.name != f"{shape.precision} weights")
    if layout.fsdp_double_buffer:
        pool = 2 * (gathered + unit * grads)
        buffers = (*buffers, NamedBytes("double buffers of a layer", pool, _FILE))
    return FixedMemory(
        static=replace(static, weights=static.weights + sum(ends(shape)) * _NARROW),
        words=_WORDS,
        buffers=buffers,
        working_set=unit_parameters(job, shape, chunks, gathered, eight * by_rows_alone),
    )
