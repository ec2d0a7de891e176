"""What settings of the PyTorch stacks keep, and what a rank of eager torch holds besides:
weights, gradients, optimizer states and buffers.

On one device nothing is sharded: a gradient is its weight's own as soon as it is made, or is added
to that of earlier microbatches. Source: torch 2.13 csrc/autograd/functions/accumulate_grad.h (run
in tests/oracles).

States of Adam, and what its step takes in addition, in torch, bitsandbytes and torchao: torch 2.13
optim/adam.py (run in tests/oracles); bitsandbytes 0.50.2 optim/optimizer.py and torchao 0.18.0
optim/adam.py, whose kernels need a GPU: read.
"""

from collections import Counter
from collections.abc import Iterable
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from advisor.base.dtypes import DType
from advisor.frameworks.framework_parts import MemoryModel
from advisor.frameworks.part_types import FixedMemory, StaticLabels
from advisor.frameworks.torch import parameter_groups
from advisor.frameworks.torch.plan import Semantics, chunk_plan
from advisor.frameworks.torch.setting import as_torch
from advisor.job.job import Job, JobConfig, Optimizer, OptimizerImplementation
from advisor.job.layout import DataParallelSharding
from advisor.job.pipeline_split import ModelChunk
from advisor.job.tuning import StoredAs
from advisor.layers.operators import Weight
from advisor.layers.shape import RankShape, embedding_weights, output_weights
from advisor.memory.static import (
    TOWER_ENDS,
    NamedBytes,
    StaticMemory,
    cublas_workspaces,
    scale_bytes,
    stage_weights,
    tower_weights,
    tuned_bytes,
)
from advisor.memory.working_set import ShardingOverhead, WorkingSet
from advisor.models.layer_kind import LayerKind
from advisor.models.options import PositionEmbedding, TransformerImpl
from advisor.plan.recompute_plan import RecomputePlan, Setting

_MOMENTS: Final = 2
_SMALLEST_QUANTIZED: Final = 4096
"""Elements of a tensor from which moments are quantized."""
_SMALLEST_PAGED: Final = 100_000
"""Elements of a tensor from which moments of a paged optimizer are in unified memory."""
_BLOCKS: Final = {
    Optimizer.BITSANDBYTES_8BIT: 256,
    Optimizer.PAGED_8BIT: 256,
    Optimizer.TORCHAO_8BIT: 256,
    Optimizer.TORCHAO_4BIT: 128,
}
"""Elements that share one fp32 scale."""
_PAGED: Final = (
    "Adam moments of small tensors; all others are in unified memory, which torch does not count "
    "and the driver moves to the host as it needs room"
)
_BITSANDBYTES: Final = "bitsandbytes optim/optimizer.py"
_WORDS: Final = {
    **dict.fromkeys((Optimizer.PAGED_32BIT, Optimizer.PAGED_8BIT), _PAGED),
    Optimizer.BITSANDBYTES_8BIT: "Adam moments in 8 bits, the embedding's in fp32",
    Optimizer.TORCHAO_8BIT: "Adam moments in 8 bits",
    Optimizer.TORCHAO_4BIT: "Adam moments in 4 bits",
}
_SOURCES: Final = {
    Optimizer.BITSANDBYTES_8BIT: _BITSANDBYTES,
    Optimizer.PAGED_32BIT: _BITSANDBYTES,
    Optimizer.PAGED_8BIT: _BITSANDBYTES,
    Optimizer.TORCHAO_8BIT: "torchao optim/adam.py",
    Optimizer.TORCHAO_4BIT: "torchao optim/adam.py",
}


class AdamMemory(Struct, frozen=True, kw_only=True):
    """Bytes of one rank: moments between steps, and what a step takes in addition."""

    states: int
    step: int


