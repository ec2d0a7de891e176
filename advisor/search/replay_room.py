"""What replays may free of a layer in some seconds: no bytes without running again the operator
that made them."""

from collections import Counter, defaultdict
from collections.abc import Iterable
from functools import lru_cache
from typing import Final, NamedTuple

from advisor.answer.evaluation import CLEAR
from advisor.layers.shape import RankShape
from advisor.layers.transformer import transformer_layer
from advisor.memory.chunk_units import kept_bytes
from advisor.models.layer_kind import LayerKind
from advisor.plan.recompute_plan import kept_tensors
from advisor.search.evaluate import Evaluator
from advisor.time.machine import Machine
from advisor.time.passes import forward_operator_seconds
from advisor.time.rank_links import Network


class Made(NamedTuple):
    """Bytes that one operator made of those that are kept, and seconds of its forward."""

    seconds: float
    num_bytes: int

    def times(self, layers: int, in_flight: int) -> "Made":
        """Of so many layers, whose bytes wait for so many microbatches at once."""
        return Made(self.seconds * layers, self.num_bytes * layers * in_flight)


@lru_cache(maxsize=8192)
def kept_by_operator(
    shape: RankShape, machine: Machine, network: Network, kind: LayerKind
) -> tuple[Made, ...]:
    """What one layer keeps of one microbatch where nothing is replayed; of no seconds what it was
    given."""
    operators = transformer_layer(shape, kind)
    maker: dict[str, str] = {}
    for operator in operators:
        for tensor in (*operator.outputs, *operator.saved):
            maker.setdefault(tensor.storage.name, operator.name)
    num_bytes: dict[str | None, int] = defaultdict(int)
    for name, tensor in kept_tensors(operators, ()).items():
        num_bytes[maker.get(name)] += tensor.num_bytes
    seconds = forward_operator_seconds(shape, machine, network, kind)
    return tuple(Made(seconds[by] if by else 0.0, size) for by, size in num_bytes.items())


def most_freed(made: Iterable[Made], seconds: float) -> float:
    """Bytes that replays of so many seconds free at most: the fractional knapsack, which no choice
    of whole operators exceeds (Dantzig 1957)."""
    freed, left = 0.0, max(0.0, seconds)
    for one in sorted(made, key=lambda made: made.seconds / max(1, made.num_bytes)):
        if one.seconds > left:
            return freed + one.num_bytes * left / one.seconds
        freed += one.num_bytes
        left -= one.seconds
    return freed


_ROUNDING: Final = 1e-9
"""Share by which sums of seconds may differ that are taken in another order."""


def may_fit_within(evaluator: Evaluator, seconds: float) -> bool:
    """Whether replays alone may make the job fit in a step of so many seconds; False where none
    can, whatever they are."""
    if evaluator.learned is not None or evaluator.shape is not evaluator.mean_shape:
        return True
    none, memory, shape = evaluator.plans(evaluator.none), evaluator.memory, evaluator.shape
    kept = [kept_bytes(shape, plan) for plan in none]
    stages = range(evaluator.job.layout.pipeline_model_parallel_size)
    held = [sum(kept[group] * n for group, n in memory.in_flight(stage)) for stage in stages]
    worst = max(stages, key=lambda stage: memory.fixed[stage].total + held[stage])
    made = [
        one.times(layers, number)
        for group, number in memory.in_flight(worst)
        for kind, layers in Counter(evaluator.pipeline.groups[group]).items()
        for one in kept_by_operator(shape, *evaluator.rates, kind)
    ]
    room = evaluator.time.most_replay(none, worst, seconds) * (1 + _ROUNDING)
    least = memory.reserved_of(worst, held[worst] - int(most_freed(made, room)))
    return least.fit_probability(evaluator.budget_bytes) > 1 - CLEAR
