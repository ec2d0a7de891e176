"""What settings of Megatron keep, and what a rank holds whatever is recomputed."""

from collections.abc import Iterator
from typing import Final

from msgspec.structs import replace

from advisor.base.dtypes import DType
from advisor.frameworks.framework_parts import MemoryModel
from advisor.frameworks.megatron.buffers import (
    Chunks,
    Terms,
    last_inputs,
    quantized_elements,
    stage_buffers,
    stream_pools,
)
from advisor.frameworks.megatron.plan import (
    Layers,
    chunk_plan,
    copies_outputs_of,
    of_release,
    reads_full_recompute,
)
from advisor.frameworks.megatron.revisions import MegatronPart, Revision
from advisor.frameworks.megatron.setting import NONE, Granularity, as_megatron
from advisor.frameworks.part_types import FixedMemory, StaticLabels
from advisor.job.job import CudaGraphImpl, Job, JobConfig, Optimizer
from advisor.job.layout import SHARDED_GRADIENTS, DataParallelSharding, ParallelLayout
from advisor.layers.operators import Capture, Module
from advisor.layers.shape import RankShape
from advisor.memory.muon_shares import fullest_share, muon_shares
from advisor.memory.static import (
    GRADIENT_COPIES,
    STATE_COPIES,
    StaticMemory,
    fp32_states,
    gradient_copies,
    stage_elements,
    stage_expert_elements,
    stage_weights,
    static_memory,
    trained_elements,
)
from advisor.plan.recompute_plan import RecomputePlan, Setting
from advisor.time.step_tail import Turns

STATIC_LABELS: Final = StaticLabels(
    weights=("16-bit weights", "2 bytes per parameter"),
    gradients=("main gradients", "contiguous gradient buffer"),
    optimizer=("master weights and Adam moments", "each in its type (fp32: 4 bytes), sharded"),
)
_MUON_WORDS: Final = replace(
    STATIC_LABELS,
    optimizer=(
        "fp32 master weights, momentum, Adam moments",
        "8 bytes per parameter of Muon, 12 per parameter of Adam",
    ),
)


def without_narrow_weights(
    static: StaticMemory, config: JobConfig, shape: RankShape, chunks: Chunks
) -> StaticMemory:
    """Under fp8_param_gather the 8-bit copies, which the buffers count, are the weights."""
    if not config.fp8_param_gather:
        return static
    narrow = quantized_elements(shape, chunks) * DType.BF16.itemsize
    return replace(static, weights=static.weights - narrow)


def muon_memory(
    job: Job, revision: Revision, shape: RankShape, chunks: Chunks, buffers: Terms
) -> FixedMemory:
    """Whole weights and gradients, and the states of the rank that is dealt most of them.

    The step makes fp32 copies of its own 16-bit gradients, which live until the next step, and then
    gathers everybody's weights: own tensors flattened, and a buffer for each rank (0.16 one for
    itself as well). Left out: what the orthogonalization itself takes, some copies of one tensor.
    """
    config, dealt = job.config, job.config.optimizer is Optimizer.DIST_MUON
    share = fullest_share(muon_shares(shape, chunks, job.layout, dealt=dealt))
    whole = static_memory(stage_elements(shape, chunks), 1, config.main_grads_dtype)
    static = replace(
        without_narrow_weights(whole, config, shape, chunks), optimizer=share.state_bytes
    )
    sixteen_bit = config.main_grads_dtype is not DType.FP32 and config.copies_gradients
    copies = share.elements * DType.FP32.itemsize if sixteen_bit else 0
    received = share.received + (share.sent if not revision.at_least(0, 17) else 0)
    return FixedMemory(
        static=static,
        words=_MUON_WORDS,
        buffers=buffers,
        pools=_pools(job, shape, chunks),
        optimizer_step=copies + received * DType.BF16.itemsize + last_inputs(shape, chunks),
        step_words="the weights gathered from all ranks" if received else GRADIENT_COPIES,
    )


def _pools(job: Job, shape: RankShape, chunks: Chunks) -> Terms:
    return stream_pools(
        shape, chunks, overlaps_exchange=job.layout.overlap_moe_expert_parallel_comm
    )


