"""What is expected of a trial before it runs: of the job as the backend really runs it."""

from dataclasses import fields, replace
from importlib import import_module
from typing import Any, Final

from advisor.answer import Evaluation
from advisor.dtypes import DType
from advisor.errors import UserError
from advisor.job import Job
from advisor.models.spec import ModelSpec
from harness.trial import Backend, Device, Prediction, Workload

_NATIVE_PREDICT: Final = "harness.backends.native.predict"


def predict(workload: Workload, evaluation: Evaluation | None = None) -> Prediction:
    """What is expected of `workload` before it runs.

    Bytes and FLOPs of a layer come from the backend's own model where it has one. Times and peaks
    are the advisor's for the GPU; it has none for the CPU, nor for a setting it does not know.
    """
    saved, replayed = _layer_predictions(workload)
    if evaluation is None or workload.device is Device.CPU:
        return Prediction(
            step_time_seconds=None,
            peak_allocated_bytes=None,
            peak_reserved_bytes=None,
            saved_bytes_per_layer=saved,
            replayed_flops_per_layer=replayed,
            calibration="none",
        )
    return Prediction(
        step_time_seconds=evaluation.step_time_seconds,
        peak_allocated_bytes=evaluation.peak.peak_allocated_bytes,
        peak_reserved_bytes=evaluation.peak.peak_reserved_bytes,
        saved_bytes_per_layer=saved,
        replayed_flops_per_layer=replayed,
        calibration=evaluation.calibration.name,
        fit_probability=evaluation.fit_probability,
    )


def as_run(job: Job, workload: Workload) -> Job:
    """`job` with the layers and gradients that the native backend runs it with; others run it as
    it is."""
    model = _native_predict(workload)
    if model is None or not hasattr(model, "native_model"):
        return job
    # Its gradients are accumulated in the type of the parameters.
    config = replace(job.config, main_grads_dtype=DType.BF16)
    return replace(job, model=model.native_model(workload), config=config)


def differences(asked: Job, run: Job) -> tuple[str, ...]:
    """What the backend does otherwise than the job asks, in one line."""
    pairs = [
        (field.name, getattr(asked.model, field.name), getattr(run.model, field.name))
        for field in fields(ModelSpec)
    ]
    grads = (asked.config.main_grads_dtype, run.config.main_grads_dtype)
    changed = [f"{name} {now}" for name, before, now in (*pairs, ("main_grads_dtype", *grads))
               if now != before]  # fmt: skip
    if not changed:
        return ()
    return (f"the native backend runs, and is predicted, with {', '.join(changed)}",)


def _layer_predictions(workload: Workload) -> tuple[int | None, int | None]:
    """Saved bytes and replayed FLOPs of one layer by the backend's own model; None without one."""
    model = _native_predict(workload)
    if model is None:
        return None, None
    try:
        return (
            model.predict_saved_bytes_per_layer(workload),
            model.predict_replayed_flops_per_layer(workload),
        )
    except UserError:  # a setting that the backend does not run: its trial will say why
        return None, None


def _native_predict(workload: Workload) -> Any:
    """The native backend's model of itself; None for other backends and where it is not built."""
    if workload.backend is not Backend.NATIVE:
        return None
    try:
        return import_module(_NATIVE_PREDICT)
    except ModuleNotFoundError as error:
        if error.name and _NATIVE_PREDICT.startswith(error.name):
            return None
        raise
