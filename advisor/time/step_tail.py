"""What data parallelism adds to the passes of a step: gradients reduced and parameters gathered, as
far as no kernel hides them, and gradients added up on the host."""

from collections.abc import Sequence
from functools import cached_property

from msgspec import Struct
from msgspec.structs import replace

from advisor.base.dtypes import DType
from advisor.hardware.calibration import Calibration
from advisor.hardware.gpu import Gpu
from advisor.job.job import Job, Optimizer
from advisor.job.layout import SHARDED_GRADIENTS, DataParallelSharding, ParallelLayout
from advisor.job.pipeline_split import ModelChunk
from advisor.job.tuning import StoredAs
from advisor.layers.operators import CollectiveKind, Module
from advisor.layers.shape import RankShape
from advisor.memory import static
from advisor.time.communication import Link, collective_seconds
from advisor.time.machine import Machine
from advisor.time.passes import PassTimes
from advisor.time.rank_links import data_parallel_link, link


class Turns(Struct, frozen=True):
    """How many microbatches of a step gather sharded parameters, the first ones; how many reduce
    gradients of sharded ones, and of these over replicas of shards, the last ones."""

    gatherings: int
    reductions: int
    across: int


class StepFacts(Struct, frozen=True):
    """What a framework says about the time of a step.

    graphed: submodules whose kernels CUDA graphs launch. compiled: whether torch.compile reaches
    the layers' kernels. parameter_seconds: for each trained parameter, whatever its size, in
    addition to the optimizer's kernels."""

    turns: Turns
    graphed: frozenset[Module]
    compiled: bool
    parameter_seconds: float


class Exchange(Struct, frozen=True):
    """Seconds of collectives, and of these what they keep multiprocessors and memory busy."""

    seconds: float = 0.0
    busy: float = 0.0

    def __add__(self, other: "Exchange") -> "Exchange":
        return Exchange(self.seconds + other.seconds, self.busy + other.busy)

    @classmethod
    def by(cls, joined: Link, seconds: float) -> "Exchange":
        """`seconds` on a link."""
        return cls(seconds, seconds * joined.busy)


class ParameterGroup(Struct, frozen=True, kw_only=True):
    """Parameters of one rank in one gradient buffer: how many, over how many shards the optimizer
    cuts them, how many ranks reduce them, and what joins those; replicas of shards, and what joins
    them. frozen: how many more are gathered with them where they are cut."""

    elements: int
    frozen: int = 0
    shards: int
    ranks: int
    joined: Link
    replicas: int = 1
    across: Link | None = None

    def reduced_across(self, itemsize: int) -> Exchange:
        """The all-reduce of a shard's gradients over the replicas."""
        if self.across is None:
            return Exchange()
        shard = self.elements * itemsize / self.ranks
        seconds = collective_seconds(CollectiveKind.ALL_REDUCE, shard, self.replicas, self.across)
        return Exchange.by(self.across, seconds)


def parameter_groups(
    shape: RankShape,
    chunks: tuple[ModelChunk, ...],
    layout: ParallelLayout,
    gpu: Gpu,
    calibration: Calibration,
) -> tuple[ParameterGroup, ...]:
    """Parameters of one rank of a stage: dense ones, and under expert parallelism routed experts in
    a buffer of their own. Source: megatron-core 0.16.1 distributed_data_parallel.py, which makes
    one buffer for each group of ranks."""
    of_all, of_experts = static.trained_elements(shape, chunks)
    experts = static.stage_expert_elements(shape, chunks)
    still = static.stage_elements(shape, chunks) - of_all - (experts - of_experts)
    if shape.tuning.base_weights is StoredAs.NF4:  # four are gathered as one element of 16 bits
        weights = static.stage_weights(shape, chunks)
        packed = (w.num_elements * n for w, n in weights if w.stored_as is StoredAs.NF4)
        still -= sum(packed) * 3 // 4
    replicas, apart = layout.data_parallel_replicate_size, layout.tensor_model_parallel_size
    dense = ParameterGroup(
        elements=of_all - of_experts,
        frozen=still,
        shards=layout.optimizer_shards,
        ranks=layout.sharding_ranks,
        joined=data_parallel_link(gpu, calibration, layout),
        replicas=replicas,
        across=link(gpu, calibration, replicas, apart * layout.sharding_ranks),
    )
    if layout.expert_model_parallel_size == 1:
        frozen = still + experts - of_experts
        return (replace(dense, elements=of_all, frozen=frozen),)
    ranks = layout.expert_data_parallel_size
    return dense, ParameterGroup(
        elements=of_experts,
        frozen=experts - of_experts,
        shards=layout.expert_optimizer_shards,
        ranks=ranks,
        joined=link(gpu, calibration, ranks, layout.expert_ranks),
    )


