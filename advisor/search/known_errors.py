"""Jobs of which published runs say that predictions are off, and to which side."""

from typing import Final

from advisor.hardware.calibration import Calibration, JobClass, KnownError, Layers
from advisor.job.job import Job

_WHOLE_SERVER: Final = 8
"""Tensor-parallel ranks from which exposed collectives weigh (a judgement)."""


def job_class(job: Job) -> JobClass:
    """What of a job says whose runs it is like: nothing of it is a model's name."""
    model, layout = job.model, job.layout
    layers = Layers.DENSE
    if model.num_moe_experts is not None:
        layers = Layers.LATENT_EXPERTS if model.multi_latent_attention else Layers.EXPERTS
    wide = layout.tensor_model_parallel_size >= _WHOLE_SERVER
    return JobClass(
        gpu=job.gpu.name,
        precision=job.config.precision,
        layers=layers,
        eager=model.transformer_impl.is_eager,
        exposed_tensor_parallelism=wide and not layout.tp_comm_overlap,
    )


def known_error(job: Job, calibration: Calibration) -> KnownError | None:
    """How far predictions are off published runs of the job's class; None where they lie on both
    sides, are near, or are few."""
    its = job_class(job)
    return next((error for error in calibration.known_errors if error.of == its), None)
