"""How far predictions for jobs of a class are known to be off."""

from typing import Final

from advisor.hardware.calibration import Calibration, JobClass, KnownError, Layers
from advisor.job.job import Job
from advisor.models.spec import ModelSpec


def step_time_error(model: ModelSpec, calibration: Calibration) -> float:
    """Half-width of the band around the step times of a model."""
    experts = model.num_moe_experts is not None
    return calibration.error_of(experts=experts, eager=model.transformer_impl.is_eager)


def job_class(job: Job) -> JobClass:
    """What of a job says whose runs it is like: nothing of it is a model's name."""
    model, layout = job.model, job.layout
    wide = layout.tensor_model_parallel_size >= _WHOLE_SERVER
    return JobClass(
        gpu=job.gpu.name,
        precision=job.config.precision,
        layers=Layers.of(model),
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
