"""What the advisor predicts of a rehearsed rank, phase by phase, and where the two part."""

from typing import Final

from advisor.frameworks.registry import parts_of
from advisor.job.layout import ParallelLayout
from advisor.memory.allocator import Reserved, reserved_memory
from advisor.models.options import TransformerImpl
from advisor.search.evaluate import Evaluator
from advisor.search.job_memory import StageDetail
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
    details = (evaluator.stage_detail(setting, stage, replayed=True) for stage in stages)
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
    error = difference(predicted, rehearsed)
    if abs(error) <= WORTH_EXPLAINING:
        return ""
    gaps = {
        name: getattr(predicted, name) - getattr(rehearsed, name)
        for name in (*_COMPONENTS, "optimizer_step")
    }
    worst = max(gaps, key=lambda name: abs(gaps[name]))
    return worst.replace("_", " ")
