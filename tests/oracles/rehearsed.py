"""Whole ranks rehearsed on fake tensors next to the advisor's prediction of them."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from msgspec.structs import replace

from advisor.base.dtypes import DType
from advisor.frameworks.megatron.setting import NONE, parse_setting
from advisor.hardware.calibration import load_calibration
from advisor.hardware.catalogue import load_gpu
from advisor.job.job import Job
from advisor.job.layout import ParallelLayout
from advisor.memory.static import StaticMemory
from advisor.models.presets import load_model
from advisor.search.evaluate import Evaluator
from harness.backends.jobs import as_run
from harness.backends.megatron_core.case import MegatronCase
from harness.backends.megatron_core.fake.gpu_kernels import FlashLikeAttention
from harness.backends.megatron_core.fake.without_gpu import megatron_without_gpu
from harness.backends.megatron_core.installed import installed_revision
from harness.backends.megatron_core.model import transformer_config
from harness.backends.megatron_core.rehearsal.rank import enough_microbatches, rehearse_fake
from harness.backends.megatron_core.trainer import MegatronTraining
from harness.backends.megatron_core.translate import megatron_case
from harness.measure.memory import storage_bytes
from harness.rehearsal.prediction import predicted_stages
from harness.rehearsal.trials import workload_of
from harness.trial.result import StagePeaks
from harness.trial.trial import Device
from tests.advisor.jobs import job_config

from .recorded import measured

GPU = load_gpu("H100")
FIGURES = ("weights", "gradients", "optimizer", "forward", "backward", "optimizer_step")


def job_of(
    model: str,
    layers_per_chunk: int,
    *,
    seq_length: int = 2048,
    micro_batch_size: int = 1,
    grads: DType = DType.FP32,
    options: dict[str, Any] | None = None,
    release: str = "",
    **layout: Any,
) -> Job:
    """A preset cut to so many layers a chunk, on as many GPUs as its degrees make, under `release`
    of Megatron Core (major.minor), by default the one that is run."""
    degrees = {"sequence_parallel": layout.get("tensor_model_parallel_size", 1) > 1} | layout
    spread = ParallelLayout(**degrees)
    depth = layers_per_chunk * spread.num_model_chunks
    cut = replace(load_model(model), num_layers=depth, **(options or {}))
    microbatches = 2 * spread.pipeline_model_parallel_size
    config = job_config(
        seq_length,
        micro_batch_size,
        microbatches * spread.data_parallel_size * micro_batch_size,
        main_grads_dtype=grads,
        framework_version=release or installed_revision().core,
    )
    return Job(model=cut, layout=spread, config=config, gpu=GPU, num_gpus=spread.world_size)


def rehearse(case: MegatronCase, stage: int) -> StagePeaks:
    """The peaks of one stage, rehearsed now."""
    return rehearse_fake(case, stage).peaks


def recall(case: MegatronCase, stage: int) -> StagePeaks:
    """The same, or as they were recorded."""

    def by() -> tuple[int, ...]:
        peaks = rehearse(case, stage)
        return tuple(getattr(peaks, name) for name in FIGURES)

    found = measured("rehearse", case, stage, by=by)
    return StagePeaks(stage=stage, **dict(zip(FIGURES, found, strict=True)))


def compared(
    job: Job,
    spec: str,
    stages: Iterable[int] | None = None,
    peaks: Callable[[MegatronCase, int], StagePeaks] = recall,
) -> Iterator[tuple[StagePeaks, StagePeaks]]:
    """Predicted and rehearsed, of every stage or of those given."""
    wanted = tuple(range(job.layout.pipeline_model_parallel_size) if stages is None else stages)
    case = megatron_case(workload_of(job, spec, Device.FAKE))
    for predicted in predictions(job, spec, wanted):
        yield predicted, peaks(enough_microbatches(case, predicted.stage), predicted.stage)


def predictions(job: Job, spec: str, stages: tuple[int, ...]) -> tuple[StagePeaks, ...]:
    """What the advisor predicts of these stages."""
    run = as_run(job, workload_of(job, spec, Device.FAKE))
    evaluator = Evaluator(run, load_calibration(job.gpu, None))
    return predicted_stages(evaluator, spec, stages, Device.FAKE)


def static_of(job: Job) -> StaticMemory:
    """What the advisor says lives from step to step on the only stage of `job`."""
    return Evaluator(job, load_calibration(job.gpu, None)).stage_detail(NONE, 0).fixed.static


def evaluated_peak(job: Job, spec: str) -> int:
    """The advisor's peak of stage 0 without the buffers of libraries, for the job as it is run."""
    workload = workload_of(job, spec, Device.FAKE)
    evaluator = Evaluator(as_run(job, workload), load_calibration(job.gpu, None))
    detail = evaluator.stage_detail(parse_setting(spec), 0)
    names = ("global gather buffer", "rotary frequencies")
    buffers = sum(term.num_bytes for term in detail.fixed.buffers if term.name in names)
    return detail.fixed.static.total + buffers + detail.activations.total


def resident_bytes(job: Job) -> tuple[int, ...]:
    """Weights, gradients and optimizer states as Megatron makes them; step counters left out."""
    case = megatron_case(workload_of(job, "none", Device.FAKE))
    return measured("resident_bytes", case, by=lambda: _resident_bytes(case))


def _resident_bytes(case: MegatronCase) -> tuple[int, ...]:
    with megatron_without_gpu(case):
        config = transformer_config(case, perform_initialization=False)
        training = MegatronTraining(case, config, FlashLikeAttention)
        training.optimizer.step()
        found = training.resident()
        training.close()
    found["optimizer"] = [tensor for tensor in found["optimizer"] if tensor.dim()]
    return tuple(map(storage_bytes, found.values()))
