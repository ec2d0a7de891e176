"""The best settings of all layouts and micro batches of a job, by best-first branch and bound.

What waits stands in the order of what it cannot undercut: groups of layouts first, then layouts
with a micro batch each, then jobs. The search ends when what waits cannot come among the rows that
are wanted: then every legal job was evaluated, or excluded by a bound. Times bound it; what cannot
fit is left out where the bytes of weights, gradients and optimizer say so, or a micro batch that
divides its own did not fit on the same layout.
"""

from collections.abc import Callable, Iterator
from heapq import heappop, heappush
from itertools import count
from math import inf
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from advisor.answer.answer import SAME_TIME, Rejection
from advisor.answer.evaluation import Evaluation
from advisor.base.errors import UserError
from advisor.base.units import divisors
from advisor.frameworks.protocols import Effect
from advisor.frameworks.registry import adapter_of
from advisor.hardware.calibration import Calibration
from advisor.job.job import Job
from advisor.job.layout import ParallelLayout, check_model_fits_layout
from advisor.plan.recompute_plan import Setting
from advisor.request.optimizer_change import whole_tensors
from advisor.request.resolve import Resolution
from advisor.search.changed_options import Root, changed, is_given, roots, variants
from advisor.search.evaluate import Evaluator
from advisor.search.floor import Floors, step_seconds
from advisor.search.layouts import groups, micro_batches, of_group
from advisor.search.neighbours import neighbours
from advisor.search.ranking import order, tier

ROWS: Final = 20
"""Layouts with a micro batch each that are the first of all."""
NEAR: Final = 0.02
"""Share above the best step time up to which all layouts are looked at (a judgement)."""
_APART: Final = -1
"""The root of jobs that no root makes: whether they fit says nothing of others."""
_LEAST_OF_LEARNED: Final = 0.5
"""Where measured runs move times: none is said to take less than half of what is shipped (a
judgement)."""
_MANY: Final = 100
"""Groups of layouts from which it takes a while until the search itself finds a good one."""
_STEPS_DOWN: Final = 8
"""Changes of one thing each that are made at most to find a job that fits (a judgement)."""
_NO_PEAK: Final = 2**62
"""Bytes of a job without a legal setting."""
_UNFIT: Final = 2
"""The tier of what does not fit."""
_MOST_UNFIT: Final = 300
"""Jobs that do not fit after which a search ends that has found none that does, or that is of
layouts alone, for an answer at once: some seconds."""
_NEAREST: Final = 30
"""Jobs that are looked at for the one that is nearest to fit, where none does."""


class Searched(Struct, frozen=True, kw_only=True):
    """The best setting of each of the first layouts.

    evaluated: so many settings were looked at; every other one of every other layout is excluded by
    a bound. whole: False where the search ended before that; interrupted: by Ctrl-C.
    """

    evaluations: tuple[Evaluation, ...]
    evaluated: int
    whole: bool = True
    interrupted: bool = False

    @property
    def best(self) -> Evaluation:
        """First in the ranking's order."""
        return min(self.evaluations, key=order)

    def first_rows(self, known: tuple[Job, ...]) -> list[Evaluation]:
        """The first of them, those alone that fit where any does, and those on `known` layouts."""
        ordered = sorted(self.evaluations, key=order)
        shown = [row for row in ordered if tier(row) == tier(ordered[0])][:ROWS]
        wanted = {_row(job) for job in known}
        return shown + [row for row in ordered if row not in shown and _row(row.job) in wanted]


def evaluate_settings(
    job: Job, settings: tuple[Setting, ...], calibration: Calibration
) -> tuple[Evaluation, ...]:
    """All `settings` on one job."""
    evaluator = Evaluator(job, calibration)
    return tuple(evaluator.evaluate(setting) for setting in settings)


class Progress(Struct, frozen=True, kw_only=True):
    """How far a search is. best: first of what was found; evaluated: so many settings; share: of
    the way from the least bound of all to that at which it ends, once it is known."""

    best: Evaluation | None
    evaluated: int
    share: float


Watch = Callable[[Progress], None]
_EACH: Final = 64
"""Steps between two calls of a Watch."""


class _Group(Struct, frozen=True):
    """Layouts that wait for their turn, with one micro batch or all; sequence: seconds of one, once
    a job of theirs was made."""

    root: int
    layout: ParallelLayout
    micro_batch_size: int | None = None
    sequence: float | None = None


