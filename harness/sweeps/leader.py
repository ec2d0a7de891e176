"""Which measured point leads, how sure that is, and which others may be as fast.

A point's time is the median over its processes of each one's median step: steps of one process are
correlated, so a process counts once (harness.judge.stats). How much processes differ is pooled over
all points of the sweep, together with what is assumed before any was repeated, which counts as
_ASSUMED_FREEDOM degrees of freedom (a scaled inverse chi-squared prior; Gelman et al. 2013,
Bayesian Data Analysis, section 2.6). A mean is then Student-t distributed around the truth.
"""

import math
from collections.abc import Mapping
from functools import cached_property
from statistics import median
from typing import Final

from advisor.base.errors import require
from harness.judge.stats import SampledSetting, centre, multiplier, step_noise
from harness.sweeps.history import History, Outcome
from harness.sweeps.prior import Observed
from harness.sweeps.space import Point

_ASSUMED_FREEDOM: Final = 4
_PRUNING_LEVEL: Final = 0.90
"""Two-sided; a trial is pruned above the upper end of the leader's interval: one-sided 95 %."""


class Standing:
    """The timed points of a history. Those that were measured to the end, with a peak within
    `budget` bytes (None: any), may lead; the others tell how far predictions are off.
    assumed_noise: relative standard deviation between processes before any was repeated."""

    def __init__(self, history: History, budget: int | None, assumed_noise: float) -> None:
        self._assumed = assumed_noise
        timed = {
            point: [outcome.steps for outcome in outcomes.values() if outcome.steps]
            for point, outcomes in history.finished.items()
        }
        self._timed = {point: steps for point, steps in timed.items() if steps}
        self._eligible = {p for p in self._timed if _may_lead(history.finished[p], budget)}

    @cached_property
    def seconds(self) -> dict[Point, float]:
        """Step in seconds of every point that may lead, the fastest first."""
        found = {p: centre(steps) for p, steps in self._timed.items() if p in self._eligible}
        return dict(sorted(found.items(), key=lambda item: item[1]))

    @property
    def leader(self) -> Point | None:
        """The fastest; None where nothing was measured."""
        return next(iter(self.seconds), None)

    def processes(self, point: Point) -> int:
        """How many processes timed a point."""
        return len(self._timed.get(point, ()))

    @cached_property
    def _pooled(self) -> tuple[float, int]:
        """Relative standard deviation between processes, and its degrees of freedom."""
        sides = [SampledSetting(samples=steps) for steps in self._timed.values()]
        if not sides:
            return self._assumed, _ASSUMED_FREEDOM
        assumed = max(self._assumed, median(map(step_noise, sides)))
        seen = sum(side.count - 1 for side in sides)
        squares = sum(float(side.centres().var()) * side.count for side in sides)
        total = _ASSUMED_FREEDOM + seen
        return math.sqrt((_ASSUMED_FREEDOM * assumed**2 + squares) / total), total

    @property
    def noise(self) -> float:
        """Relative standard deviation between processes."""
        return self._pooled[0]

    def observed(self) -> dict[Point, Observed]:
        """All times with the variance of each."""
        return {
            point: Observed(math.log(centre(steps)), self.noise**2 / len(steps))
            for point, steps in self._timed.items()
        }

    def faster(self, point: Point, margin: float) -> float:
        """Probability that a measured `point` is more than `margin` (relative) faster than the
        leader."""
        assert self.leader is not None
        gap = math.log(self.seconds[point] / self.seconds[self.leader]) + margin
        processes = self.processes(point), self.processes(self.leader)
        error = self.noise * math.sqrt(sum(1 / count for count in processes))
        special = require("scipy.special", "harness sweep", "harness")
        return float(special.stdtr(self._pooled[1], -gap / error))  # Student's t above the gap

    def rivals(self, margin: float, level: float) -> list[Point]:
        """The likeliest to be more than `margin` faster than the leader, as many as must be looked
        at until the others are so with a probability below 1 - level, all together."""
        others = [point for point in self.seconds if point != self.leader]
        chances = sorted(((self.faster(p, margin), p.label, p) for p in others), reverse=True)
        left = sum(chance for chance, _, _ in chances)
        found = []
        for chance, _, point in chances:
            if left <= 1 - level:
                break
            found.append(point)
            left -= chance
        return found

    @property
    def limit_seconds(self) -> float | None:
        """A process whose median step is above this is slower than the leader with 95 %
        confidence: both have noise. None where nothing was measured."""
        if self.leader is None:
            return None
        width = multiplier(_PRUNING_LEVEL, self._pooled[1]) * self.noise
        wider = width * math.sqrt(1 + 1 / self.processes(self.leader))
        return self.seconds[self.leader] * math.exp(wider)


def _may_lead(outcomes: Mapping[int, Outcome], budget: int | None) -> bool:
    """Whether a point was measured, and every process that says something ran within the budget."""
    ended = [outcome for outcome in outcomes.values() if not outcome.failed]
    return bool(ended) and all(outcome.measured and outcome.within(budget) for outcome in ended)
