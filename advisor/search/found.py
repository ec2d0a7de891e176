"""Jobs that a search has looked at, the best setting of each layout and micro batch, and the way
from a job to a better one by one change after the other: soon done, and nothing proven."""

from bisect import insort
from collections.abc import Iterator
from heapq import heappop, heappush
from itertools import islice
from math import inf
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from advisor.answer.answer import SearchNote
from advisor.answer.evaluation import Evaluation
from advisor.frameworks.part_types import SEARCHED
from advisor.frameworks.registry import parts_of
from advisor.hardware.calibration import Calibration
from advisor.job.job import LIKELY, Job
from advisor.plan.recompute_plan import Setting
from advisor.request.resolve import Resolution
from advisor.search.bounds import HOLDING
from advisor.search.changed_options import changed, is_given
from advisor.search.evaluate import Evaluator, Timed, is_legal
from advisor.search.layouts import is_as_given, with_own_options
from advisor.search.near_changes import neighbours
from advisor.search.ranking import Order, order, tier
from advisor.search.replay_room import may_fit_within

_EFFORT_OF_A_JOB, _EFFORT_OF_MEMORY, _REQUESTS = 12.0, 3.0, 80
"""Of a look at a job, of the memory of a setting, and requests to an allocator that take as long as
the time of a step of one."""
_EVEN: Final = 0.5
_SETTLED_AT, _SETTLED = 32, 4
"""Settings that wait for a simulation after which the few likeliest have it, as what fits bounds
the others (judgements)."""
ROWS: Final = 20
"""Layouts with a micro batch each that are the first of all."""
_SHORT: Final = 8
"""Jobs that are short of memory, to be looked at once more."""
_NO_PEAK: Final = 2**62
"""Bytes of a job without a legal setting."""
_NEAREST: Final = 30
"""Jobs that are looked at for the one that is nearest to fit, where none does."""


class Searched(Struct, frozen=True, kw_only=True):
    """The best setting of each of the first layouts.

    evaluated: settings that were looked at; all others are excluded by a bound. whole: False where
    the search ended before that; interrupted: by Ctrl-C. short: jobs that would be faster than the
    first row, did they fit without recompute; the fastest first. least_seconds: no layout takes
    less; 0 where nothing is known. excluded: settings at least that a bound excludes.
    """

    evaluations: tuple[Evaluation, ...]
    evaluated: int
    whole: bool = True
    interrupted: bool = False
    short: tuple[Job, ...] = ()
    least_seconds: float = 0.0
    excluded: int = 0

    @property
    def best(self) -> Evaluation:
        """First in the ranking's order."""
        return min(self.evaluations, key=order)

    def note(self, evaluated: int) -> SearchNote:
        """How far the search went, next to what else was evaluated."""
        return SearchNote(
            evaluated=evaluated,
            excluded_by_bound=self.excluded,
            least_possible_seconds=self.least_seconds or None,
            whole=self.whole,
        )

    def first_rows(self, known: tuple[Job, ...]) -> list[Evaluation]:
        """The first of them, those alone that fit where any does, and those on `known` layouts."""
        ordered = sorted(self.evaluations, key=order)
        shown = [row for row in ordered if tier(row) == tier(ordered[0])][:ROWS]
        wanted = {_row(job) for job in known}
        return shown + [row for row in ordered if row not in shown and _row(row.job) in wanted]


class Looked(Struct, frozen=True):
    """What came of a job. unfit: none of its settings fits. short: one that may be among the rows
    does not."""

    unfit: bool
    short: bool


