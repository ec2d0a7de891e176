"""What a picture of one training step needs: small records, from which the folds in
advisor.step.timeline and advisor.step.live_memory make times and levels."""

from msgspec import Struct

from advisor.memory.arena import Peak
from advisor.memory.resident import NamedBytes
from advisor.time.job_time import StepTail


class PassSeconds(Struct, frozen=True, kw_only=True):
    """Seconds of one microbatch through one chunk in one direction, in the order in which they are
    drawn; compute is that of the pass itself. replay: of the backward alone, its communication
    included. communication, offload: what no kernel hides; waiting: for the host processor."""

    replay: float = 0.0
    compute: float
    communication: float = 0.0
    offload: float = 0.0
    waiting: float = 0.0

    @property
    def total(self) -> float:
        """Sum of all."""
        return self.replay + self.compute + self.communication + self.offload + self.waiting

    @property
    def parts(self) -> tuple[tuple[str, float], ...]:
        """Name and seconds of each part that takes time, in order."""
        named = ((name, getattr(self, name)) for name in self.__struct_fields__)
        return tuple((name, seconds) for name, seconds in named if seconds)


class ChunkPass(Struct, frozen=True, kw_only=True):
    """One microbatch through one virtual chunk of one stage.

    Bytes of one rank above what was alive before its forward: kept until its backward ends; the
    most in either pass, with the operator that runs then; left until the chunk runs forward again.
    """

    layers: int
    embedding: bool
    head: bool
    forward: PassSeconds
    backward: PassSeconds
    kept: int
    most_forward: Peak
    most_backward: Peak
    left: int


class StageStep(Struct, frozen=True, kw_only=True):
    """What one rank of a pipeline stage does and holds in a step.

    static: what is there throughout: weights, gradients, optimizer states, resident buffers, and
    terms that no pass explains (pools of CUDA graphs, what measured runs have more). sent: bytes of
    one hidden state that the schedule holds. optimizer: beyond `static` while the optimizer runs.
    """

    stage: int
    static: tuple[NamedBytes, ...]
    chunks: tuple[ChunkPass, ...]
    sent: int
    optimizer: Peak

    @property
    def static_bytes(self) -> int:
        """Bytes that are there throughout."""
        return sum(term.num_bytes for term in self.static)


class TrainingStep(Struct, frozen=True, kw_only=True):
    """One step of a setting: its stages, of each a rank, and what comes behind the pipeline.

    pipeline_seconds: from the first forward to the last backward, as the step time has it; with
    `tail` they are `seconds`, that of Evaluation.step_time_seconds.
    """

    microbatches: int
    stages: tuple[StageStep, ...]
    pipeline_seconds: float
    tail: StepTail

    @property
    def seconds(self) -> float:
        """Of the step."""
        return self.pipeline_seconds + self.tail.total

    @property
    def schedule(self) -> tuple[int, int, int]:
        """Stages, chunks a stage, microbatches: what the order of passes follows from."""
        return len(self.stages), len(self.stages[0].chunks), self.microbatches
