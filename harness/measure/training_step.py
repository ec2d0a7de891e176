"""What every backend in our own worker offers, a training step, and what measuring it gives."""

from typing import Protocol

from msgspec import Struct

from harness.trial import result
from harness.trial.trial import Workload


class Recorder(Protocol):
    """Told by a step which phase begins; measurements hang on it."""

    def phase(self, phase: result.Phase) -> None:
        """`phase` begins now, on this rank."""

    def replay(self, begins: bool) -> None:
        """A replay within the backward begins, or ends, now; told where the backend knows."""


class Silent:
    """A Recorder for steps of which only the whole counts."""

    def phase(self, phase: result.Phase) -> None:
        """Nothing to do."""

    def replay(self, begins: bool) -> None:
        """Nothing to do."""


class TrainingStep(Protocol):
    """One rank's training loop of one workload, built and ready."""

    def run(self, recorder: Recorder) -> float:
        """One optimizer step over all its microbatches; returns the loss (NaN is the caller's to
        judge). Calls `recorder.phase` at the start of forward, backward and optimizer."""

    def saved_bytes_per_layer(self) -> int | None:
        """Bytes that autograd keeps for one layer and one microbatch, counted on a forward."""

    def flops(self) -> result.Flops:
        """Model and hardware FLOPs of one step, all ranks; replays counted where possible."""

    @property
    def stage(self) -> int:
        """Pipeline stage of this rank."""

    def close(self) -> None:
        """Free what the step holds: process groups, graphs."""


class Measured(Struct, frozen=True, kw_only=True):
    """What one process saw: of its rank, or of the stages that it rehearsed. memory.allocated on
    CUDA is the peak over the timed steps; on a CPU, where counting slows the step, that of one more
    step after them, and so is every timeline. phases are of one more step on CUDA. loss is that of
    the timed steps; load the GPU's state meanwhile."""

    times: result.StepTimes | None
    memory: tuple[result.MemoryPeak, ...]
    timeline: tuple[result.TimelinePoint, ...] = ()
    phases: tuple[result.PhaseTime, ...] = ()
    loss: tuple[float, ...] = ()
    concerns: tuple[result.Concern, ...] = ()
    stages: tuple[result.StagePeaks, ...] = ()
    load: result.GpuLoad | None = None
    pruned: bool = False


class StepFactory(Protocol):
    """How a backend makes a step; raises UserError for what it cannot run."""

    def __call__(self, workload: Workload, seed: int) -> TrainingStep:
        """Build model, optimizer and data for this rank (RANK, WORLD_SIZE, LOCAL_RANK)."""
