"""The phases of a cycle of reinforcement learning or preference tuning, on one set of GPUs.

They follow one another, so that their bytes are never added up: a cycle needs what its highest
phase needs.
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import Final

from msgspec import Struct

NO_ROOM: Final = "the KV cache has no room for one sequence"
"""How the note of a rollout begins whose engine does not start."""


class PhaseName(StrEnum):
    """What a phase does."""

    ROLLOUT = "rollout"
    LOG_PROBS = "old log-probabilities"
    REFERENCE = "reference"
    VALUES = "values of the critic"
    CRITIC_UPDATE = "update of the critic"
    UPDATE = "update"
    WEIGHT_SYNC = "weight sync"


class PhaseMemory(Struct, frozen=True, kw_only=True):
    """Bytes of one rank at the highest moment of a phase, by what they are; they sum to what the
    card must give.

    weights, gradients, optimizer: of the model that is trained. reference, critic: all that those
    models hold. activations: kept ones and what a running pass needs. bucket: of a weight sync,
    with the tensor that is gathered for it. engine_weights, kv_cache, engine_other: of the rollout
    engine. overhead: buffers, fragmentation, CUDA context and communicators of the training.
    """

    weights: int = 0
    gradients: int = 0
    optimizer: int = 0
    reference: int = 0
    critic: int = 0
    activations: int = 0
    bucket: int = 0
    engine_weights: int = 0
    kv_cache: int = 0
    engine_other: int = 0
    overhead: int = 0

    @property
    def parts(self) -> dict[str, int]:
        """Bytes by their names."""
        return {name: getattr(self, name) for name in self.__struct_fields__}

    @property
    def total(self) -> int:
        """Sum of all."""
        return sum(self.parts.values())


class Phase(Struct, frozen=True, kw_only=True):
    """One phase, on the stage whose ranks need most in it.

    fit_probability: that no rank runs out of GPU memory in it. host_bytes: of host memory, of one
    rank, that wait there meanwhile. note: what is to be said of it.
    """

    name: PhaseName
    memory_bytes: PhaseMemory
    peak_reserved_bytes: int
    fit_probability: float
    host_bytes: int = 0
    note: str = ""


def deciding(phases: Sequence[Phase], certainty: float) -> Phase:
    """The phase that decides: the highest of those that do not fit, else of all."""
    unfit = [phase for phase in phases if phase.fit_probability < certainty]
    return max(unfit or phases, key=lambda phase: phase.peak_reserved_bytes)
