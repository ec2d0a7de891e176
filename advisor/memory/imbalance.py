"""Tokens are not dealt evenly to the experts: what the busiest rank holds beyond the mean.

How much the busiest expert gets over the mean of all is published as MaxVio: 0.72 and 0.52 for
models of 1B and 3B with 64 experts trained with an auxiliary loss, 0.04 with biases that balance
(Wang et al. 2024, "Auxiliary-Loss-Free Load Balancing Strategy for Mixture-of-Experts",
arXiv 2408.15664, table 2: over the whole validation set). Of a job that is to live through its
first steps too, before any bias has learnt, those of the loss are taken: loads of experts as
independent and normal, whose largest of 64 lies so far above the mean. A rank has several experts,
in every layer others, so that their sums differ less.
"""

from collections.abc import Sequence
from functools import lru_cache
from math import erf, inf, sqrt
from operator import mul
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from advisor.job.job import Job
from advisor.layers.operators import Operator
from advisor.layers.shape import RankShape
from advisor.layers.transformer import transformer_layer
from advisor.models.layer_kind import FeedForward, LayerKind
from advisor.plan.recompute_plan import RecomputePlan, ReplayRun, Segment, kept_tensors

_LARGEST_OF_64: Final = (0.72 + 0.52) / 2
_SPREAD: Final = 0.5
"""Of the bytes, one sigma: a judgement, between a loss that balances worse and biases."""
_STATED: Final = 1.2816
"""Sigmas that the stated peak has beyond the mean: 9 of 10 runs stay within it, as likely as a job
must fit (answer/evaluation.py LIKELY). A peak is the highest of all steps and microbatches."""


class Unevenness(Struct, frozen=True):
    """Bytes of the busiest rank beyond what balanced routing gives, and one sigma of them; what 9
    of 10 runs stay within (`stated`). doubled: what twice the mean in every layer would add."""

    mean: int = 0
    spread: float = 0.0
    stated: int = 0
    doubled: int = 0

    def beyond(self, hidden: int) -> "Unevenness":
        """Of what exceeds `hidden` bytes, by which something else peaks higher than the layers."""
        mean, stated = (max(0, each - hidden) for each in (self.mean, self.stated))
        return replace(self, mean=mean, stated=stated)


EVEN: Final = Unevenness()


class RoutedBytes(Struct, frozen=True):
    """Bytes of a chunk that grow with the tokens that a rank gets, were they doubled: kept of one
    microbatch, and of one layer that runs. layers: those with experts. again: of a running layer
    what it has not kept."""

    kept: int = 0
    running: int = 0
    layers: int = 0
    again: int = 0


@lru_cache(maxsize=8192)
def routed_bytes(shape: RankShape, plan: RecomputePlan) -> RoutedBytes:
    """Those of a chunk under `plan`."""
    found = RoutedBytes()
    for segment in plan.segments:
        one = _of_segment(shape, segment)
        found = RoutedBytes(
            kept=found.kept + one.kept * segment.copies,
            running=max(found.running, one.running),
            layers=found.layers + one.layers * segment.copies,
            again=max(found.again, one.again),
        )
    return found


@lru_cache(maxsize=8192)
def _of_segment(shape: RankShape, segment: Segment) -> RoutedBytes:
    kept = running = layers = again = 0
    for kind in segment.layers:
        if kind.feed_forward is not FeedForward.MOE:
            continue
        layers += 1
        runs = _more_kept(shape, kind, ())
        keeps = 0 if segment.whole else _more_kept(shape, kind, segment.runs)
        kept, running, again = kept + keeps, max(running, runs), max(again, runs - keeps)
    return RoutedBytes(kept, running, layers, again)


@lru_cache(maxsize=8192)
def _more_kept(shape: RankShape, kind: LayerKind, runs: tuple[ReplayRun, ...]) -> int:
    """Bytes that one layer keeps more with twice the tokens."""
    twice = replace(shape, moe_load_imbalance=2 * shape.moe_load_imbalance)
    even, busy = (transformer_layer(one, kind) for one in (shape, twice))
    return _kept(busy, runs) - _kept(even, runs)


def _kept(operators: tuple[Operator, ...], runs: tuple[ReplayRun, ...]) -> int:
    return sum(tensor.num_bytes for tensor in kept_tensors(operators, runs).values())


class UnevenStage(Struct, frozen=True):
    """What the busiest rank of a stage holds beyond the mean: of a microbatch in flight by chunk,
    `together` of `kept`, and `running` next to them. Were tokens doubled, `again` next to `kept`:
    what the running layer had not kept, and as much as it has in all for its gradients. most: the
    largest excess."""

    kept: tuple[int, ...]
    together: float
    running: float
    again: int = 0
    most: float = inf

    def unevenness(self, in_flight: tuple[int, ...]) -> Unevenness:
        """With so many microbatches of each chunk in flight."""
        kept = sum(map(mul, self.kept, in_flight))
        mean = int(kept * self.together + self.running)
        doubled = kept + self.again
        stated = max(mean, min(mean * (1 + _STATED * _SPREAD), self.most * doubled))
        return Unevenness(mean, _SPREAD * mean, int(stated), doubled)


def uneven_stage(shape: RankShape, chunks: Sequence[RoutedBytes], most: float) -> UnevenStage:
    """Of a stage that holds `chunks`.

    What is kept of all layers is the sum of different experts' loads; the layer that runs is the
    busiest of all layers and ranks. most: the largest excess over the mean that capacity allows."""
    layers = sum(chunk.layers for chunk in chunks)
    ranks = shape.expert_model_parallel_size
    if not layers or ranks == 1 or most <= 0:
        return UnevenStage((0,) * len(chunks), 0.0, 0.0)
    together, at_once = _excesses(ranks, (shape.model.num_moe_experts or ranks) // ranks, layers)
    return UnevenStage(
        tuple(chunk.kept for chunk in chunks),
        min(most, together),
        max(chunk.running for chunk in chunks) * min(most, at_once),
        max(chunk.running + chunk.again for chunk in chunks),
        most,
    )


@lru_cache(maxsize=1024)
def _excesses(ranks: int, experts: int, layers: int) -> tuple[float, float]:
    """How much the busiest of `ranks` with so many experts each gets over the mean: in all layers
    together, and in one of them."""
    of_rank = _LARGEST_OF_64 / largest_of(64) / sqrt(experts)
    return of_rank * largest_of(ranks) / sqrt(layers), of_rank * largest_of(ranks * layers)


@lru_cache(maxsize=1024)
def largest_of(number: int) -> float:
    """Where the largest of so many standard normal variables lies on average. Source: Blom 1958,
    the quantile at (n - 3/8) / (n + 1/4)."""
    wanted = (number - 0.375) / (number + 0.25)
    low, high = 0.0, 10.0
    for _ in range(40):
        middle = (low + high) / 2
        below = 0.5 * (1 + erf(middle / sqrt(2))) < wanted
        low, high = (middle, high) if below else (low, middle)
    return low


def most_uneven(job: Job) -> float:
    """The largest excess over the mean that a rank's experts may get: none where routing is forced
    to balance, padded to capacity or given, and no more than capacity allows."""
    model, config = job.model, job.config
    if job.layout.expert_model_parallel_size == 1 or config.moe_load_imbalance != 1.0:
        return 0.0
    if config.moe_router_force_load_balancing or model.moe_pad_expert_input_to_capacity:
        return 0.0
    factor = model.moe_expert_capacity_factor
    return inf if factor is None else max(0.0, factor - 1.0)
