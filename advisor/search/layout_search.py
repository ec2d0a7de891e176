"""Settings evaluated on every layout of a job, or on those that can come first."""

from bisect import insort
from collections.abc import Iterator
from itertools import chain
from typing import Final

from msgspec import Struct

from advisor.answer.answer import Rejection
from advisor.answer.evaluation import Evaluation
from advisor.base.errors import UserError
from advisor.frameworks.protocols import FrameworkAdapter
from advisor.frameworks.registry import adapter_of
from advisor.hardware.calibration import Calibration
from advisor.job.job import Job
from advisor.plan.recompute_plan import Setting, recomputes
from advisor.request.optimizer_change import whole_tensors
from advisor.request.resolve import Resolution
from advisor.search.evaluate import Evaluator, Timed
from advisor.search.layouts import legal_jobs
from advisor.search.ranking import Order, first_replayed, order, tier

_HOPELESS: Final = 2
"""The tier of what does not fit, however its allocator fares."""
_WHOLE: Final = 1000
"""Layouts up to which a ranking of all of them is made of every setting on each."""
ROWS: Final = 100
"""Rows of a ranking of more layouts that are the ones of the whole search."""


class Searched(Struct, frozen=True, kw_only=True):
    """Evaluations of a search, and the number of legal jobs, which differ in layout and micro
    batch. evaluated: so many settings were looked at; whole: every one was."""

    evaluations: tuple[Evaluation, ...]
    num_layouts: int
    evaluated: int
    whole: bool = False

    @property
    def best(self) -> Evaluation:
        """First in the ranking's order, its allocator replayed."""
        return min(first_replayed(self.evaluations), key=order)


def evaluate_settings(
    job: Job, settings: tuple[Setting, ...], calibration: Calibration
) -> tuple[Evaluation, ...]:
    """All `settings` on one job."""
    evaluator = Evaluator(job, calibration)
    return tuple(evaluator.evaluate(setting) for setting in settings)


def search_layouts(resolution: Resolution, calibration: Calibration) -> Searched:
    """Every legal recompute setting on every legal layout and micro batch; what the request fixed
    stays fixed. Of more than _WHOLE layouts without what cannot come among the first ROWS.
    UserError where no layout is legal."""
    stack = adapter_of(resolution.config.framework)
    jobs = _all_jobs(resolution, stack)
    if len(jobs) > _WHOLE:
        return _first_rows(jobs, stack, calibration, (), ROWS)
    found = (evaluate_settings(job, stack.candidates(job), calibration) for job in jobs)
    evaluations = tuple(evaluation for of_job in found for evaluation in of_job)
    return Searched(
        evaluations=evaluations, num_layouts=len(jobs), evaluated=len(evaluations), whole=True
    )


def best_on_any_layout(
    resolution: Resolution, calibration: Calibration, asked: tuple[Setting, ...] = ()
) -> Searched:
    """As search_layouts, without what cannot come first in the ranking.

    asked: the settings to choose from; empty means any legal one.
    """
    stack = adapter_of(resolution.config.framework)
    return _first_rows(_all_jobs(resolution, stack), stack, calibration, asked, 1)


def _first_rows(
    jobs: list[Job],
    stack: FrameworkAdapter,
    calibration: Calibration,
    asked: tuple[Setting, ...],
    rows: int,
) -> Searched:
    """What can come among the first `rows` of the ranking, and more.

    Jobs come in the order of what none of their settings undercuts: time, and behind them, of those
    that hold more than the GPU has before any activation, memory. Once the rows are full of what is
    no worse, the rest need not be looked at. No recompute is tried first, in every job: where it
    fits, it says soon how fast the others have to be.
    """
    waiting, evaluators = _in_order(jobs, calibration), []
    first, tried = _First(rows), 0
    if not asked or stack.none in asked:
        for evaluator in waiting:
            evaluators.append(evaluator)
            if evaluator.is_hopeless or not first.may_hold(_bound(evaluator)):
                break
            first.look(evaluator, stack.none)
            tried += 1
    for number, evaluator in enumerate(chain(evaluators, waiting)):
        if evaluator.is_hopeless:
            first.settle()
        if not first.may_hold(_bound(evaluator)):
            break
        for setting in asked or stack.candidates(evaluator.job):
            known = setting == stack.none and number < tried
            if not known and not (asked and stack.check(setting, evaluator.job)):
                first.look(evaluator, setting)
    first.settle()
    first.add_without_recompute()
    if not first.evaluations:  # nothing that was asked for is legal: whoever asked is told why
        first.look(evaluators[0], stack.none)
    return Searched(evaluations=first.evaluations, num_layouts=len(jobs), evaluated=first.evaluated)