class DataParallelWork(Struct, frozen=True, kw_only=True, dict=True):
    """Gradient reduction and parameter gathering of one rank, with what may hide them.

    gathers_after: whole gradients are reduced, and the parameters gathered when the optimizer is
    done (dist_muon). buckets: collectives that do one of the two. across: seconds of the reduction
    over replicas of shards."""

    elements: int
    gradient_itemsize: int
    ranks: int
    sharded: bool
    overlap_grad_reduce: bool
    overlap_param_gather: bool
    joined: Link
    gathers_after: bool = False
    buckets: int = 1
    across: float = 0.0

    def exposed_seconds(
        self, forward: float, backward: float, others: tuple["DataParallelWork", ...] = ()
    ) -> float:
        """What is left of both next to one microbatch's `forward` and `backward` on this stage.

        Megatron reduces buckets while the last microbatch goes back, and gathers parameters while
        the first one goes forward. `others`: work on other buffers, one after another. Source:
        megatron-core 0.16.1 param_and_grad_buffer.py. The last bucket, which nothing can hide, is
        left out.
        """
        reduce = sum(work._reduce_seconds for work in (self, *others))
        if self.overlap_grad_reduce:
            reduce = max(0.0, reduce - backward)
        if not (self.sharded or self.gathers_after):
            return reduce
        gather = sum(work._gather_seconds for work in (self, *others))
        if self.gathers_after:
            return reduce + gather
        return reduce + (max(0.0, gather - forward) if self.overlap_param_gather else gather)

    @cached_property
    def _reduce_seconds(self) -> float:
        gradients = self.elements * self.gradient_itemsize
        kind = CollectiveKind.REDUCE_SCATTER if self.sharded else CollectiveKind.ALL_REDUCE
        return self._seconds(kind, gradients) + self.across

    @cached_property
    def _gather_seconds(self) -> float:
        return self._seconds(CollectiveKind.ALL_GATHER, self.elements * 2)

    def _seconds(self, kind: CollectiveKind, num_bytes: int) -> float:
        each = num_bytes / max(1, self.buckets)
        return self.buckets * collective_seconds(kind, each, self.ranks, self.joined)


class ShardedWork(Struct, frozen=True, kw_only=True):
    """FSDP's communication of one rank in a step: microbatches gather the parameters (all but those
    that find them `gathered`), for their backward again where they were freed, and the last
    `reductions` of them reduce gradients; all during the kernels.

    groups: of the parameters that the same ranks share: how many are trained, how many are
    gathered, ranks and link. collectives: of a gathering or a reduction, one a block. from_host:
    seconds of a gathering's copies from the host, where the shards are there. added: seconds of
    adding one microbatch's whole gradients to those before, where they are not reduced. across:
    reductions over replicas of shards, and how many of the last microbatches do them."""

    groups: tuple[tuple[int, int, int, Link], ...]
    gradient_itemsize: int
    microbatches: int
    reductions: int
    gathers_again: bool
    hidden_fraction: float
    collectives: int = 1
    gathered: int = 0
    across: tuple[Exchange, int] = (Exchange(), 0)
    from_host: float = 0.0
    added: float = 0.0

    def exposed_seconds(self, forward: float, backward: float) -> float:
        """Seconds that `forward` and `backward` of one microbatch do not hide, of all microbatches:
        the first collective of either pass, and what takes longer than the kernels next to it.
        Source: torch 2.13 distributed/fsdp/_fully_shard."""
        gather = self._made(CollectiveKind.ALL_GATHER, DType.BF16.itemsize)
        gather += Exchange(self.from_host)
        reduce = self._made(CollectiveKind.REDUCE_SCATTER, self.gradient_itemsize)
        again = gather if self.gathers_again else Exchange()
        kept, (across, often) = self.microbatches - self.reductions, self.across
        return (
            (self.microbatches - self.gathered) * self._exposed(gather, forward)
            + often * self._exposed(again + reduce + across, backward)
            + (self.reductions - often) * self._exposed(again + reduce, backward)
            + kept * (self._exposed(again, backward) + self.added)
        )

    def _made(self, kind: CollectiveKind, itemsize: int) -> Exchange:
        """Collectives of one kind of everything."""
        total = Exchange()
        for trained, whole, ranks, joined in self.groups:
            elements = whole if kind is CollectiveKind.ALL_GATHER else trained
            one = collective_seconds(kind, elements * itemsize / self.collectives, ranks, joined)
            total += Exchange.by(joined, self.collectives * one)
        return total

    def _exposed(self, exchange: Exchange, kernels: float) -> float:
        if not exchange.seconds:
            return 0.0
        next_to = min(exchange.seconds * (1 - 1 / self.collectives), kernels)
        busy = exchange.busy / exchange.seconds
        return exchange.seconds - next_to + (1 - self.hidden_fraction) * busy * next_to


