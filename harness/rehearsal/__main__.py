"""Rehearses the stages of ONE trial in a fresh process: ``python -m harness.rehearsal FOLDER``."""

import importlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from msgspec.structs import replace

from harness.backends.lone_ranks import lone_ranks
from harness.execution.worker import Tools, main, prepare_process
from harness.measure.memory import cap_memory
from harness.measure.training_step import Measured, Recorder, Silent, StepFactory
from harness.rehearsal.prediction import explained
from harness.trial.result import MemoryPeak, Phase, Rehearsed, StagePeaks, StepTimes
from harness.trial.store import TrialFolder
from harness.trial.trial import Device, MeasurementPlan, Prediction, Trial


class StageByStage:
    """A training step whose every run rehearses the next stage: so the worker watches each."""

    stage = 0

    def __init__(self, trial: Trial) -> None:
        self._trial, self._ranks = trial, lone_ranks(trial.workload)
        self._waiting = list(trial.stages)
        self._found: list[Rehearsed] = []
        if trial.workload.device is Device.CUDA:
            cap_memory(trial.memory_bytes)

    def run(self, recorder: Recorder) -> float:
        """Rehearse the next stage; there is no loss to tell."""
        recorder.phase(Phase.FORWARD)
        stage = self._waiting.pop(0)
        print(f"stage {stage}", flush=True)
        one = self._ranks.rehearse(stage, self._trial.measurement)
        if self._trial.workload.device is Device.FAKE:
            one = replace(one, peaks=replace(one.peaks, note=self._note(one.peaks)))
        self._found.append(one)
        return 0.0

    def _note(self, rehearsed: StagePeaks) -> str:
        """Tensors that a difference worth explaining may come from."""
        for predicted in (self._trial.prediction or Prediction()).stages:
            if predicted.stage == rehearsed.stage and explained(predicted, rehearsed):
                return self._ranks.storage_differences()
        return ""

    def found(self) -> Measured:
        """What all runs gave."""
        stages = tuple(one.peaks for one in self._found)
        memory = tuple(
            MemoryPeak(
                rank=self._ranks.number(peaks.stage),
                stage=peaks.stage,
                allocated=peaks.peak,
                reserved=peaks.reserved,
                nvml_used=peaks.device_used,
            )
            for peaks in stages
        )
        phases = self._found[0].phases
        return Measured(stages=stages, memory=memory, times=self._slowest(), phases=phases)

    def _slowest(self) -> StepTimes | None:
        """Step by step the slowest stage; there is no time on fake tensors."""
        device = self._trial.workload.device
        if device is Device.FAKE:
            return None
        steps = zip(*(one.seconds for one in self._found), strict=True)
        clock = "cuda_event" if device is Device.CUDA else "host"
        return StepTimes(seconds=tuple(max(step) for step in steps), warmup_seconds=(), clock=clock)

    def saved_bytes_per_layer(self) -> None:
        """Not counted."""

    def flops(self) -> None:
        """Not told: single ranks do a part of the job's."""

    def close(self) -> None:
        """Nothing is left: every stage was freed."""


def tools_for(trial: Trial) -> Tools:
    """A worker's tools that rehearse instead of running the job."""
    steps: list[StageByStage] = []

    def build(workload: Any, seed: int) -> StageByStage:
        steps.append(StageByStage(trial))
        return steps[0]

    def measure(step: Any, plan: MeasurementPlan, device: Device, limit: float | None) -> Measured:
        for _ in trial.stages:
            step.run(Silent())
        return steps[0].found()

    environment = importlib.import_module("harness.measure.fingerprint")
    return Tools(
        build=lambda backend: cast(StepFactory, build),
        measure=measure,
        fingerprint=environment.fingerprint,
    )


def run(argv: Sequence[str]) -> int:
    """Rehearse the trial of folder `argv[0]`; exit codes as the worker's."""
    trial = TrialFolder(Path(argv[0])).trial()
    return main(argv, lambda: tools_for(cast(Trial, trial)))


if __name__ == "__main__":
    prepare_process()
    sys.exit(run(sys.argv[1:]))