class _First:
    """Evaluations, and the keys of those that are the first so many rows of their ranking.

    What does not fit is set aside: it is among them only where too little fits.
    """

    def __init__(self, rows: int) -> None:
        self.evaluated = 0
        self._rows = rows
        self._keys: list[Order] = []
        self._found: dict[int, Evaluation] = {}
        self._aside: dict[int, tuple[Evaluator, Timed]] = {}

    @property
    def evaluations(self) -> tuple[Evaluation, ...]:
        """In the order in which they were looked at."""
        return tuple(self._found[number] for number in sorted(self._found))

    def may_hold(self, bound: Order) -> bool:
        """Whether what comes no earlier than `bound` may come among them."""
        return len(self._keys) < self._rows or bound <= self._keys[-1]

    def look(self, evaluator: Evaluator, setting: Setting) -> None:
        """Evaluate `setting`, its memory only if its time allows it to be among them; with its
        allocator replayed where it would be the one first row, and may fit."""
        self.evaluated += 1
        timed = evaluator.timed(setting)
        full_of_fitting = len(self._keys) == self._rows and self._keys[-1][0] == 0
        if full_of_fitting and timed.time.total > self._keys[-1][1]:
            return
        found = evaluator.evaluate_if_it_may_fit(timed)
        if found is None:
            self._aside[self.evaluated] = evaluator, timed
            return
        if self._rows == 1 and tier(found) < _HOPELESS and self.may_hold(order(found)):
            found = found.replayed
        self._take(self.evaluated, found)

    def settle(self) -> None:
        """Evaluate what was set aside, if there is room for it."""
        if len(self._keys) < self._rows or self._keys[-1][0] == _HOPELESS:
            for number, (evaluator, timed) in self._aside.items():
                self._take(number, evaluator.evaluate_timed(timed))
            self._aside.clear()

    def add_without_recompute(self) -> None:
        """Evaluate no recompute, where it was set aside, for the jobs whose settings are held
        against it."""
        jobs = {id(evaluation.job) for evaluation in self._found.values()}
        for number, (evaluator, timed) in self._aside.items():
            if id(evaluator.job) in jobs and not recomputes(timed.setting):
                self._take(number, evaluator.evaluate_timed(timed))

    def _take(self, number: int, evaluation: Evaluation) -> None:
        self._found[number] = evaluation
        insort(self._keys, order(evaluation))
        del self._keys[self._rows :]


def _in_order(jobs: list[Job], calibration: Calibration) -> Iterator[Evaluator]:
    """Evaluators of `jobs` by their bounds; what a job holds is worked out when its turn comes."""
    hopeless = []
    for evaluator in sorted(
        (Evaluator(job, calibration) for job in jobs), key=lambda one: one.at_least_seconds
    ):
        if evaluator.is_hopeless:
            hopeless.append(evaluator)
        else:
            yield evaluator
    yield from sorted(hopeless, key=lambda one: one.at_least_bytes)


def _bound(evaluator: Evaluator) -> Order:
    """What no setting of a job comes before in the ranking."""
    if evaluator.is_hopeless:
        return (2, float(evaluator.at_least_bytes), False, 0)
    return (0, evaluator.at_least_seconds, False, 0)


def _all_jobs(resolution: Resolution, stack: FrameworkAdapter) -> list[Job]:
    """See legal_jobs. UserError, in the framework's own words if it has any, where none is."""
    refused: list[Rejection] = []
    jobs = list(legal_jobs(resolution, stack, refused))
    if refused and not jobs:
        raise UserError(
            "--framework", resolution.config.framework, refused[0].reason, refused[0].fix
        )
    if not jobs:
        raise _no_layout(resolution)
    return jobs


def _no_layout(resolution: Resolution) -> UserError:
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
