"""What replays may free of a layer in some seconds: no bytes without running again the operator
that made them."""

from collections import defaultdict
from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

from advisor.layers.shape import RankShape
from advisor.layers.transformer import transformer_layer
from advisor.models.layer_kind import LayerKind
from advisor.plan.recompute_plan import kept_tensors
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
