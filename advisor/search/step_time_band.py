"""How sure a predicted step time is: the band around it, what is known to be off, and options of
experts whose gain rests on few published runs (research.steps.pairs)."""

from collections.abc import Callable
from typing import Final

from msgspec import Struct

from advisor.hardware.calibration import Calibration, JobClass, KnownError, Layers
from advisor.job.job import CudaGraphImpl, Job
from advisor.layers.operators import WIDEST_FLASH_HEAD
from advisor.models.options import FlexBackend

EXCHANGE_ERROR: Final = 0.26
"""Half-width of the band where the processor launches an exchange under EP overlap, or DeepEP, of
which no run without overlap is published. Qwen3-30B in FP8 on 16 H100 (Megatron Bridge 26.02) takes
26 % longer than predicted, the most of all pairs whose GPU has no known error."""

_NEVER_TIMED: Final = 0.5
"""The same of kernels that no published run has: sparse attention's, that of heads too wide for a
flash kernel, and eager linear layers in 8 bits. A judgement, as of a GPU without a calibration."""


class Gain(Struct, frozen=True):
    """An option of a job with experts. pairs: published ones that change it; alone: only it."""

    name: str
    pairs: int
    alone: int
    is_on: Callable[[Job], bool]

    @property
    def words(self) -> str:
        """``EP overlap (10 pairs, of which 3 change nothing else)``."""
        rest = f"of which {self.alone or 'none'} change{'s' * (self.alone < 2)} nothing else"
        return f"{self.name} ({self.pairs} pairs, {rest})"


def _whole(job: Job) -> bool:
    return job.config.cuda_graph_impl is CudaGraphImpl.FULL_ITERATION


GAINS: Final = (
    Gain("EP overlap", 10, 3, lambda job: job.layout.overlap_moe_expert_parallel_comm),
    Gain("DeepEP", 2, 0, lambda job: job.model.flex_backend == FlexBackend.DEEPEP),
    Gain("HybridEP", 5, 1, lambda job: job.model.flex_backend == FlexBackend.HYBRIDEP),
    Gain("CUDA graphs", 2, 1, lambda job: job.config.cuda_graph_impl is not CudaGraphImpl.NONE),
    Gain("one CUDA graph of a step", 4, 0, _whole),
)
"""Counted by research.steps.pairs."""


def gains(job: Job) -> tuple[Gain, ...]:
    """Options that the job has on; none of a model without experts, or with all on one rank."""
    if job.model.num_moe_experts is None or job.layout.expert_model_parallel_size == 1:
        return ()
    return tuple(gain for gain in GAINS if gain.is_on(job))


def unproven_gains(job: Job) -> tuple[str, ...]:
    """Names of the job's options that rest on few published pairs, or on the model alone."""
    return tuple(gain.name for gain in gains(job))


def step_time_error(job: Job, calibration: Calibration) -> float:
    """Half-width of the band around a job's step times: that of its class, and with experts as far
    as published pairs, and the known error of runs like it, reach."""
    eager, experts = job.model.transformer_impl.is_eager, job.model.num_moe_experts is not None
    usual = calibration.error_of(job.gpu.name, experts=experts, eager=eager)
    wide = job.model.widest_head > WIDEST_FLASH_HEAD
    if wide or job.has_eager_fp8 or job.model.has_sparse_attention:
        return max(usual, _NEVER_TIMED)
    if not experts:
        return usual
    unsure = {"EP overlap", "DeepEP"} & set(unproven_gains(job)) and not _whole(job)
    known = known_error(job, calibration)
    reached = [abs(1 / (1 + end) - 1) for end in (known.low, known.high)] if known else []
    return max(usual, EXCHANGE_ERROR if unsure else 0.0, *reached)


def band_words(job: Job, calibration: Calibration) -> str:
    """What a predicted step time of the job is good for: its band, and whether that rests on runs
    of other GPUs alone."""
    words = calibration.summary(step_time_error(job, calibration))
    eager, experts = job.model.transformer_impl.is_eager, job.model.num_moe_experts is not None
    if calibration.has_runs_of(job.gpu.name, experts=experts, eager=eager):
        return words
    return f"{words}, from runs of other GPUs"


def job_class(job: Job) -> JobClass:
    """What of a job says whose runs it is like: nothing of it is a model's name."""
    model, layout = job.model, job.layout
    wide = layout.tensor_model_parallel_size >= _WHOLE_SERVER
    return JobClass(
        gpu=job.gpu.name,
        precision=job.config.precision,
        layers=Layers.of_model(model),
        eager=model.transformer_impl.is_eager,
        exposed_tensor_parallelism=wide and not layout.tp_comm_overlap,
    )


def known_error(job: Job, calibration: Calibration) -> KnownError | None:
    """How far predictions are off published runs of the job's class; None where they lie on both
    sides, are near, or are few."""
    its = job_class(job)
    return next((error for error in calibration.known_errors if error.of == its), None)


_WHOLE_SERVER: Final = 8
"""Tensor-parallel ranks from which exposed collectives weigh (a judgement)."""