_LEAST_BUCKET, _BUCKET_OF_A_RANK = 40_000_000, 1_000_000
_READ_READ_WRITTEN = 3
"""Of an addition in place: both tensors are read, one is written."""


def data_parallel_work(
    job: Job,
    chunks: tuple[ModelChunk, ...],
    parameters: Sequence[ParameterGroup],
    machine: Machine,
    calibration: Calibration,
    turns: Turns,
) -> tuple[DataParallelWork, ...] | ShardedWork:
    """Of a rank of a stage that holds these `chunks`."""
    layout, itemsize = job.layout, job.config.main_grads_dtype.itemsize
    sharding = layout.data_parallel_sharding
    if sharding in SHARDED_GRADIENTS:
        held = sum((part.elements + part.frozen) / part.ranks for part in parameters)
        shard = held * DType.BF16.itemsize
        whole = sum(part.elements for part in parameters) * DType.BF16.itemsize
        away = shard / machine.host_bytes_per_second
        return ShardedWork(
            groups=tuple(
                (part.elements, part.elements + part.frozen, part.ranks, part.joined)
                for part in parameters
            ),
            gradient_itemsize=itemsize,
            microbatches=job.num_microbatches,
            reductions=turns.reductions,
            gathered=job.num_microbatches - turns.gatherings,
            across=(
                sum((part.reduced_across(itemsize) for part in parameters), Exchange()),
                turns.across,
            ),
            gathers_again=sharding is DataParallelSharding.FULL,
            hidden_fraction=calibration.hidden_fraction,
            collectives=sum(len(chunk.layers) for chunk in chunks),
            from_host=away if job.config.param_cpu_offload else 0.0,
            added=_READ_READ_WRITTEN * whole / machine.memory_bytes_per_second,
        )
    sharded = layout.use_distributed_optimizer
    if sharding is not None:
        sharded = sharding is DataParallelSharding.OPTIMIZER
    return tuple(
        DataParallelWork(
            elements=part.elements,
            gradient_itemsize=itemsize,
            ranks=part.ranks,
            sharded=sharded,
            overlap_grad_reduce=layout.overlap_grad_reduce,
            overlap_param_gather=layout.overlap_param_gather,
            joined=part.joined,
            gathers_after=job.config.optimizer is Optimizer.DIST_MUON,
            buckets=_buckets(part) if layout.overlap_grad_reduce else 1,
            across=part.reduced_across(itemsize).seconds,
        )
        for part in parameters
    )


def _buckets(part: ParameterGroup) -> int:
    """Collectives of one pass over a gradient buffer with overlap, one a bucket of the size that
    Megatron gives it by default (megatron-core 0.16.1 distributed_data_parallel.py)."""
    return -(-part.elements // max(_LEAST_BUCKET, _BUCKET_OF_A_RANK * part.ranks))


def reduced_seconds(work: tuple[DataParallelWork, ...] | ShardedWork, pace: PassTimes) -> float:
    """What the passes of a microbatch of `pace` do not hide of the work."""
    late = 1 + (pace.host + pace.exposed) / (pace.forward + pace.backward)
    forward, backward = pace.forward * late, pace.backward * late  # while no kernel runs, it does
    if isinstance(work, ShardedWork):
        return work.exposed_seconds(forward, backward)
    first, *others = work
    return first.exposed_seconds(forward, backward, tuple(others))


def accumulation_seconds(
    job: Job, parameters: Sequence[ParameterGroup], machine: Machine, pace: PassTimes
) -> float:
    """ZeRO-Offload's 16-bit gradients of a rank, summed on the host: every microbatch but the first
    brings the sum to the device, and each takes it back, at the same time as the backward in stage
    3, on the stream of the kernels in the others. One microbatch alone goes straight into the
    host's fp32 gradients, which host_optimizer_seconds counts. Source: DeepSpeed
    runtime/zero/stage_1_and_2.py async_accumulate_grad_in_cpu_via_gpu."""
    sharding, microbatches = job.layout.data_parallel_sharding, job.num_microbatches
    if sharding is None or not job.config.optimizer_cpu_offload or microbatches == 1:
        return 0.0
    shard = sum(part.elements / part.ranks for part in parameters)
    copied = (2 * microbatches - 1) * shard * DType.BF16.itemsize
    copies = copied / machine.host_bytes_per_second
    hidden = microbatches * pace.backward if sharding is DataParallelSharding.FULL else 0.0
    return max(0.0, copies - hidden)
