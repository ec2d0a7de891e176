"""The best settings of all layouts and micro batches of a job, by best-first branch and bound.

What is waiting stands in the order of what it cannot undercut: groups of layouts first, then their
layouts with a micro batch each, then jobs. The search ends when what is waiting cannot come among
the rows that are wanted; so every legal job was evaluated, or excluded by a bound.
"""

from collections.abc import Iterator
from heapq import heappop, heappush
from itertools import count
from math import inf
from typing import Final

from msgspec import Struct

from advisor.answer.answer import Rejection
from advisor.answer.evaluation import Evaluation
from advisor.base.errors import UserError
from advisor.frameworks.protocols import FrameworkAdapter
from advisor.frameworks.registry import adapter_of
from advisor.hardware.calibration import Calibration
from advisor.job.job import Job
from advisor.job.layout import ParallelLayout
from advisor.plan.recompute_plan import Setting
from advisor.request.optimizer_change import whole_tensors
from advisor.request.resolve import Resolution
from advisor.search.evaluate import Evaluator
from advisor.search.floor import Floors, step_seconds
from advisor.search.layouts import groups, micro_batches, of_group
from advisor.search.ranking import order, tier

ROWS: Final = 30
"""Layouts with a micro batch each that a search is wanted for."""
_FITS, _EDGE = 0, 1


class Searched(Struct, frozen=True, kw_only=True):
    """The best setting of each of the first layouts, best first.

    evaluated: so many settings were looked at; every other one of every other layout is excluded by
    a bound. whole: False where the search was stopped before that.
    """

    evaluations: tuple[Evaluation, ...]
    evaluated: int
    whole: bool = True

    @property
    def best(self) -> Evaluation:
        """First in the ranking's order."""
        return min(self.evaluations, key=order)


def evaluate_settings(
    job: Job, settings: tuple[Setting, ...], calibration: Calibration
) -> tuple[Evaluation, ...]:
    """All `settings` on one job."""
    evaluator = Evaluator(job, calibration)
    return tuple(evaluator.evaluate(setting) for setting in settings)


