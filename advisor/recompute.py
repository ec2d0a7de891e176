"""RecomputePlan: which operators are replayed in the backward, and what is kept at their edges.

Memory and cost know only this; a framework's own words become a plan in advisor.frameworks.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from advisor.layers.operators import Module, Operator, Tensor


@dataclass(frozen=True, slots=True)
class ReplayRun:
    """Consecutive modules of a layer that are replayed together.

    discards_output: the output's storage is freed once its readers have run forward, and written
    again before the backward of module `replayed_before`; the replay's own output tensor lives
    beside it (Megatron's CheckpointWithoutOutput, tensor_parallel/random.py).
    extra_kept_bytes: small arguments that the checkpoint keeps (an attention-mask type, say).
    """

    modules: frozenset[Module]
    discards_output: bool = False
    replayed_before: Module | None = None
    extra_kept_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Segment:
    """`num_layers` consecutive layers under one regime.

    whole: one checkpoint around all of them: only the first layer's input is kept, cut by TP where
    `shards_input` (Megatron's distribute_saved_activations). Otherwise each layer has its `runs`.
    copies: so many such segments follow each other.
    """

    num_layers: int
    whole: bool = False
    shards_input: bool = False
    runs: tuple[ReplayRun, ...] = ()
    copies: int = 1

    @property
    def total_layers(self) -> int:
        """Layers of all copies."""
        return self.num_layers * self.copies


@dataclass(frozen=True, slots=True)
class RecomputePlan:
    """The segments of one model chunk, in layer order."""

    segments: tuple[Segment, ...]

    @property
    def num_layers(self) -> int:
        """Layers of the chunk."""
        return sum(segment.total_layers for segment in self.segments)


@lru_cache(maxsize=8192)
def kept_tensors(operators: tuple[Operator, ...], runs: tuple[ReplayRun, ...]) -> dict[str, Tensor]:
    """Storages of one layer that stay alive from forward to backward under `runs`, by name.

    Outside runs: what each operator saves. For a run: the inputs that it reads from outside it.
    Outputs of output-discarding runs are dropped wherever else they are kept. A view keeps its
    whole storage. The result is shared: do not change it.
    """
    kept: dict[str, Tensor] = {}
    discarded: set[str] = set()
    for operator, run in zip(operators, assign_runs(operators, runs), strict=True):
        if run is None:
            _keep(kept, operator.saved)
    for run in runs:
        members = run_members(operators, run)
        produced = {tensor.name for operator in members for tensor in operator.outputs}
        for operator in members:
            _keep(kept, (t for t in operator.inputs if t.name not in produced))
        if run.discards_output:
            discarded |= {t.name for t in members[-1].outputs} if members else set()
    return {name: tensor for name, tensor in kept.items() if name not in discarded}


def _keep(kept: dict[str, Tensor], tensors: Iterable[Tensor]) -> None:
    for tensor in tensors:
        kept[tensor.storage.name] = tensor.storage


def assign_runs(
    operators: tuple[Operator, ...], runs: tuple[ReplayRun, ...]
) -> tuple[ReplayRun | None, ...]:
    """The run that replays each operator; None where it is not replayed."""
    return tuple(
        next((run for run in runs if operator.module in run.modules), None)
        for operator in operators
    )


def run_members(operators: tuple[Operator, ...], run: ReplayRun) -> tuple[Operator, ...]:
    """Operators that `run` replays, in order."""
    return tuple(operator for operator in operators if operator.module in run.modules)