def adam_memory(
    shape: RankShape,
    chunks: tuple[ModelChunk, ...],
    config: JobConfig,
    dtype: DType,
    *,
    ranks: int = 1,
    elements: int | None = None,
) -> AdamMemory:
    """Of weights in `dtype`, cut over `ranks`; `elements` are this rank's, where that is another
    share than one of `ranks`.

    Moments have the weights' type. foreach takes the root of the second moments of all tensors at
    once; the loop of one tensor, divided, and what a variable holds of the one before; a fused
    kernel nothing. Quantized moments have an fp32 scale a block, and are computed by one kernel a
    tensor."""
    every = stage_weights(shape, chunks)
    weights = [(weight, n * weight.copies) for weight, n in every if not weight.frozen]
    found = Counter[DType]() if elements is None else Counter({dtype: elements * ranks})
    if elements is None:
        for weight, n in weights:
            found[weight.dtype or dtype] += weight.num_elements // weight.copies * n
    whole = sum(-(-number // ranks) * one.itemsize for one, number in found.items())
    if config.optimizer.is_quantized:
        states = sum(
            n * _quantized(weight, ranks, config.optimizer, weight.dtype or dtype)
            for weight, n in weights
        )
        return AdamMemory(states=states, step=0)
    widest = max((one.itemsize for one in found), default=0)
    step = {
        OptimizerImplementation.FUSED: 0,
        OptimizerImplementation.FOREACH: whole,
        OptimizerImplementation.FOR_LOOP: -(-_looped(weights) // ranks) * widest,
    }
    return AdamMemory(states=_MOMENTS * whole, step=step[config.optimizer_implementation])


def _looped(weights: list[tuple[Weight, int]]) -> int:
    """The most elements alive in the loop over tensors: two of one, one of that before it."""
    sizes = [weight.num_elements // weight.copies for weight, _ in weights]
    pairs = zip([0, *sizes], sizes, strict=False)
    return max((2 * size + before for before, size in pairs), default=0)


def adam_words(config: JobConfig) -> tuple[str, str]:
    """The moments in words, and the source."""
    if config.optimizer.is_quantized:
        return _WORDS[config.optimizer], _SOURCES[config.optimizer]
    return "Adam moments", f"torch optim/adam.py, {config.optimizer_implementation}"


def _quantized(weight: Weight, ranks: int, optimizer: Optimizer, dtype: DType) -> int:
    """Bytes of both moments of one tensor on one rank: codes and scales, or what is not quantized:
    small tensors, in torchao those of broken blocks too; embeddings in bitsandbytes, as Trainer
    tells it (trainer.py create_optimizer). Of a paged one, those of small tensors alone: the others
    are in unified memory (get_state_buffer)."""
    elements, block = -(-weight.num_elements // weight.copies // ranks), _BLOCKS.get(optimizer, 1)
    theirs = optimizer is Optimizer.BITSANDBYTES_8BIT or optimizer.is_paged
    if optimizer.is_paged and elements >= _SMALLEST_PAGED:
        return 0
    if elements < _SMALLEST_QUANTIZED or (
        elements % block
        if not theirs
        else "embeddings" in weight.name or optimizer is Optimizer.PAGED_32BIT
    ):
        return _MOMENTS * elements * (DType.FP32 if theirs else dtype).itemsize
    codes = -(-elements // 2) if optimizer is Optimizer.TORCHAO_4BIT else elements
    return _MOMENTS * (codes + -(-elements // block) * DType.FP32.itemsize)


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
    whole, frozen = tuned_bytes(stage_weights(shape, chunks), dtype, shape.tuning)
    static = StaticMemory(
        weights=whole + frozen,
        gradients=whole if accumulates else 0,
        optimizer=adam.states,
        frozen=frozen,
    )
    appearing = not (accumulates or steps)
    own = dtype if shape.tuning.trains_all else "their own types"
    step = 0 if steps else adam.step + (whole if appearing else 0)
    return FixedMemory(
        static=static,
        words=StaticLabels(
            weights=(f"weights in {own}", "torch nn.Module"),
            gradients=(f"gradients of earlier microbatches in {own}", "torch autograd"),
            optimizer=adam_words(job.config),
        ),
        buffers=buffers,
        working_set=_working_set(shape, dtype, step, appearing=appearing),
        thirds_with_model=0,
    )


def _working_set(shape: RankShape, dtype: DType, step: int, *, appearing: bool) -> WorkingSet:
    """Gradients that stay when a block has gone back. Those of tied ends are summed when both are
    there, into a third tensor."""
    kinds = shape.model.layer_kinds
    tied = shape.model.share_embeddings_and_output_weights

    def trained(weights: Iterable[tuple[Weight, int]]) -> int:
        return tuned_bytes(weights, dtype, shape.tuning)[False] if appearing else 0

    whole, size = trained(stage_weights(shape, (ModelChunk(kinds),))), dtype.itemsize
    layers = whole // (len(kinds) * size) * size
    shared, ends = embedding_weights(shape), output_weights(shape, holds_embedding=tied)
    embedding, head = (trained((one, 1) for one in end) for end in (shared, ends))
    layer = ShardingOverhead(left=layers)
    blocks, seen = (trained(weights) for weights in tower_weights(shape))
    number = len(shape.model.tower_kinds) or 1
    summed = tied and not shared[0].frozen
    sums = 2 * shared[0].num_elements * shape.dtype.itemsize if summed else 0
    return WorkingSet(
        embedding=ShardingOverhead(exit=sums, left=embedding),
        first_layer=layer,
        layer=layer,
        last_layer=layer,
        tower=ShardingOverhead(left=blocks // number),
        vision_ends=ShardingOverhead(left=seen // len(TOWER_ENDS)),
        head=ShardingOverhead(left=head),
        step=step,
        weight_grads_dtype=dtype,
        adds_weight_grads=not appearing,
    )


_COMPLEX64_BYTES: Final = 8


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
    wraps_one_gpu: bool = False,
    divides: bool = False,
    pools_reductions: bool = True,
) -> FixedMemory:
    """Memory except the activations, under FSDP2 or on one device, where weights are in 16 bits
    unless the job says otherwise; FSDP2's shards are fp32 in any case where a framework
    `upcasts` them. Between microbatches gradients are shards, or whole where
    they are reduced with the last microbatch alone. wraps_one_gpu: FSDP2 on one GPU as well.
    divides: see parameter_groups.Sharding; pools_reductions: see its stream_pools."""
    layout, config = job.layout, job.config
    buffers = torch_buffers(job, shape)
    if job.layout.is_whole and not wraps_one_gpu:
        buffers += _buckets(job, shape, chunks)
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
        frozen_dtype=config.weights_dtype or DType.BF16 if upcasts else None,
        steps_in_backward=config.optimizer_in_backward,
        flat=config.flat_parameters,
        in_8_bits=config.fp8_param_gather,
        on_host=config.param_cpu_offload,
        divides=divides,
    )
    weights = list(stage_weights(shape, chunks))
    part = parameter_groups.Part.of(weights, shape.tuning)
    of_experts = ((one, number) for one, number in weights if one.expert)
    experts = parameter_groups.Part.of(of_experts, shape.tuning)
    own = sharding.elements(part.trained, experts.trained)
    alone = ((w, n) for w, n in weights if w.stored_as is not StoredAs.AS_LOADED)
    whole = sum(tuned_bytes(alone, dtype, shape.tuning))
    if shape.tuning.packs_weights:  # scales alone
        whole = sum(n * scale_bytes(one, shape.tuning) for one, n in weights)
    adam = adam_memory(shape, chunks, config, dtype, ranks=sharding.ranks, elements=own)
    working_set = parameter_groups.fsdp_working_set(shape, sharding)
    step = 0 if config.optimizer_in_backward else working_set.step + adam.step
    computing = None
    if sharding.ranks == 1:
        computing = parameter_groups.fsdp_working_set(shape, replace(sharding, computing=True))
        computing = replace(computing, step=computing.step + adam.step)
    away = part.trained * 2 * dtype.itemsize + part.all * DType.BF16.itemsize
    return FixedMemory(
        static=parameter_groups.fsdp_static(part, sharding, experts, adam.states)
        + StaticMemory(weights=whole, gradients=0, optimizer=0, frozen=whole),
        words=_words(config, dtype),
        buffers=buffers,
        pools=(
            NamedBytes(
                "communication streams' caches",
                parameter_groups.stream_pools(shape, sharding, pools_reductions=pools_reductions),
                "torch _fsdp_param_group.py FSDPCommContext, CUDACachingAllocator",
            ),
        ),
        working_set=replace(
            working_set, step=working_set.step if config.param_cpu_offload else step
        ),
        computing=computing,
        host_bytes=away // sharding.ranks + adam.states if config.param_cpu_offload else 0,
        thirds_with_model=0,
    )


def _buckets(job: Job, shape: RankShape, chunks: tuple[ModelChunk, ...]) -> tuple[NamedBytes, ...]:
    """DDP's copies of the gradients of what is trained, which stay (torch 2.13 csrc/distributed/
    c10d/reducer.cpp; gradient_as_bucket_view is off in Accelerate)."""
    if job.num_gpus == 1:
        return ()
    dtype = job.config.weights_dtype or DType.BF16
    trained, _ = tuned_bytes(stage_weights(shape, chunks), dtype, shape.tuning)
    return (NamedBytes("DDP's buckets", trained, "torch csrc/distributed/c10d/reducer.cpp"),)


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