class _Point(Struct, frozen=True):
    """A layout and a micro batch that wait."""

    root: int
    layout: ParallelLayout
    micro_batch_size: int


class _Graphed(Struct, frozen=True):
    """A job that waits with fewer launches than its own."""

    job: Job


class _Ready(Struct, frozen=True):
    """A job whose settings wait to be evaluated."""

    root: int
    evaluator: Evaluator


_Waiting = _Group | _Point | _Graphed | _Ready


class Search:
    """Search of the jobs of a resolution; what the request fixed stays fixed.

    asked: the settings to choose from; empty means any legal one. within: share above the best step
    time up to which all layouts are looked at. options: whether options of the job may change as
    well. watch: is told how far it is.
    """

    def __init__(
        self,
        resolution: Resolution,
        calibration: Calibration,
        asked: tuple[Setting, ...] = (),
        *,
        within: float = 0.0,
        options: bool = False,
        watch: Watch | None = None,
    ) -> None:
        self._resolution, self._calibration = resolution, calibration
        self._stack = adapter_of(resolution.config.framework)
        self._asked, self._options, self._watch = asked, options, watch
        self._batch = resolution.config.global_batch_size
        self._budget = resolution.config.memory_budget_bytes or resolution.gpu.memory_bytes
        self._rows = _Rows(within)
        self._waiting: list[tuple[float, int, _Waiting]] = []
        self._numbers = count()
        self._static: dict[object, int] = {}
        self._may: dict[object, bool] = {}
        self._unfit: dict[object, list[int]] = {}
        self._smallest: list[tuple[int, int, Job]] = []
        self._num_unfit = 0
        self._evaluated = 0

    def near(self, job: Job) -> Searched:
        """What is found from a job to neighbour after neighbour, and nothing proven: soon done, and
        only what fits where anything does."""
        self._look_at(_APART, Evaluator(job, self._calibration))
        if not self._rows.fitting:
            self._descend(job)
        self._climb()
        found = tuple(self._rows.kept.values())
        return Searched(evaluations=found, evaluated=self._evaluated, whole=False)

    def run(self, known: tuple[Job, ...] = ()) -> Searched:
        """Look at `known` jobs, and at what may come among the rows. UserError where no layout is
        legal; Ctrl-C ends it with what was found."""
        template = self._template()
        self._roots: tuple[Root, ...] = (Root(self._resolution, template),)
        if self._options:
            self._roots = roots(self._resolution, template)
        self._holding = [_optimizer_options(root.template) for root in self._roots]
        self._floors: list[Floors] = []
        for root in self._roots:
            self._floors.append(Floors(root.template, self._calibration, self._floors))
        config = self._resolution.config
        self._sizes: tuple[int, ...] = (config.micro_batch_size,)
        if self._resolution.micro_batch_is_free:
            self._sizes = divisors(self._batch)
        whole, interrupted = True, False
        try:
            for job in known:
                self._look_at(_APART, Evaluator(job, self._calibration))
            for number, root in enumerate(self._roots):
                for group in groups(root.resolution):
                    if self._is_possible(number, group) and self._may_hold(number, group):
                        self._wait_for_group(_Group(number, group))
            if not self._rows.fitting:
                self._descend(known[0] if known else template)
            if len(self._waiting) > _MANY:
                self._climb()
            whole = self._go()
            if not self._rows.fitting:
                self._look_at_the_smallest()
        except KeyboardInterrupt:
            whole, interrupted = False, True
            if not self._rows.kept:
                raise
        return Searched(
            evaluations=tuple(self._rows.kept.values()),
            evaluated=self._evaluated,
            whole=whole,
            interrupted=interrupted,
        )

    def _descend(self, job: Job) -> None:
        """From a job to its neighbour that may need least, and on, until one fits: only then is
        known how fast the others have to be."""
        smallest = self._least_peak(Evaluator(job, self._calibration))
        for _ in range(_STEPS_DOWN):
            before = smallest
            for neighbour in neighbours(smallest[1].job):
                if self._is_asked(neighbour.job) and not self._refuses(neighbour.job):
                    smallest = min(
                        smallest,
                        self._least_peak(Evaluator(neighbour.job, self._calibration)),
                        key=lambda pair: pair[0],
                    )
            self._look_at(_APART, smallest[1])
            if self._rows.fitting or smallest is before:
                return

    def _least_peak(self, evaluator: Evaluator) -> tuple[int, Evaluator]:
        """Bytes of the job's slowest settings, which keep least, as a rule."""
        settings = self._asked or self._stack.candidates(evaluator.job)
        legal = [s for s in settings if not (self._asked and self._stack.check(s, evaluator.job))]
        timed = sorted((evaluator.timed(s) for s in legal), key=lambda one: one.time.total)
        peaks = [evaluator.evaluate_timed(one).peak_reserved_bytes for one in timed[-2:]]
        return min(peaks, default=_NO_PEAK), evaluator

    def _refuses(self, job: Job) -> bool:
        return bool(self._stack.check(self._stack.none, job))

    def _climb(self) -> None:
        """From the best so far to its best neighbour, and on: soon a step is known that most
        layouts cannot undercut."""
        while (best := self._rows.best) is not None and best.fits:
            for neighbour in neighbours(best.job):
                if self._is_asked(neighbour.job):
                    evaluator = Evaluator(neighbour.job, self._calibration)
                    if evaluator.at_least_seconds < self._rows.first:
                        self._look_at(_APART, evaluator)
            if self._rows.first >= best.step_time_seconds:
                return

    def _is_asked(self, job: Job) -> bool:
        """Whether a job has all that was given."""
        plain = self._resolution
        fixed = plain.layout_fields
        if any(getattr(job.layout, name) != value for name, value in fixed.items()):
            return False
        size = job.config.micro_batch_size
        if size != plain.config.micro_batch_size and not plain.micro_batch_is_free:
            return False
        usual = replace(job, model=plain.model, config=replace(plain.config, micro_batch_size=size))
        return not (is_given(usual, job, plain) if self._options else changed(usual, job))

    def _go(self) -> bool:
        """Look at what may come among the rows, the least bound first; False where so much did not
        fit that the rest was not looked at."""
        start, steps = self._waiting[0][0] if self._waiting else 0.0, 0
        while self._waiting and self._waiting[0][0] <= self._rows.limit:
            hopeful = self._options and self._rows.first < inf
            if not hopeful and self._num_unfit > _MOST_UNFIT:
                return False
            bound, _, item = heappop(self._waiting)
            self._expand(item)
            steps += 1
            if self._watch and steps % _EACH == 1:
                way = self._rows.limit - start
                share = (bound - start) / way if 0 < way < inf else 0.0
                best = self._rows.best
                self._watch(Progress(best=best, evaluated=self._evaluated, share=share))
        return True

    def _template(self) -> Job:
        """Any legal job, with experts and tensors cut where that is legal."""
        refused: list[Rejection] = []
        for group in sorted(groups(self._resolution), key=_cuts, reverse=True):
            for job in self._jobs_of(group, refused):
                return job
        raise _nothing_legal(self._resolution, refused)

    def _jobs_of(self, group: ParallelLayout, refused: list[Rejection]) -> Iterator[Job]:
        for layout in of_group(self._resolution, group):
            for size in micro_batches(self._resolution, layout)[:1]:
                try:
                    job = self._resolution.job(layout, size)
                except UserError:
                    continue
                found = self._stack.check(self._stack.none, job)
                refused += found
                if not found:
                    yield job

    def _wait_at_floor(self, floor: float, item: _Waiting) -> None:
        """A floor is that of the shipped times."""
        learned = type(self._calibration) is not Calibration
        self._wait(floor * _LEAST_OF_LEARNED if learned else floor, item)

    def _wait(self, bound: float, item: _Waiting) -> None:
        if bound <= self._rows.limit:
            heappush(self._waiting, (bound, next(self._numbers), item))

    def _wait_for_group(self, item: _Group) -> None:
        """A group undercuts none of its own with one micro batch: see Floors."""
        group, sequence = item.layout, item.sequence
        if sequence is None:
            size = item.micro_batch_size or self._batch
            sequence = self._floors[item.root].of_sequence(group, size)
        ranks = group.tensor_model_parallel_size * group.context_parallel_size
        optimizer = self._floors[item.root].optimizer
        floor = sequence * self._batch * ranks / self._resolution.num_gpus + optimizer
        self._wait_at_floor(floor, item)

    def _expand(self, item: _Waiting) -> None:
        match item:
            case _Group(root, group, None):
                for size in self._sizes:
                    self._wait_for_group(_Group(root, group, size))
            case _Group(root, group, int(size), None) if self._options:
                sequence = self._floors[root].of_sequence(group, size)
                self._add_layouts(root, group, size, sequence)
            case _Group(root, group, int(size), None):
                job = self._any_of(root, group, size)
                if job is not None:
                    evaluator = Evaluator(job, self._calibration)
                    sequence = evaluator.least_sequence_seconds(host=not self._options)
                    self._wait_for_group(_Group(root, group, size, sequence))
            case _Group(root, group, int(size), float(sequence)):
                self._add_layouts(root, group, size, sequence)
            case _Point(root, layout, size):
                if not self._is_too_large(root, layout, size):
                    job = self._job(root, layout, size)
                    if job is not None:
                        self._add_job(root, job)
            case _Graphed(job):
                launches = frozenset((Effect.LAUNCHES,))
                for _, other in variants(job, launches, self._resolution):
                    self._add_job(_APART, other)
            case _Ready(root, evaluator):
                self._look_at(root, evaluator)

    def _any_of(self, root: int, group: ParallelLayout, size: int) -> Job | None:
        """The first job of a group that can be made."""
        for layout in self._with_size(root, group, size):
            job = self._job(root, layout, size)
            if job is not None:
                return job
        return None

    def _with_size(self, root: int, group: ParallelLayout, size: int) -> Iterator[ParallelLayout]:
        """Layouts of a group that give all ranks whole micro batches of `size`."""
        for layout in of_group(self._roots[root].resolution, group):
            if self._batch % (layout.data_parallel_size * size) == 0:
                yield layout

    def _add_layouts(self, root: int, group: ParallelLayout, size: int, sequence: float) -> None:
        for layout in self._with_size(root, group, size):
            if not self._is_too_large(root, layout, size):
                bound = step_seconds(sequence, layout, size, self._batch)
                bound += self._floors[root].optimizer
                self._wait_at_floor(bound, _Point(root, layout, size))

    def _job(self, root: int, layout: ParallelLayout, size: int) -> Job | None:
        try:
            return self._roots[root].resolution.job(layout, size)
        except UserError:
            return None

    def _add_job(self, root: int, job: Job) -> None:
        evaluator = Evaluator(job, self._calibration)
        self._wait(evaluator.at_least_seconds, _Ready(root, evaluator))
        if self._options and evaluator.at_least_without_host < evaluator.at_least_seconds * (
            1 - SAME_TIME
        ):
            self._wait(evaluator.at_least_without_host, _Graphed(job))

    def _is_too_large(self, root: int, layout: ParallelLayout, size: int) -> bool:
        """Whether its states are, or a micro batch of which this one is a multiple did not fit."""
        unfit = self._unfit.get((root, layout), ())
        return any(size % small == 0 for small in unfit) or self._holds_too_much(root, layout, size)

    def _is_possible(self, root: int, group: ParallelLayout) -> bool:
        """Whether the degrees of a group divide the model's shape."""
        try:
            check_model_fits_layout(self._roots[root].resolution.model, group)
        except UserError:
            return False
        return True

    def _may_hold(self, root: int, group: ParallelLayout) -> bool:
        """Whether the states of any layout of a group are not too large, as far as is known."""
        names = (name for name in _HOLDING if name != "pipeline_model_parallel_size")
        key = (self._holding[root], *(getattr(group, name) for name in names))
        if key not in self._may:
            resolution = self._roots[root].resolution
            self._may[key] = any(
                not self._holds_too_much(root, layout, size)
                for layout in of_group(resolution, group)
                for size in micro_batches(resolution, layout)[:1]
            )
        return self._may[key]

    def _holds_too_much(self, root: int, layout: ParallelLayout, size: int) -> bool:
        states = (self._holding[root], *(getattr(layout, name) for name in _HOLDING))
        if states not in self._static:
            job = self._job(root, layout, size)
            if job is None:
                return False
            held = self._static[states] = Evaluator(job, self._calibration).mean_static_bytes
            if held > self._budget and not self._stack.check(self._stack.none, job):
                self._smallest.append((held, len(self._smallest), job))
        return self._static[states] > self._budget

    def _look_at(self, root: int, evaluator: Evaluator) -> None:
        job = evaluator.job
        layout, size = job.layout, job.config.micro_batch_size
        if self._stack.check(self._stack.none, job):
            return
        if not evaluator.is_hopeless and self._take_best(evaluator):
            return
        self._unfit.setdefault((root, layout), []).append(size)
        self._num_unfit += 1
        self._smallest.append((evaluator.at_least_bytes, len(self._smallest), job))

    def _take_best(self, evaluator: Evaluator) -> bool:
        """Take the fastest setting that fits, or one that nearly does; whether any may."""
        settings = self._asked or self._stack.candidates(evaluator.job)
        legal = [s for s in settings if not (self._asked and self._stack.check(s, evaluator.job))]
        timed = sorted((evaluator.timed(s) for s in legal), key=lambda one: one.time.total)
        self._evaluated += len(timed)
        may_fit = False
        for one in timed:
            if one.time.total > self._rows.limit:
                return True
            found = evaluator.evaluate_if_it_may_fit(one)
            if found is None:
                continue
            may_fit = True
            if one.time.total < self._rows.first and tier(found) < _UNFIT:
                found = found.replayed
            if self._rows.take(found):
                break
        return may_fit

    def _look_at_the_smallest(self) -> None:
        """Where nothing fits: the jobs that hold least before any activation, until one's peak is
        below what the next one holds."""
        least = inf
        for held, _, job in sorted(self._smallest)[:_NEAREST]:
            if held > least:
                break
            settings = self._asked or self._stack.candidates(job)
            for found in evaluate_settings(job, settings, self._calibration):
                self._rows.take(found)
                least = min(least, found.peak_reserved_bytes)