class BestFound:
    """The best setting of each layout and micro batch that was looked at.

    asked: the settings to choose from; empty means any legal one. within: share above the best step
    time up to which rows are wanted. either_segments: whether what nearly fits is tried with the
    allocator's other segments, which may leave less unused. likely: probability from which a
    setting fits. most: effort after which steps to others end. effort: what was done, in times of a
    step of one setting, about 0.15 ms each. first: seconds of the first that fits; limit: of the
    last that is wanted. looked: jobs; unfit: those that do not fit, or were looked at before any
    did. evaluated: settings.
    """

    def __init__(
        self,
        calibration: Calibration,
        asked: tuple[Setting, ...],
        within: float = 0.0,
        *,
        either_segments: bool = False,
        likely: float = LIKELY,
        most: float = inf,
    ) -> None:
        self.most, self.effort = most, 0.0
        self._either_segments, self._likely = either_segments, likely
        self._calibration, self._asked, self._within = calibration, asked, within
        self._kept: dict[object, Evaluation] = {}
        self._smallest: list[tuple[int, Job]] = []
        self._short: list[tuple[float, int, Job]] = []
        self._unclear: list[tuple[float, int, Evaluation]] = []
        self._most: dict[Job, int] = {}
        self.first = self.limit = inf
        self.unfit = self.evaluated = self.looked = 0

    @property
    def best(self) -> Evaluation | None:
        """First of the ranking."""
        return min(self._kept.values(), key=self._order, default=None)

    @property
    def fits(self) -> bool:
        """Whether anything does."""
        return self.first < inf

    def searched(self, *, whole: bool) -> Searched:
        """All rows."""
        return Searched(
            evaluations=tuple(self._kept.values()),
            evaluated=self.evaluated,
            whole=whole,
            short=tuple(job for seconds, _, job in sorted(self._short) if seconds < self.first),
        )

    def look_at(self, evaluator: Evaluator) -> Looked:
        """Take the fastest setting that fits, or one that nearly does."""
        job = evaluator.job
        settings = parts_of(job.config.framework).settings
        self.looked += 1
        self.effort += _EFFORT_OF_A_JOB
        if settings.check_job(job):
            return Looked(unfit=False, short=True)
        looked = Looked(unfit=True, short=True)
        if not evaluator.is_hopeless:
            looked = self._take_best(evaluator)
        if looked.short:
            insort(self._short, (evaluator.at_least_seconds, self.looked, job))
            del self._short[_SHORT:]
        self.unfit += looked.unfit or not self.fits
        if looked.unfit:
            self._smallest.append((evaluator.memory.fixed_bytes, job))
        return looked

    def _take_best(self, evaluator: Evaluator) -> Looked:
        if not self._asked and self.fits and not may_fit_within(evaluator, self.limit):
            return Looked(unfit=False, short=True)
        unfit, short = True, False
        for one in self._timed(evaluator):
            if one.time.total > self.limit:
                return Looked(unfit=False, short=short)
            self.evaluated += 1
            self.effort += _EFFORT_OF_MEMORY
            found = evaluator.evaluate_if_it_may_fit(one)
            if found is not None and is_legal(one.setting, evaluator.job):
                unfit = False
                if self._takes(found):
                    break
            short = True
        return Looked(unfit=unfit, short=short)

    def _takes(self, found: Evaluation) -> bool:
        """Whether it fits; what only a simulation can say waits for `settle`."""
        if found.step_time_seconds > self.first:
            return self._take(found)
        may_fit = not self.fits or self._may_fit(found)
        if may_fit and found.fit_probability >= self._likely:
            return self._take(self._simulated(found))
        if may_fit:
            heappush(self._unclear, (found.step_time_seconds, self.evaluated, found))
        if len(self._unclear) % _SETTLED_AT == _SETTLED_AT - 1:
            self.settle(_SETTLED)
        return False

    def settle(self, most: float = inf) -> None:
        """Simulate what waits and may be the first, the fastest first, until one fits or the effort
        is made twice; of a few, `most`, those that are as likely as not to fit. Nothing is said to
        fit by an estimate alone."""
        later = []
        while self._unclear and self._unclear[0][0] < self.first and most > 0:
            one = heappop(self._unclear)
            if most < inf and one[2].fit_probability < _EVEN:
                later.append(one)
            elif not self.fits or self._may_fit(one[2]):
                self._take(self._simulated(one[2]))
                most -= 1
            if self.effort > 2 * self.most:
                break
        for one in later:
            heappush(self._unclear, one)

    def _may_fit(self, found: Evaluation) -> bool:
        """In a simulation, by what those of other settings of its job have said."""
        smaller = found.usual_reserved_bytes <= self._most.get(found.job, inf)
        return smaller and found.likely_with(0.0) >= self._likely

    def _simulated(self, found: Evaluation) -> Evaluation:
        """With its allocator simulated; with other segments where that alone makes it fit."""
        simulated = found.simulated
        self.effort += (simulated.requests or 0) / _REQUESTS
        over = simulated.peak_reserved_bytes - simulated.budget_bytes
        if over > 0:  # half of it: others of the job may leave less unused
            self._most[found.job] = found.usual_reserved_bytes - over // 2
        if not self._either_segments or self._fits(simulated):
            return simulated
        other_segments = not found.job.config.expandable_segments
        config = replace(found.job.config, expandable_segments=other_segments)
        job = replace(found.job, config=config)
        if not is_legal(found.setting, job):
            return simulated
        other = Evaluator(job, self._calibration).evaluate(found.setting).simulated
        return other if self._fits(other) else simulated

    def _fits(self, evaluation: Evaluation) -> bool:
        return evaluation.fit_probability >= self._likely

    def _order(self, evaluation: Evaluation) -> tuple[bool, Order]:
        return not self._fits(evaluation), order(evaluation)

    def _timed(self, evaluator: Evaluator) -> list[Timed]:
        """Settings that are worth a try, the fastest first."""
        job = evaluator.job
        settings = tuple(one for one in self._asked if is_legal(one, job))
        if not self._asked:
            settings = parts_of(job.config.framework).settings.tried(job)
        self.effort += len(settings)
        return sorted((evaluator.timed(one) for one in settings), key=lambda one: one.time.total)

    def _take(self, found: Evaluation) -> bool:
        """Keep it where it is better than what is kept of the same layout and micro batch; whether
        it fits."""
        key = _row(found.job)
        if key not in self._kept or self._order(found) < self._order(self._kept[key]):
            self._kept[key] = found
            if self._fits(found):
                self.first = min(self.first, found.step_time_seconds)
                self.limit = self.first * (1 + self._within)
        return self._fits(found)

    def least_peak(self, evaluator: Evaluator) -> int:
        """Bytes of the job's slowest settings."""
        return min((one.peak_reserved_bytes for one in self._slowest(evaluator)), default=_NO_PEAK)

    def _slowest(self, evaluator: Evaluator) -> list[Evaluation]:
        """The job's slowest settings, which keep least, as a rule."""
        slowest = reversed(self._timed(evaluator))
        legal = (one for one in slowest if is_legal(one.setting, evaluator.job))
        return [evaluator.evaluate_timed(one) for one in islice(legal, _SLOWEST)]

    def look_at_the_smallest(self, others: list[tuple[int, Job]]) -> None:
        """Where nothing fits: the jobs that hold least before any activation, `others` among them,
        until one's peak is below what the next one holds, or the effort is made twice."""
        least, most = inf, 2 * self.most
        smallest = sorted([*self._smallest, *others], key=lambda pair: pair[0])
        for held, job in smallest[:_NEAREST]:
            if held > least or self.effort > most:
                break
            for found in self._slowest(Evaluator(job, self._calibration)):
                self._take(found)
                least = min(least, found.peak_reserved_bytes)


