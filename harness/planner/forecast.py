"""What is expected of a trial before it runs: of the job as the backend really runs it."""

from contextlib import suppress
from typing import Final

from msgspec.structs import replace

from advisor.answer.evaluation import Evaluation
from advisor.base.errors import UserError
from advisor.base.limits import LARGEST
from advisor.job.job import Job
from advisor.models.spec import ModelSpec
from advisor.time.machine import machine
from harness.backends.native import predict as native
from harness.backends.native.host_time import waiting_seconds
from harness.trial.trial import Backend, Device, Prediction, Workload


def predict(workload: Workload, evaluation: Evaluation | None = None) -> Prediction:
    """What is expected of `workload` before it runs. Bytes and FLOPs of a layer come from the
    backend's own model where it has one, times and peaks from the advisor; it has none for the CPU,
    nor for a setting it does not know. UserError where a layer is larger than any can be."""
    saved, replayed = _layer_predictions(workload)
    _check_size(workload, saved, "keep", "bytes")
    _check_size(workload, replayed, "replay", "FLOPs")
    of_layer = Prediction(saved_bytes_per_layer=saved, replayed_flops_per_layer=replayed)
    if evaluation is None or workload.device is Device.CPU:
        return of_layer
    other_seconds = _other_seconds(workload, evaluation)
    return replace(
        of_layer,
        step_time_seconds=evaluation.step_time_seconds + other_seconds,
        peak_allocated_bytes=evaluation.peak.peak_allocated_bytes,
        peak_reserved_bytes=evaluation.peak_reserved_bytes,
        calibration=evaluation.calibration.name,
        fit_probability=evaluation.fit_probability,
        peak_stage=evaluation.peak.stage,
        peak_memory_bytes=evaluation.peak.memory_bytes,
        other_seconds=other_seconds,
    )


def _check_size(workload: Workload, size: int | None, does: str, of: str) -> None:
    if size is not None and size > LARGEST:
        each = f"for each micro batch of {workload.micro_batch_size}"
        relation = f"a layer would {does} {size:.0e} {of} {each}"
        hint = f"at most {LARGEST:.0e} can be run"
        raise UserError("job.seq_length", workload.seq_length, relation, hint)


def _other_seconds(workload: Workload, evaluation: Evaluation) -> float:
    """What a step of the native backend takes beyond Megatron's: the traffic of plain modules and
    of its own optimizer, and the GPU's waiting for the processor that queues them; and no data
    loading, nor the other fixed costs of a training loop."""
    if workload.backend is not Backend.NATIVE:
        return 0.0
    calibration = evaluation.calibration
    rates = machine(evaluation.job.gpu, calibration, workload.precision)
    with suppress(UserError):  # its trial will say why it is not run
        unfused = native.unfused_bytes(workload) / rates.memory_bytes_per_second
        optimizer = native.optimizer_bytes(workload) / rates.optimizer_bytes_per_second
        waiting = waiting_seconds(workload, evaluation.job.gpu, calibration)
        waiting -= evaluation.time_seconds.host
        return float(unfused + optimizer + waiting - calibration.step_seconds)
    return 0.0


_TOLD: Final = (
    *("main_grads_dtype", "precision", "fp8_param_gather", "use_precision_aware_optimizer"),
    *("main_params_dtype", "exp_avg_dtype", "exp_avg_sq_dtype", "optimizer_cpu_offload"),
    *("cuda_graph_impl", "moe_load_imbalance"),
)


def differences(asked: Job, run: Job, backend: Backend) -> tuple[str, ...]:
    """What the backend does otherwise than the job asks, in one line."""
    pairs = [
        (name, getattr(asked.model, name), getattr(run.model, name))
        for name in ModelSpec.__struct_fields__
    ]
    pairs += [(name, getattr(asked.config, name), getattr(run.config, name)) for name in _TOLD]
    changed = [f"{name} {now}" for name, before, now in pairs if now != before]
    if not changed:
        return ()
    return (f"the {backend} backend (and so its predictions) uses {', '.join(changed)}",)


def _layer_predictions(workload: Workload) -> tuple[int | None, int | None]:
    """Saved bytes and replayed FLOPs of one layer by the native backend's model of itself; None of
    another backend, and of a setting that it does not run: its trial will say why."""
    if workload.backend is not Backend.NATIVE:
        return None, None
    with suppress(UserError):
        return native.predict_layer(workload)
    return None, None