class MegatronMemory(MegatronPart, MemoryModel):
    """Of one of the three, which share their release of megatron-core."""

    def plan(self, setting: Setting, shape: RankShape, layers: Layers, job: Job) -> RecomputePlan:
        """See plan.chunk_plan; full recompute that a release does not read is none."""
        own, revision = as_megatron(setting), self.revision(job.config)
        if own.granularity is Granularity.FULL:
            own = own if reads_full_recompute(shape.model.hybrid_layer_pattern, revision) else NONE
        layout, copies = job.layout, copies_outputs_of(revision)
        turns = layout.pipeline_model_parallel_size == 1
        return chunk_plan(own, shape.model, layers, layout.sequence_parallel, copies, turns)

    def shape(self, job: Job, shape: RankShape) -> RankShape:
        """See of_release."""
        overlaps = job.layout.overlap_moe_expert_parallel_comm
        return of_release(shape, self.revision(job.config), overlaps_exchange=overlaps)

    def fixed_memory(self, job: Job, shape: RankShape, chunks: Chunks) -> FixedMemory:
        """16-bit weights, the gradient buffer, the optimizer's shard, Megatron's own buffers."""
        buffers = stage_buffers(shape, chunks, job.gpu)
        if job.config.optimizer.is_muon:
            return muon_memory(job, self.revision(job.config), shape, chunks, buffers)
        if job.layout.data_parallel_sharding is not None:
            from advisor.frameworks.megatron.fsdp import fsdp_memory

            return fsdp_memory(job, shape, chunks, buffers)
        config, shards = job.config, list[int]()
        static = StaticMemory(weights=0, gradients=0, optimizer=0)
        for elements, trained, ranks in _gradient_buffers(shape, chunks, job.layout):
            shards.append(-(-trained // ranks))
            static += static_memory(
                elements, ranks, config.main_grads_dtype, config.optimizer_bytes, trained
            )
        static, words = without_narrow_weights(static, config, shape, chunks), STATIC_LABELS
        on_host = 0
        if config.optimizer_cpu_offload:
            from advisor.frameworks.megatron import host_optimizer as host

            aware = config.use_precision_aware_optimizer
            held = sum(host.held_on_gpu(shard, config) for shard in shards)
            on_host = sum(host.held_on_host(shard, config) for shard in shards)
            static = replace(static, optimizer=held)
            words = replace(STATIC_LABELS, optimizer=host.HOST_WORDS[aware])
            weights = (w for w, _ in stage_weights(shape, chunks) if not w.frozen)
            each = (w.num_elements // w.copies for w in weights)
            step = host.taken_by_step(shards, max(each, default=0), config)
            step_words = host.STEP_WORDS[aware]
        else:
            gradients = gradient_copies(static, config)
            states = max(shards) * fp32_states(config)
            step = gradients + states
            step_words = STATE_COPIES if states > gradients else GRADIENT_COPIES
        return FixedMemory(
            static=static,
            words=words,
            buffers=buffers,
            optimizer_step=step + last_inputs(shape, chunks),
            step_words=step_words,
            pools=_pools(job, shape, chunks),
            in_buffers=job.layout.use_distributed_optimizer,
            host_bytes=on_host,
        )

    def turns(self, job: Job) -> Turns:
        """Whole parameters are gathered in the first microbatch, whole gradients reduced in the
        last, and replicas' shards then (megatron_fsdp.py)."""
        sharding = job.layout.data_parallel_sharding
        if sharding not in SHARDED_GRADIENTS:
            return Turns(1, 1, 1)
        every = job.num_microbatches
        return Turns(every if sharding is DataParallelSharding.FULL else 1, every, 1)

    def graphed_modules(self, job: Job) -> frozenset[Module]:
        """Those that the job's graphs capture."""
        if job.config.cuda_graph_impl is CudaGraphImpl.NONE:
            return frozenset()
        from advisor.frameworks.megatron.graphed import graphed_modules

        return graphed_modules(job)

    def graph_capture(self, job: Job) -> Capture | None:
        """See graphed.graph_capture."""
        if job.config.cuda_graph_impl is CudaGraphImpl.NONE:
            return None
        from advisor.frameworks.megatron.graphed import graph_capture

        return graph_capture(job)

    def graph_inputs(self, job: Job, shape: RankShape, layers: Layers) -> int:
        """See graphed.graph_inputs."""
        from advisor.frameworks.megatron.graphed import graph_inputs

        return graph_inputs(job.config, shape, layers)

    def graph_buffers(self, job: Job, shape: RankShape, chunks: Chunks) -> int:
        """See graphed.graph_buffers."""
        from advisor.frameworks.megatron.graphed import graph_buffers

        return graph_buffers(job, shape, chunks, self.revision(job.config))


def _gradient_buffers(
    shape: RankShape, chunks: Chunks, layout: ParallelLayout
) -> Iterator[tuple[int, int, int]]:
    """Parameters next to each gradient buffer, those in it, which are not frozen, and the shards of
    their optimizer: the routed experts' are apart under expert parallelism."""
    experts, (trained, of_experts) = 0, trained_elements(shape, chunks)
    if layout.expert_model_parallel_size > 1:
        experts = stage_expert_elements(shape, chunks)
        yield experts, of_experts, layout.expert_optimizer_shards
        trained -= of_experts
    yield stage_elements(shape, chunks) - experts, trained, layout.optimizer_shards
