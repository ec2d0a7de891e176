"""What a rank holds under Megatron-FSDP, by sharding strategy; padding of its buffers is left out.

Source: megatron-core 0.16.1 and 0.19.2 distributed/fsdp/src/megatron_fsdp/param_and_grad_buffer.py
(run on fake tensors and a fake process group in tests/oracles).
"""

from typing import Final

from msgspec.structs import replace

from advisor.base.dtypes import DType, Precision
from advisor.frameworks.megatron.buffers import Chunks, Terms, quantized_elements
from advisor.frameworks.megatron.fsdp_units import next_to_layers, parts_of_model
from advisor.frameworks.part_types import FixedMemory, StaticLabels
from advisor.job.job import Job
from advisor.job.layout import SHARDED_GRADIENTS, DataParallelSharding
from advisor.layers.shape import RankShape
from advisor.memory.static import (
    GRADIENT_COPIES,
    NamedBytes,
    StaticMemory,
    num_elements,
    stage_elements,
    stage_expert_elements,
)

_FILE: Final = "megatron-core param_and_grad_buffer.py"
_WORDS: Final = StaticLabels(
    weights=("16-bit weights, whole, or a shard and both ends of the model", _FILE),
    gradients=("main gradients, whole or a shard", _FILE),
    optimizer=("master weights and Adam moments", "fp32, moments in their types; sharded"),
)
_NARROW, _WIDE = DType.BF16.itemsize, DType.FP32.itemsize


def fsdp_memory(job: Job, shape: RankShape, chunks: Chunks, buffers: Terms) -> FixedMemory:
    """Memory of one rank except its activations; `buffers`: Megatron's others."""
    layout, config, sharding = job.layout, job.config, job.layout.data_parallel_sharding
    full, cut = sharding is DataParallelSharding.FULL, sharding in SHARDED_GRADIENTS
    grads = config.main_grads_dtype.itemsize
    states = _WIDE + config.exp_avg_dtype.itemsize + config.exp_avg_sq_dtype.itemsize
    experts = stage_expert_elements(shape, chunks) * (layout.expert_model_parallel_size > 1)
    elements, eight, columns = stage_elements(shape, chunks), 0, 0
    if full and config.fp8_param_gather:
        eight = quantized_elements(shape, chunks)
        buffers = tuple(term for term in buffers if term.name != f"{shape.precision} weights")
        # by columns as well: in MXFP8 in a buffer of their own, else made of the gathered rows
        columns = 0 if config.precision is Precision.MXFP8 else eight
    static, copies = StaticMemory(weights=0, gradients=0, optimizer=0), 0
    ranks, shards = layout.expert_data_parallel_size, layout.expert_optimizer_shards
    of_experts = experts, min(columns, experts), ranks, shards
    dense = elements - experts, columns - of_experts[1]
    for number, narrow, ranks, shards in (
        (*dense, layout.sharding_ranks, layout.optimizer_shards),
        of_experts,
    ):
        own, weights = -(-number // shards), number * _NARROW - narrow
        static += StaticMemory(
            weights=-(-weights // ranks) if full else weights,
            gradients=(-(-number // ranks) if cut else number) * grads,
            optimizer=own * states,
        )
        copies += own * _WIDE
    if grads < _WIDE and not config.use_precision_aware_optimizer:  # from step to step
        buffers = (*buffers, NamedBytes(GRADIENT_COPIES, copies, f"{_FILE} update_main_grads"))
    if not cut:
        return FixedMemory(static=static, words=_WORDS, buffers=buffers)
    parts = parts_of_model(shape, chunks)
    ends = num_elements(parts[0]) + num_elements(parts[-1])
    itemsize, number = _NARROW - eight / max(1, elements - ends), len(parts) - 2
    if full:
        static = replace(static, weights=static.weights + ends * _NARROW)
    if full and layout.double_buffers:
        pool = 2 * int(max(map(num_elements, parts[1:-1])) * (itemsize + grads))
        buffers = (*buffers, NamedBytes("double buffers of a layer", pool, _FILE))
    working_set = next_to_layers(job, parts, itemsize, columns // number)
    return FixedMemory(static=static, words=_WORDS, buffers=buffers, working_set=working_set)
