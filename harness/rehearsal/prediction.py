"""What the advisor predicts of a rehearsed rank, in bytes and seconds, and where the two part."""

from typing import Final

from msgspec.structs import asdict, replace

from advisor.frameworks.registry import parts_of
from advisor.job.layout import ParallelLayout
from advisor.layers.operators import Collective, CollectiveKind
from advisor.memory.allocator import Reserved, reserved_memory
from advisor.models.options import TransformerImpl
from advisor.plan.recompute_plan import Setting
from advisor.search.evaluate import Evaluator
from advisor.search.job_memory import StageDetail
from advisor.time.passes import chunk_times, end_times
from advisor.time.rank_links import Network
from harness.trial.result import StagePeaks
from harness.trial.trial import Device

WORTH_EXPLAINING: Final = 0.02
_COMPONENTS: Final = ("weights", "gradients", "optimizer", "activations")

_OF_THE_DEVICE: Final = ("cuBLAS workspaces", "TE GEMM workspace", "dummy weight gradients")
"""Buffers of kernels' libraries, which fake tensors and a CPU do not have."""


def predicted_stages(
    evaluator: Evaluator, recompute: str, stages: tuple[int, ...], device: Device
) -> tuple[StagePeaks, ...]:
    """The evaluator's prediction of each stage, for a job as backends.jobs.as_run gives it."""
    setting = parts_of(evaluator.job.config.framework).settings.parse(recompute)
    return tuple(
        _predicted(stage, evaluator.stage_detail(setting, stage), device) for stage in stages
    )


def reserved_alone(
    evaluator: Evaluator, recompute: str, stages: tuple[int, ...]
) -> tuple[Reserved, ...]:
    """What each stage's rank takes of a GPU where nothing communicates: no NCCL."""
    job = evaluator.job
    setting = parts_of(job.config.framework).settings.parse(recompute)
    details = (evaluator.stage_detail(setting, stage, simulated=True) for stage in stages)
    return tuple(
        reserved_memory(
            detail.reserved.allocated,
            ParallelLayout(),
            expandable_segments=job.config.expandable_segments,
            unused=detail.reserved.unused,
            engine=job.model.transformer_impl is TransformerImpl.TRANSFORMER_ENGINE,
        )
        for detail in details
    )


def _predicted(stage: int, detail: StageDetail, device: Device) -> StagePeaks:
    static, activations = detail.fixed.static, detail.activations
    buffers = sum(
        term.num_bytes
        for term in detail.fixed.buffers
        if device is Device.CUDA or term.name not in _OF_THE_DEVICE
    )
    resident = static.total + buffers
    return StagePeaks(
        stage=stage,
        weights=static.weights,
        gradients=static.gradients,
        optimizer=static.optimizer,
        forward=resident + activations.forward,
        backward=resident + activations.backward,
        optimizer_step=resident + detail.fixed.optimizer_step,
    )


def difference(predicted: StagePeaks, rehearsed: StagePeaks) -> float:
    """Signed, of the peak, relative to what was rehearsed."""
    return predicted.peak / rehearsed.peak - 1


def explained(predicted: StagePeaks, rehearsed: StagePeaks) -> str:
    """The component that a difference of the peak comes from; empty where it is not worth it."""
    if abs(difference(predicted, rehearsed)) <= WORTH_EXPLAINING:
        return ""

    def gap(name: str) -> int:
        return abs(int(getattr(predicted, name)) - int(getattr(rehearsed, name)))

    return max((*_COMPONENTS, "optimizer_step"), key=gap).replace("_", " ")


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
        return _READ_AND_WRITTEN * parts.get(kind, 0.0) * num_bytes / self.memory_bytes_per_second


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
        passes += chunk_times(shape, machine, copies, evaluator.plan(setting, chunk.layers))
    return (
        job.num_microbatches * passes.total
        + evaluator.time.parts(evaluator.plans(setting))[stage].optimizer
        + _shared_seconds(evaluator, setting, stage, copies)
    )


def _shared_seconds(evaluator: Evaluator, setting: Setting, stage: int, copies: Copies) -> float:
    """Gradients that data-parallel ranks reduce once a step, and parameters that they gather."""
    layout = evaluator.job.layout
    ranks = layout.data_parallel_size * layout.context_parallel_size
    if ranks == 1 or not layout.use_distributed_optimizer:
        return 0.0
    static = evaluator.stage_detail(setting, stage).fixed.static
    reduced = copies.copy_seconds(CollectiveKind.REDUCE_SCATTER, static.gradients, ranks)
    return reduced + copies.copy_seconds(CollectiveKind.ALL_GATHER, static.weights, ranks)