class _Rows:
    """The best setting of each layout and micro batch.

    first: seconds of the first; limit: within a share of it all others are wanted.
    """

    def __init__(self, within: float) -> None:
        self.kept: dict[object, Evaluation] = {}
        self.limit = self.first = inf
        self._within = within

    @property
    def best(self) -> Evaluation | None:
        """First of the ranking."""
        return min(self.kept.values(), key=order, default=None)

    @property
    def fitting(self) -> list[float]:
        """Seconds of those that fit, the least first."""
        return sorted(e.step_time_seconds for e in self.kept.values() if tier(e) == 0)

    def take(self, found: Evaluation) -> bool:
        """Keep it where it is better than what is kept of the same layout and micro batch; whether
        it fits."""
        key = _row(found.job)
        if key not in self.kept or order(found) < order(self.kept[key]):
            self.kept[key] = found
            fitting = self.fitting
            if fitting:
                self.first = fitting[0]
                self.limit = self.first * (1 + self._within)
        return tier(found) == 0


def _optimizer_options(job: Job) -> object:
    """A job's options but for those that decide nothing of what a rank holds of parameters."""
    layout, config = job.layout, job.config
    return (
        layout.use_distributed_optimizer,
        config.optimizer_cpu_offload,
        config.optimizer_offload_fraction,
        config.param_cpu_offload,
        config.use_precision_aware_optimizer,
        config.fp8_recipe,
    )


def _row(job: Job) -> object:
    layout = job.layout
    return (*(getattr(layout, name) for name in _DISTINCT), job.config.micro_batch_size)


_HOLDING: Final = (
    "tensor_model_parallel_size",
    "pipeline_model_parallel_size",
    "expert_model_parallel_size",
    "expert_tensor_parallel_size",
    "data_parallel_sharding",
)
"""What of a layout decides how much of weights, gradients and optimizer its stages hold in the
mean."""
_DISTINCT: Final = (
    *_HOLDING,
    "virtual_pipeline_model_parallel_size",
    "num_layers_in_first_pipeline_stage",
    "num_layers_in_last_pipeline_stage",
    "pipeline_model_parallel_layout",
    "sequence_parallel",
    "context_parallel_size",
    "cp_comm_type",
    "hierarchical_context_parallel_sizes",
)


def _cuts(group: ParallelLayout) -> tuple[bool, bool, bool]:
    """Layouts that cut tensors and experts, and nothing else."""
    return (
        group.expert_model_parallel_size > 1,
        group.tensor_model_parallel_size > 1,
        group.context_parallel_size == 1,
    )


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