class Search:
    """One search; `asked`: the settings to choose from, empty means any legal one."""

    def __init__(
        self,
        resolution: Resolution,
        calibration: Calibration,
        asked: tuple[Setting, ...] = (),
        rows: int = 1,
    ) -> None:
        self._resolution, self._calibration = resolution, calibration
        self._stack: FrameworkAdapter = adapter_of(resolution.config.framework)
        self._asked, self._rows = asked, rows
        self._refused: list[Rejection] = []
        self._fitting: dict[Job, Evaluation] = {}
        self._others: dict[Job, Evaluation] = {}
        self._evaluated = 0
        self._number = count()
        self._heap: list[tuple[float, int, object]] = []
        self._static: dict[object, float] = {}
        self.stats = [0] * 8

    def run(self) -> Searched:
        """Look at what may come among the rows, and at nothing else."""
        template = self._template()
        self._floors = Floors(template, self._calibration)
        batch, gpus = template.config.global_batch_size, template.num_gpus
        for group in self._legal_groups():
            ranks = group.tensor_model_parallel_size * group.context_parallel_size
            sequence = self._floors.of_sequence(group, batch)
            self._push(sequence * batch * ranks / gpus, (group, sequence))
        while self._heap and self._heap[0][0] <= self._limit():
            self._expand(heappop(self._heap)[2])
        kept = self._fitting or self._others
        return Searched(evaluations=tuple(kept.values()), evaluated=self._evaluated)

    def _template(self) -> Job:
        """Any legal job."""
        for group in groups(self._resolution):
            for layout in of_group(self._resolution, group):
                for size in micro_batches(self._resolution, layout)[:1]:
                    job = self._job(layout, size)
                    if job is not None:
                        return job
        raise _nothing_legal(self._resolution, self._refused)

    def _legal_groups(self) -> Iterator[ParallelLayout]:
        return groups(self._resolution)

    def _job(self, layout: ParallelLayout, micro_batch_size: int) -> Job | None:
        self.stats[0] += 1
        try:
            job = self._resolution.job(layout, micro_batch_size)
        except UserError:
            return None
        return job
        refused = self._stack.check(self._stack.none, job)
        self._refused += refused
        return None if refused else job

    def _push(self, bound: float, item: object) -> None:
        if bound <= self._limit():
            heappush(self._heap, (bound, next(self._number), item))

    def _limit(self) -> float:
        """Seconds of the last of the rows; endless where there are too few."""
        if len(self._fitting) < self._rows:
            return inf
        return self._last

    def _expand(self, item: object) -> None:
        if isinstance(item, Evaluator):
            self._look_at(item)
            return
        group, *rest = item
        if len(rest) == 1:
            self.stats[1] += 1
            self._expand_group(group, rest[0])
            return
        self.stats[2] += 1
        if self._is_hopeless(group):
            self.stats[3] += 1
            return
        if len(rest) == 2:
            sequence = self._floors.of_sequence(group, rest[0])
            self._push(
                step_seconds(sequence, group, rest[0], self._resolution.config.global_batch_size),
                (group, rest[0], 0, 0),
            )
            return
        job = self._job(group, rest[0])
        if job is not None:
            evaluator = Evaluator(job, self._calibration)
            self.stats[4] += 1
            self._push(evaluator.at_least_seconds, evaluator)

    def _expand_group(self, group: ParallelLayout, sequence: float) -> None:
        batch = self._resolution.config.global_batch_size
        for layout in of_group(self._resolution, group):
            if self._is_hopeless(layout):
                continue
            for size in micro_batches(self._resolution, layout):
                self._push(step_seconds(sequence, layout, size, batch), (layout, size, 0))

    def _key(self, layout):
        return (
            layout.tensor_model_parallel_size,
            layout.pipeline_model_parallel_size,
            layout.expert_model_parallel_size,
            layout.expert_tensor_parallel_size,
            layout.data_parallel_sharding,
        )

    def _is_hopeless(self, layout: ParallelLayout) -> bool:
        known = self._static.get(self._key(layout))
        return known is not None and known > (
            self._resolution.config.memory_budget_bytes or self._resolution.gpu.memory_bytes
        )

    def _look_at(self, evaluator: Evaluator) -> None:
        self.stats[5] += 1
        key = self._key(evaluator.job.layout)
        if key not in self._static:
            self._static[key] = evaluator.mean_static_bytes
        if evaluator.is_hopeless:
            self.stats[6] += 1
            return
        if self._stack.check(self._stack.none, evaluator.job):
            return
        found = self._best_of(evaluator)
        if found is None:
            return
        self._fitting[found.job] = found
        ordered = sorted(e.step_time_seconds for e in self._fitting.values())
        self._last = ordered[min(len(ordered), self._rows) - 1]

    def _best_of(self, evaluator: Evaluator) -> Evaluation | None:
        settings = self._asked or self._stack.candidates(evaluator.job)
        timed = sorted((evaluator.timed(s) for s in settings), key=lambda t: t.time.total)
        self._evaluated += len(timed)
        for one in timed:
            if one.time.total > self._limit():
                break
            self.stats[7] += 1
            found = evaluator.evaluate_if_it_may_fit(one)
            if found is None:
                continue
            if tier(found) == 0:
                return found
        return None


def _nothing_legal(resolution: Resolution, refused: list[Rejection]) -> UserError:
    """In the framework's own words, if it has any."""
    if refused:
        first = refused[0]
        return UserError("--framework", resolution.config.framework, first.reason, first.fix)
    implied = whole_tensors(resolution.config.optimizer)
    given = ", ".join(
        f"{name} = {value}"
        for name, value in resolution.layout_fields.items()
        if name not in implied
    )
    batch = resolution.config.global_batch_size
    return UserError(
        "--gpus",
        resolution.num_gpus,
        f"no legal layout of {resolution.model.name} for global batch {batch} on so many GPUs"
        + (f" with {given}" if given else ""),
        "leave that to be chosen" if given else "change the number of GPUs or the global batch",
    )