_SLOWEST: Final = 2
"""Settings of a job of which one is its smallest, as a rule."""
_DISTINCT: Final = (
    *HOLDING,
    "virtual_pipeline_model_parallel_size",
    "num_layers_in_first_pipeline_stage",
    "num_layers_in_last_pipeline_stage",
    "pipeline_model_parallel_layout",
    "sequence_parallel",
    "context_parallel_size",
    "cp_comm_type",
    "hierarchical_context_parallel_sizes",
)
"""What of a layout makes it a row of its own."""


def _row(job: Job) -> object:
    return (*(getattr(job.layout, name) for name in _DISTINCT), job.config.micro_batch_size)


_STEPS_DOWN: Final = 8
"""Changes of one thing each that are made at most to find a job that fits (a judgement)."""


def search_near(
    job: Job,
    resolution: Resolution,
    calibration: Calibration,
    asked: tuple[Setting, ...] = (),
    *,
    most: float = inf,
) -> Searched:
    """What is found from a job to neighbour after neighbour, of all that may change of a
    resolution, until `most` effort: only what fits where anything does."""
    found = BestFound(calibration, asked, likely=job.config.certainty, most=most)
    found.look_at(Evaluator(job, calibration))
    climb = Climb(resolution, calibration, found, options=True)
    if not found.fits:
        climb.descend(job)
    climb.climb()
    return found.searched(whole=False)


