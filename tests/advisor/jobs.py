"""Jobs from a model, a layout and the sizes of their batches, and those of experiments' files."""

from typing import Any

from msgspec.structs import replace

from advisor.hardware.calibration import load_calibration
from advisor.hardware.catalogue import load_gpu
from advisor.hardware.gpu import Gpu
from advisor.job.job import Job, JobConfig
from advisor.job.layout import ParallelLayout
from advisor.models.presets import load_model
from advisor.models.spec import ModelSpec
from advisor.request.recipes import load_experiment
from advisor.search.evaluate import Evaluator

_DEGREES = {
    "tp": "tensor_model_parallel_size",
    "sp": "sequence_parallel",
    "pp": "pipeline_model_parallel_size",
    "vpp": "virtual_pipeline_model_parallel_size",
    "cp": "context_parallel_size",
    "ep": "expert_model_parallel_size",
    "etp": "expert_tensor_parallel_size",
    "dp": "data_parallel_size",
}


def parallel(**degrees: Any) -> dict[str, Any]:
    """Fields of a layout, a request or a case by the field's short words."""
    return {_DEGREES[short]: size for short, size in degrees.items()}


def batches(seq_length: int, micro: int, whole: int) -> dict[str, Any]:
    """Fields of a request, a workload or a job."""
    return {"seq_length": seq_length, "micro_batch_size": micro, "global_batch_size": whole}


def job_config(seq_length: int, micro_batch: int, global_batch: int, **more: Any) -> JobConfig:
    return JobConfig(**batches(seq_length, micro_batch, global_batch), **more)


def job_of(
    model: ModelSpec | str, layout: ParallelLayout, config: JobConfig, gpu: Gpu | str = "H100"
) -> Job:
    """On as many GPUs as the layout has ranks; text is a name of the catalogue."""
    model = load_model(model) if isinstance(model, str) else model
    gpu = load_gpu(gpu) if isinstance(gpu, str) else gpu
    return Job(model=model, layout=layout, config=config, gpu=gpu, num_gpus=layout.world_size)


def experiment_job(**config: Any) -> Job:
    """Llama-3 70B on 32 H100 as published, with changes of its `config`."""
    made = load_experiment("llama3_70b_32xh100")
    model, changed = made.configure(load_model(made.model)), replace(made.config, **config)
    return job_of(model, made.layout, changed)


def evaluator_of(job: Job) -> Evaluator:
    """With the calibration of the job's own GPU."""
    return Evaluator(job, load_calibration(job.gpu))
