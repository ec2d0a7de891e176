"""Predictions made anew, with the advisor as it is now, of what was measured then."""

from pathlib import Path
from typing import Any

from advisor.base.errors import UserError
from advisor.base.fields import read_record
from advisor.frameworks.registry import parts_of
from advisor.hardware.calibration import load_calibration
from advisor.hardware.catalogue import load_gpu
from advisor.job.job import Job, JobConfig
from advisor.search.evaluate import Evaluator
from harness.backends.jobs import as_run
from harness.planner.forecast import predict
from harness.trial.result import TrialResult
from harness.trial.store import plain
from harness.trial.trial import Backend, Device, Trial


def predict_again(result: TrialResult, config_dir: Path | None = None) -> dict[str, Any] | None:
    """The trial of `result` with today's prediction; None where none can be made."""
    trial = read_record(Trial, result.trial, f"{result.name}: trial")
    workload, names = trial.workload, result.gpu_names
    if workload.backend is not Backend.NATIVE or workload.device is not Device.CUDA or not names:
        return None
    try:
        evaluator = evaluator_again(trial, names[0], config_dir)
        setting = parts_of(evaluator.job.config.framework).settings.parse(workload.recompute)
    except UserError:
        return None
    found: dict[str, Any] = plain(trial)
    return found | {"prediction": plain(predict(workload, evaluator.evaluate(setting).simulated))}


def evaluator_again(trial: Trial, gpu_name: str, config_dir: Path | None) -> Evaluator:
    """The job that a native trial ran, as it ran it."""
    workload, gpu = trial.workload, load_gpu(gpu_name, config_dir)
    job = Job(
        model=workload.model,
        layout=workload.layout,
        gpu=gpu,
        num_gpus=workload.layout.world_size,
        config=JobConfig(**workload.batch, expandable_segments=expands(trial)),
    )
    return Evaluator(as_run(job, workload), load_calibration(gpu, config_dir))


def expands(trial: Trial) -> bool:
    """Whether the trial's allocator had expandable segments."""
    return any("expandable_segments:True" in variable for variable in trial.variables)