class Climb:
    """Steps between jobs of a resolution; what they find is kept by `found`. options: whether those
    of the job may change as well as its layout and micro batch."""

    def __init__(
        self, resolution: Resolution, calibration: Calibration, found: BestFound, *, options: bool
    ) -> None:
        self._resolution, self._calibration = resolution, calibration
        self._found, self._options = found, options
        self._settings = parts_of(resolution.config.framework).settings

    def descend(self, job: Job) -> None:
        """From a job to its neighbour that may need least, and on, until one fits: only then is
        known how fast the others have to be."""
        smallest = Evaluator(job, self._calibration)
        least = self._found.least_peak(smallest)
        for _ in range(_STEPS_DOWN):
            before = smallest
            for job in self._near(smallest.job):
                if not self._settings.check_job(job):
                    self._found.effort += _EFFORT_OF_A_JOB
                    evaluator = Evaluator(job, self._calibration)
                    peak = self._found.least_peak(evaluator)
                    if peak < least:
                        least, smallest = peak, evaluator
            self._found.look_at(smallest)
            if self._found.fits or smallest is before:
                return

    def climb(self) -> None:
        """From the best so far to its best neighbour, and on; where none is better, to the best of
        what two changes make of it: soon a step is known that most layouts cannot undercut."""
        found = self._found
        while (best := found.best) is not None and found.fits:
            known = {best.job}
            for job in self._look_around(best.job, known):
                if found.first < best.step_time_seconds or found.effort > found.most:
                    break
                self._look_around(job, known)
            if found.first >= best.step_time_seconds or found.effort > found.most:
                return

    def _look_around(self, centre: Job, known: set[Job]) -> list[Job]:
        """The neighbours of a job that are not `known`, the one with the least bound first; those
        that may be the first are looked at."""
        found, near = self._found, list[Evaluator]()
        for job in self._near(centre):
            if found.effort < found.most and job not in known:
                known.add(job)
                found.effort += _EFFORT_OF_A_JOB
                near.append(Evaluator(job, self._calibration))
        near.sort(key=lambda one: one.at_least_seconds)
        for evaluator in near:
            if evaluator.at_least_seconds < found.first and found.effort < found.most:
                found.look_at(evaluator)
        found.settle(_SETTLED)
        return [evaluator.job for evaluator in near]

    def _near(self, centre: Job) -> Iterator[Job]:
        """Neighbours that have all that was given; with the resolution's own options, where none
        may change."""
        for job in (neighbour.job for neighbour in neighbours(centre, SEARCHED)):
            if not self._options:
                job = replace(job, layout=with_own_options(self._resolution, job.layout))
            if self._is_open(job):
                yield job

    def _is_open(self, job: Job) -> bool:
        """Whether a job has all that was given."""
        plain = self._resolution
        if not is_as_given(plain, job.layout):
            return False
        size = job.config.micro_batch_size
        if size != plain.config.micro_batch_size and not plain.micro_batch_is_free:
            return False
        usual = replace(job, model=plain.model, config=replace(plain.config, micro_batch_size=size))
        return not (is_given(usual, job, plain) if self._options else changed(usual, job))
