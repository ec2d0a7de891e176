"""The fastest split of layers under given choices of every stage: a bound, and the split itself.

A step takes as long as its slowest stage lets it, the others fill and drain the pipeline around it
(JobTime.combined): it grows with the seconds of the slowest stage, with the sum over all of them,
and with the longest optimizer step. Hence the bound: as many layers as the model has fit on the
stages only from some pace on. Hence the split: for every stage that may be the slowest, the
cheapest path through the others.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import accumulate
from math import inf

from msgspec import Struct

from advisor.search.optimum.stage_table import Choice
from advisor.time.job_time import StagePart

Combine = Callable[[StagePart, float, float], float]
"""Seconds of a step: of its slowest stage, the sum of microbatch seconds, the longest optimizer."""
ROUNDING = 1e-12
"""Share by which sums of the same seconds in another order may differ."""


class Split(Struct, frozen=True):
    """A choice of every stage, and the seconds of a step of them."""

    choices: tuple[Choice, ...]
    seconds: float


class SplitProblem(Struct, frozen=True, dict=True):
    """What every stage may choose, all of it together `num_layers` layers."""

    choices: tuple[tuple[Choice, ...], ...]
    num_layers: int
    combine: Combine

    @cached_property
    def bound(self) -> float:
        """No split takes less; infinite where there is none."""
        return min((seconds for seconds, _, _ in self._slowest), default=inf)

    def best(self, fits: Callable[[int, Choice], bool], below: float = inf) -> Split | None:
        """The fastest split all of whose stages fit; None where none is faster than `below`.

        fits: asked of what would be chosen, as it may take long.
        """
        refused: set[tuple[int, Choice]] = set()
        found = None
        for least, stage, slowest in self._slowest:
            if least >= below:
                break
            while path := self._cheapest(stage, slowest, refused):
                wrong = {(k, choice) for k, choice in enumerate(path) if not fits(k, choice)}
                refused |= wrong
                if not wrong:
                    seconds = self._seconds(stage, path)
                    if seconds < below:
                        below, found = seconds, Split(path, seconds)
                    break
        return found

    @cached_property
    def _slowest(self) -> list[tuple[float, int, Choice]]:
        """Every stage and choice that may be the slowest, by what a step then takes at least."""
        every = [[choice.layers for choice in held] for held in self.choices]
        if not all(every) or not sum(map(min, every)) <= self.num_layers <= sum(map(max, every)):
            return []
        pace = self._pace(lambda part: part.microbatch)
        optimizer = self._pace(lambda part: part.optimizer)
        total = self._least_total
        found = [
            (self.combine(c.part, max(total, c.part.microbatch), optimizer), stage, c)
            for stage, held in enumerate(self.choices)
            for c in held
            if c.part.microbatch >= pace
        ]
        return sorted(found, key=lambda one: one[:2])

    def _pace(self, of: Callable[[StagePart], float]) -> float:
        """The least that the stage with most of something has, if all layers are to be held."""
        if all(len(held) == 1 for held in self.choices):  # as where no layer moves
            return max(of(held[0].part) for held in self.choices)
        stages = []
        for held in self.choices:
            pairs = sorted((of(choice.part), choice.layers) for choice in held)
            layers = list(accumulate((layers for _, layers in pairs), max))
            stages.append(([seconds for seconds, _ in pairs], layers))
        paces = sorted({seconds for times, _ in stages for seconds in times})

        def held_at(pace: float) -> int:
            most = 0
            for times, layers in stages:
                number = bisect_right(times, pace)
                if not number:
                    return -1
                most += layers[number - 1]
            return most

        first = bisect_left(paces, self.num_layers, key=held_at)
        return paces[first] if first < len(paces) else inf

    @cached_property
    def _least_total(self) -> float:
        """No split has less microbatch seconds in the sum over its stages: with a price of a layer,
        what each stage takes beyond its layers' price at least, and the price of all."""
        longest = max(self.choices, key=len)
        first, last = longest[0], longest[-1]
        price = 0.0
        if last.layers > first.layers:
            more = last.part.microbatch - first.part.microbatch
            price = more / (last.layers - first.layers)
        beyond = sum(
            min(choice.part.microbatch - choice.layers * price for choice in held)
            for held in self.choices
        )
        return (beyond + self.num_layers * price) * (1 - ROUNDING)

    def _seconds(self, slowest: int, path: Sequence[Choice]) -> float:
        total = sum(choice.part.microbatch for choice in path)
        optimizer = max(choice.part.optimizer for choice in path)
        return self.combine(path[slowest].part, total, optimizer)

    def _cheapest(
        self, slowest: int, its: Choice, refused: set[tuple[int, Choice]]
    ) -> tuple[Choice, ...] | None:
        """The split of least time in which `slowest` takes `its` and no stage takes longer."""
        pace = its.part.microbatch

        def is_open(stage: int, choice: Choice) -> bool:
            """Of two stages that take as long the first one is called the slowest."""
            if stage == slowest:
                return choice is its and (stage, choice) not in refused
            seconds = choice.part.microbatch
            no_longer = seconds < pace if stage < slowest else seconds <= pace
            return no_longer and (stage, choice) not in refused

        open_choices = [
            [choice for choice in held if is_open(stage, choice)]
            for stage, held in enumerate(self.choices)
        ]
        if not all(open_choices):
            return None
        fewest, most = self._left(open_choices, min), self._left(open_choices, max)
        paths: dict[int, list[_Path]] = {0: [_Path(0.0, 0.0, None, None)]}
        for stage, held in enumerate(open_choices):
            longer: dict[int, list[_Path]] = {}
            for layers, before in paths.items():
                for choice in held:
                    total = layers + choice.layers
                    if fewest[stage + 1] <= self.num_layers - total <= most[stage + 1]:
                        for path in before:
                            _keep(longer.setdefault(total, []), path.with_choice(choice))
            paths = longer
        ended = paths.get(self.num_layers)
        if not ended:
            return None
        best = min(ended, key=lambda path: self.combine(its.part, path.total, path.optimizer))
        return best.choices

    def _left(
        self, held: Sequence[Sequence[Choice]], extreme: Callable[[Sequence[int]], int]
    ) -> list[int]:
        """Fewest or most layers of the stages from each one on."""
        each = [extreme([choice.layers for choice in choices]) for choices in held]
        return [sum(each[stage:]) for stage in range(len(each) + 1)]


class _Path(Struct, frozen=True):
    """Choices of the first stages: the last of them, and the path to it."""

    total: float
    optimizer: float
    last: Choice | None
    before: "_Path | None"

    def with_choice(self, choice: Choice) -> "_Path":
        part = choice.part
        optimizer = max(self.optimizer, part.optimizer)
        return _Path(self.total + part.microbatch, optimizer, choice, self)

    @property
    def choices(self) -> tuple[Choice, ...]:
        earlier = self.before.choices if self.before else ()
        return (*earlier, self.last) if self.last else earlier


def _keep(paths: list[_Path], path: _Path) -> None:
    """Add `path` unless another is as good in both sums; drop those that it beats."""
    for other in paths:
        if other.total <= path.total * (1 + ROUNDING) and other.optimizer <= path.optimizer:
            return
    paths[:] = [
        other for other in paths if other.total < path.total or other.optimizer < path.optimizer
    ]
    paths.append(path)
