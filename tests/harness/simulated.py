"""A simulated device: the advisor's own step, its terms off by known factors, and every layout and
setting by a little more; its results are written as the harness writes them."""

from collections.abc import Iterable
from math import exp
from pathlib import Path
from random import Random

from msgspec import Struct
from msgspec.structs import replace

from advisor.answer.answer import Answer
from advisor.answer.evaluation import Evaluation, StageMemory, TimeBreakdown
from advisor.job.job import Job
from advisor.search.evaluate import Evaluator
from harness.backends.jobs import differences_as_run
from harness.trial.result import MemoryPeak, StepTimes, TrialResult, TrialStatus
from harness.trial.store import RunFolder, plain
from harness.trial.trial import Backend, Device, MeasurementPlan, Trial, Workload


class SimulatedDevice(Struct, frozen=True, kw_only=True):
    """Factors on the terms of a step; standard deviations of a layout's and a setting's own error;
    shares by which activations and the allocator's unused bytes are more than predicted."""

    base: float = 1.12
    recompute: float = 1.25
    communication: float = 1.5
    of_job: float = 0.015
    of_setting: float = 0.008
    activations: float = 0.01
    unused: float = 0.004
    seed: int = 0

    def seconds(self, evaluation: Evaluation) -> float:
        """What a step takes here."""
        time = evaluation.time_seconds
        moved: TimeBreakdown = replace(
            time,
            recompute=time.recompute * self.recompute,
            exposed_communication=time.exposed_communication * self.communication,
            stragglers=time.stragglers * self.communication,
        )
        layout, spec = evaluation.job.layout, evaluation.setting.spec
        own = Random(f"{self.seed} {layout}").gauss(0, self.of_job)
        own += Random(f"{self.seed} {layout} {spec}").gauss(0, self.of_setting)
        return self.base * moved.total * exp(own)

    def run(
        self, evaluations: Iterable[Evaluation], folder: Path, status: TrialStatus = TrialStatus.OK
    ) -> None:
        """One trial of each, into `folder`."""
        for evaluation in evaluations:
            trial = _trial(evaluation)
            place = RunFolder(folder).trial(trial.name)
            place.create(trial)
            place.write_result(replace(self._result(evaluation, trial), status=status))

    def _result(self, evaluation: Evaluation, trial: Trial) -> TrialResult:
        seconds, peak = self.seconds(evaluation), evaluation.simulated.peak
        allocated = peak.peak_allocated_bytes + int(self.activations * moving(peak))
        fullest = max(
            Evaluator(evaluation.job, evaluation.calibration).stage_details(
                evaluation.setting, simulated=True
            ),
            key=lambda detail: detail.reserved.total,
        ).reserved
        reserved = allocated + fullest.fragmentation + int(self.unused * allocated)
        outside = sum(term.num_bytes for term in fullest.fixed)
        return TrialResult(
            name=trial.name,
            status=TrialStatus.OK,
            trial=plain(trial),
            environment={"gpus": [{"torch_name": "NVIDIA H100 80GB HBM3"}]},
            started_at="2026-01-01T00:00:00+00:00",
            wall_seconds=60.0,
            times=StepTimes(seconds=(seconds,) * 5, warmup_seconds=(), clock="cuda_event"),
            memory=(
                MemoryPeak(
                    rank=0,
                    stage=peak.stage,
                    allocated=allocated,
                    reserved=reserved,
                    nvml_used=reserved + outside,
                ),
            ),
        )


def moving(peak: StageMemory) -> int:
    """Allocated bytes of a peak that do not live from step to step."""
    return peak.peak_allocated_bytes - peak.memory_bytes.fixed


def _trial(evaluation: Evaluation) -> Trial:
    job: Job = evaluation.job
    config = job.config
    workload = Workload(
        model=job.model,
        layout=job.layout,
        seq_length=config.seq_length,
        micro_batch_size=config.micro_batch_size,
        global_batch_size=config.global_batch_size,
        precision=config.precision,
        recompute=evaluation.setting.spec,
        backend=Backend.COMMAND,
        device=Device.CUDA,
        main_grads_dtype=config.main_grads_dtype,
    )
    as_run = differences_as_run(job, workload)
    return Trial(workload=workload, measurement=MeasurementPlan(), as_run=as_run)


def fitting_rows(*answers: Answer) -> list[Evaluation]:
    """Every row of some answers that fits."""
    return [
        row.evaluation for answer in answers for row in answer.candidates if row.evaluation.fits
    ]
