"""Seconds of one step of a rehearsed rank: its kernels, and copies where others would be asked.

Fake process groups copy on the GPU: an all-gather the rank's own part to everybody's place, a
reduce-scatter its own slice, an all-to-all all of it; an all-reduce does nothing (torch
FakeProcessGroup, backends.megatron_core.rehearsal.received).
"""

from typing import Final

from msgspec.structs import asdict, replace

from advisor.frameworks.registry import parts_of
from advisor.layers.operators import Collective, CollectiveKind
from advisor.plan.recompute_plan import Setting
from advisor.search.evaluate import Evaluator
from advisor.time.network.fabric import Network
from advisor.time.passes import PassTimes, chunk_times, end_times

_READ_AND_WRITTEN: Final = 2
_WHOLE: Final = (CollectiveKind.ALL_GATHER, CollectiveKind.ALL_TO_ALL)


class Copies(Network, frozen=True, kw_only=True, cache_hash=True):
    """A network whose collectives are copies within the GPU's memory."""

    memory_bytes_per_second: float

    def seconds(self, collective: Collective) -> float:
        """Time of the copy that a fake process group makes instead."""
        ranks, _ = self._group(collective)
        if ranks == 1:
            return 0.0
        return self.copy_seconds(collective.kind, collective.num_bytes, ranks)

    def copy_seconds(self, kind: CollectiveKind, num_bytes: float, ranks: int) -> float:
        """Of a tensor of `num_bytes` that all ranks share."""
        parts = {CollectiveKind.REDUCE_SCATTER: 1 / ranks} | dict.fromkeys(_WHOLE, 1.0)
        copied = _READ_AND_WRITTEN * parts.get(kind, 0.0) * num_bytes
        return copied / self.memory_bytes_per_second


def rank_seconds(evaluator: Evaluator, recompute: str, stage: int) -> float:
    """Seconds of all microbatches through `stage` and of the optimizer, gradients reduced and
    parameters gathered by copies; without bubbles and the fixed cost of a training loop."""
    job, shape = evaluator.job, evaluator.shape
    setting = parts_of(job.config.framework).settings.parse(recompute)
    machine, network = evaluator.rates
    machine = replace(machine, hidden_fraction=0.0)  # copies are kernels of the same stream
    copies = Copies(**asdict(network), memory_bytes_per_second=machine.memory_bytes_per_second)
    chunks = evaluator.stages[stage]
    first, last = (any(getattr(one, end) for one in chunks) for end in ("embedding", "head"))
    passes = end_times(shape, machine, copies, first, last)
    for chunk in chunks:
        passes += chunk_times(shape, machine, copies, evaluator.plan(setting, chunk))
    return (
        job.num_microbatches * _seconds(passes)
        + evaluator.parts(setting)[stage].optimizer
        + _shared_seconds(evaluator, setting, stage, copies)
    )


def _seconds(passes: PassTimes) -> float:
    return passes.kernels + passes.exposed + passes.exchange + passes.host


def _shared_seconds(evaluator: Evaluator, setting: Setting, stage: int, copies: Copies) -> float:
    """Gradients that data-parallel ranks reduce once a step, and parameters that they gather."""
    layout = evaluator.job.layout
    ranks = layout.data_parallel_size * layout.context_parallel_size
    if ranks == 1 or not layout.use_distributed_optimizer:
        return 0.0
    static = evaluator.stage_detail(setting, stage).fixed.static
    return copies.copy_seconds(
        CollectiveKind.REDUCE_SCATTER, static.gradients, ranks
    ) + copies.copy_seconds(CollectiveKind.ALL_GATHER, static.weights, ranks)
