"""Time that data parallelism adds to a step: what the kernels of a microbatch do not hide."""

from functools import cached_property

from msgspec import Struct

from advisor.base.dtypes import DType
from advisor.layers.operators import CollectiveKind
from advisor.time.network.links import Link
from advisor.time.network.passing import collective_seconds


class DataParallelWork(Struct, frozen=True, kw_only=True, dict=True):
    """Gradient reduction and parameter gathering of one rank, with what may hide them.

    gathers_after: whole gradients are reduced, and the parameters gathered when the optimizer is
    done (dist_muon). buckets: collectives that do one of the two."""

    elements: int
    gradient_itemsize: int
    ranks: int
    sharded: bool
    overlap_grad_reduce: bool
    overlap_param_gather: bool
    joined: Link
    gathers_after: bool = False
    buckets: int = 1

    def exposed_seconds(
        self, forward: float, backward: float, beside: tuple["DataParallelWork", ...] = ()
    ) -> float:
        """What is left of both beside one microbatch's `forward` and `backward` on this stage.

        Megatron reduces buckets while the last microbatch goes back, and gathers parameters while
        the first one goes forward. `beside`: work on other buffers, one after another. Source:
        megatron-core 0.16.1 param_and_grad_buffer.py. The last bucket, which nothing can hide, is
        left out.
        """
        reduce = sum(work._reduce_seconds for work in (self, *beside))
        if self.overlap_grad_reduce:
            reduce = max(0.0, reduce - backward)
        if not (self.sharded or self.gathers_after):
            return reduce
        gather = sum(work._gather_seconds for work in (self, *beside))
        if self.gathers_after:
            return reduce + gather
        return reduce + (max(0.0, gather - forward) if self.overlap_param_gather else gather)

    @cached_property
    def _reduce_seconds(self) -> float:
        gradients = self.elements * self.gradient_itemsize
        kind = CollectiveKind.REDUCE_SCATTER if self.sharded else CollectiveKind.ALL_REDUCE
        return self._seconds(kind, gradients)

    @cached_property
    def _gather_seconds(self) -> float:
        return self._seconds(CollectiveKind.ALL_GATHER, self.elements * 2)

    def _seconds(self, kind: CollectiveKind, num_bytes: int) -> float:
        each = num_bytes / max(1, self.buckets)
        return self.buckets * collective_seconds(kind, each, self.ranks, self.joined)


class ShardedWork(Struct, frozen=True, kw_only=True, dict=True):
    """FSDP's communication of one rank in a step: every microbatch gathers the parameters, for its
    backward again where they were freed, and the last `reductions` of them reduce gradients; all
    beside the kernels.

    groups: elements, ranks and link of the parameters that the same ranks share. collectives: of a
    gathering or a reduction, one a block. from_host: seconds of a gathering's copies from the host,
    where the shards are there. added: seconds of adding one microbatch's whole gradients to those
    before, where they are not reduced."""

    groups: tuple[tuple[int, int, Link], ...]
    gradient_itemsize: int
    microbatches: int
    reductions: int
    gathers_again: bool
    hidden_fraction: float
    collectives: int = 1
    from_host: float = 0.0
    added: float = 0.0

    def exposed_seconds(self, forward: float, backward: float) -> float:
        """Seconds that `forward` and `backward` of one microbatch do not hide, of all microbatches.
        Source: torch 2.13 distributed/fsdp/_fully_shard. The first all-gather of a step and the
        last reduce-scatter, which nothing can hide, are left out."""
        gather, reduce = self._gather_and_reduce
        again = gather if self.gathers_again else 0.0
        kept = self.microbatches - self.reductions
        return (
            self.microbatches * self._exposed(gather, forward)
            + self.reductions * self._exposed(again + reduce, backward)
            + kept * (self._exposed(again, backward) + self.added)
        )

    @cached_property
    def _gather_and_reduce(self) -> tuple[float, float]:
        """Seconds of one all-gather and of one reduction of everything."""
        gather = self._seconds(CollectiveKind.ALL_GATHER, DType.BF16.itemsize) + self.from_host
        return gather, self._seconds(CollectiveKind.REDUCE_SCATTER, self.gradient_itemsize)

    def _seconds(self, kind: CollectiveKind, itemsize: int) -> float:
        return self.collectives * sum(
            collective_seconds(kind, elements * itemsize / self.collectives, ranks, joined)
            for elements, ranks, joined in self.groups
        )

    def _exposed(self, seconds: float, kernels: float) -> float:
        return seconds - self.hidden_fraction * min(seconds, kernels)
