"""The best settings of all layouts and micro batches of a job, by best-first branch and bound.

What waits stands in the order of what it cannot undercut: groups of layouts first, then layouts
with a micro batch each, then jobs. The search ends when what waits cannot come among the rows that
are wanted: then every legal job was evaluated, or excluded by a bound. Times bound it (see floor);
what cannot fit is left out as soon as that is known (see too_large).
"""

from collections.abc import Callable, Iterator
from math import inf
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from advisor.answer.answer import SAME_TIME, Rejection
from advisor.answer.evaluation import Evaluation
from advisor.base.errors import UserError, divisors, either, if_legal
from advisor.frameworks.part_types import Effect
from advisor.frameworks.registry import parts_of
from advisor.hardware.calibration import Calibration
from advisor.job.job import Job
from advisor.job.layout import ParallelLayout, has_whole_heads
from advisor.plan.recompute_plan import Setting
from advisor.request.layout_fields import whole_tensors
from advisor.request.origin import GIVEN
from advisor.request.resolve import Resolution
from advisor.search import layouts
from advisor.search.best_first import BestFirst
from advisor.search.bounds import Floors, TooLarge
from advisor.search.changed_options import Root, roots, variants
from advisor.search.evaluate import Evaluator
from advisor.search.found import BestFound, Climb, Searched
from advisor.search.layouts import micro_batches, of_group
from advisor.time.machine import machine_of
from advisor.time.optimizer_time import least_optimizer_seconds

NEAR: Final = 0.02
"""Share above the best step time up to which all layouts are looked at (a judgement)."""
_LEAST_OF_LEARNED: Final = 0.5
"""Where measured runs move times: none is said to take less than half of what is shipped (a
judgement)."""
_LIKE: Final = 10
"""Groups of layouts in which jobs are looked for that stand for all."""
_MANY: Final = 50
"""Groups of layouts from which it takes a while until the search itself finds a good one."""
_EFFORT_OF_A_STEP: Final = 2.0
_MOST_UNFIT: Final = 300
"""Jobs that do not fit after which a search ends that has found none that does, or that is of
layouts alone, for an answer at once: some seconds."""


class Progress(Struct, frozen=True, kw_only=True):
    """How far a search is. best: first of what was found; evaluated: so many settings; share: of
    the way from the least bound of all to that at which it ends, once it is known."""

    best: Evaluation | None
    evaluated: int
    share: float


Watch = Callable[[Progress], None]
_EACH: Final = 64
"""Steps between two calls of a Watch."""


class _Dense(Struct, frozen=True):
    """Groups that differ in their experts alone. exact: whether the bound counts what CP takes."""

    root: int
    group: ParallelLayout
    exact: bool = False


class _Group(Struct, frozen=True):
    """Layouts that wait for their turn, with one micro batch or all."""

    root: int
    group: ParallelLayout
    micro_batch_size: int | None = None


class _Point(Struct, frozen=True):
    """A layout and a micro batch that wait."""

    root: int
    layout: ParallelLayout
    micro_batch_size: int


class _Graphed(Struct, frozen=True):
    """A job that waits with fewer launches than its own."""

    job: Job


class _Ready(Struct, frozen=True):
    """A job whose settings wait to be evaluated; root: None where no root makes it, so that whether
    it fits says nothing of others."""

    root: int | None
    evaluator: Evaluator


_Waiting = _Dense | _Group | _Point | _Graphed | _Ready


class Search:
    """Search of the jobs of a resolution; what the request fixed stays fixed.

    asked, within, most: see BestFound. options: whether options of the job may change as well.
    likely: probability from which a setting fits, None for the job's certainty. watch: is told how
    far it is.
    """

    def __init__(
        self,
        resolution: Resolution,
        calibration: Calibration,
        asked: tuple[Setting, ...] = (),
        *,
        within: float = 0.0,
        options: bool = False,
        likely: float | None = None,
        most: float = inf,
        watch: Watch | None = None,
    ) -> None:
        self._resolution, self._calibration, self._asked = resolution, calibration, asked
        self._framework = parts_of(resolution.config.framework)
        self._options, self._watch, self._most = options, watch, most
        self._batch = resolution.config.global_batch_size
        self._sizes: tuple[int, ...] = (resolution.config.micro_batch_size,)
        if resolution.micro_batch_is_free:
            self._sizes = divisors(self._batch)
        segments = options and resolution.origins.get("job.expandable_segments") != GIVEN
        likely = likely or resolution.config.certainty
        self._found = BestFound(
            calibration, asked, within, either_segments=segments, likely=likely, most=most
        )
        self._least = 0.0
        self._waiting = BestFirst[_Waiting](lambda bound: bound <= self._found.limit)

    def run(self, known: tuple[Job, ...] = ()) -> Searched:
        """Look at `known` jobs, and at what may come among the rows. UserError where no layout is
        legal; Ctrl-C ends it with what was found."""
        templates = self._templates()
        self._take_roots(templates)
        found, whole, interrupted = self._found, True, False
        climb = Climb(self._resolution, self._calibration, found, options=self._options)
        try:
            for job in known:
                found.look_at(Evaluator(job, self._calibration))
            for root in range(self._bases):
                for group in layouts.dense_groups(self._roots[root].resolution):
                    self._wait_for_dense(_Dense(root, group))
            if not found.fits:
                climb.descend(known[0] if known else templates[0])
            if len(self._waiting) > _MANY or self._most < inf:
                climb.climb()
            whole = self._go()
            found.settle()
            self._least = found.first if whole else min(self._least, found.first)
            if not found.fits:
                found.look_at_the_smallest(self._too_large.smallest)
        except KeyboardInterrupt:
            whole, interrupted = False, True
            if found.best is None:
                raise
        each = len(self._framework.settings.tried(templates[0]))
        return replace(
            found.searched(whole=whole),
            interrupted=interrupted,
            least_seconds=self._least,
            excluded=self._waiting.excluded * each,
        )

    def nothing_taken(self) -> Iterator[Rejection]:
        """Why one of the usual jobs takes none of the settings asked for."""
        for job in self._templates():
            for setting in self._asked:
                yield from self._framework.settings.check(setting, job)

    def _take_roots(self, templates: tuple[Job, ...]) -> None:
        """Those from which groups and layouts come stand first, what is lighter after them."""
        alone = (Root(self._resolution, templates[0]),)
        bases = roots(self._resolution, templates) if self._options else alone
        self._bases, every = len(bases), list(bases)
        self._lighter: list[range] = []
        for base in bases:
            self._lighter.append(range(len(every), len(every) + len(base.lighter)))
            every += base.lighter
        self._lighter += [range(0)] * (len(every) - len(bases))
        self._roots, jobs = tuple(every), (root.template for root in every)
        self._optimizer = [
            least_optimizer_seconds(job, machine_of(job, self._calibration)) for job in jobs
        ]
        self._floors: list[Floors] = []
        for base in bases:
            first = self._floors[0] if self._floors else None
            self._floors.append(Floors(base.template, self._calibration, first))
        budget = self._resolution.config.memory_budget_bytes or self._resolution.gpu.memory_bytes
        self._too_large = TooLarge(self._roots, self._floors[0], budget)

    def _go(self) -> bool:
        """Look at what may come among the rows, the least bound first; False where it ends before
        it is known that nothing beats the first."""
        found, start = self._found, 0.0
        for steps, (bound, item) in enumerate(self._waiting):
            start = start if steps else bound
            hopeful, self._least = self._options and found.fits, bound
            found.effort += _EFFORT_OF_A_STEP
            if found.effort > self._most:
                return bound >= found.first
            if not hopeful and found.unfit > _MOST_UNFIT:
                return False
            self._expand(bound, item)
            if self._watch and steps % _EACH == 0:
                way = found.limit - start
                share = (bound - start) / way if 0 < way < inf else 0.0
                self._watch(Progress(best=found.best, evaluated=found.evaluated, share=share))
        return True

    def _templates(self) -> tuple[Job, ...]:
        """Legal jobs, the first with experts and tensors cut where that is legal: of each sharding
        one with a single microbatch and one with several, as far as they are soon found."""
        refused: list[Rejection] = []
        kinds, found = 2 * len(self._framework.jobs.degrees.shardings), dict[object, Job]()
        looked_at = 0
        for group in sorted(layouts.groups(self._resolution), key=_cuts, reverse=True):
            for job in self._jobs_of(group, refused):
                kind = job.layout.data_parallel_sharding, job.num_microbatches > 1
                found.setdefault(kind, job)
                if len(found) == kinds:
                    return tuple(found.values())
            looked_at += bool(found)
            if looked_at == _LIKE:
                break
        if not found:
            raise _nothing_legal(self._resolution, refused)
        return tuple(found.values())

    def _jobs_of(self, group: ParallelLayout, refused: list[Rejection]) -> Iterator[Job]:
        for layout in of_group(self._resolution, group):
            for size in micro_batches(self._resolution, layout)[:1]:
                job = if_legal(self._resolution.job, layout, size)
                found = self._framework.settings.check_job(job) if job else ()
                refused += found
                if job and not found:
                    yield job

    def _wait_at_floor(self, floor: float, item: _Waiting, least: float = 0.0) -> None:
        """A floor is one of the shipped times; least: another bound of the item."""
        learned = type(self._calibration) is not Calibration
        self._waiting.add(max(least, floor * _LEAST_OF_LEARNED if learned else floor), item)

    def _wait_for_dense(self, item: _Dense) -> None:
        tp, model = item.group.tensor_model_parallel_size, self._roots[item.root].resolution.model
        degrees = tuple(layouts.expert_degrees(self._resolution, tp))
        if degrees and has_whole_heads(model, item.group):
            floor = self._floors[item.root].of_dense(item.group, degrees, exact=item.exact)
            self._wait_at_floor(floor, item)

    def _expand(self, bound: float, item: _Waiting) -> None:
        match item:
            case _Dense(root, group, exact):
                if exact or group.context_parallel_size == 1:
                    self._add_groups(root, group)
                else:
                    self._wait_for_dense(_Dense(root, group, True))
            case _Group(root, group, None):
                self._add_sizes(root, group)
            case _Group(root, group, int(size)):
                self._add_layouts(root, group, size)
            case _Point(root, layout, size):
                too_large = self._too_large.is_layout(root, layout, size)
                job = None if too_large else self._roots[root].job(layout, size)
                if job is not None:
                    self._add_job(root, job)
                else:
                    self._add_lighter(bound, root, layout, size)
            case _Graphed(job):
                for _, other in variants(job, frozenset((Effect.LAUNCHES,)), self._resolution):
                    self._add_job(None, other)
            case _Ready(root, evaluator):
                self._look_at(bound, root, evaluator)

    def _add_groups(self, root: int, dense: ParallelLayout) -> None:
        floors, like = self._floors[root], (root, *self._lighter[root])
        for group in layouts.with_experts(self._roots[root].resolution, dense):
            floor = floors.of_group(group)
            if not all(self._too_large.is_group(one, group) for one in like):
                self._wait_at_floor(floor, _Group(root, group))

    def _add_sizes(self, root: int, group: ParallelLayout) -> None:
        for size in self._sizes:
            if not self._too_large.is_micro_batch(group, size):
                floor = self._floors[root].with_size(group, size)
                self._wait_at_floor(floor, _Group(root, group, size))

    def _add_layouts(self, root: int, group: ParallelLayout, size: int) -> None:
        """Those that give all ranks whole micro batches of `size`."""
        for layout in of_group(self._roots[root].resolution, group):
            if self._batch % (layout.data_parallel_size * size) == 0:
                floor = if_legal(self._floors[root].of_layout, layout, size)
                if floor is not None:
                    self._wait_at_floor(floor, _Point(root, layout, size))

    def _add_lighter(self, bound: float, root: int, layout: ParallelLayout, size: int) -> None:
        """What holds less than a root's job takes no less time, and its own optimizer's."""
        for lighter in self._lighter[root]:
            more = max(0.0, self._optimizer[lighter] - self._optimizer[root])
            floor = self._floors[root].of_layout(layout, size) + more
            self._wait_at_floor(floor, _Point(lighter, layout, size), bound)

    def _add_job(self, root: int | None, job: Job) -> None:
        evaluator = Evaluator(job, self._calibration)
        self._waiting.add(evaluator.at_least_seconds, _Ready(root, evaluator))
        fewer = evaluator.at_least_without_host if self._options else inf
        if fewer < evaluator.at_least_seconds * (1 - SAME_TIME):
            self._waiting.add(fewer, _Graphed(job))

    def _look_at(self, bound: float, root: int | None, evaluator: Evaluator) -> None:
        looked, job = self._found.look_at(evaluator), evaluator.job
        if root is not None and looked.unfit:
            self._too_large.did_not_fit(root, job)
        if root is not None and looked.short:
            self._add_lighter(bound, root, job.layout, job.config.micro_batch_size)


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
    given = {name: v for name, v in resolution.layout_fields.items() if name not in implied}
    said = ", ".join(f"{name} = {value}" for name, value in given.items())
    batch = resolution.config.global_batch_size
    none = f"no legal layout of {resolution.model.name} for global batch {batch}"
    reason = f"{none} on this number of GPUs" + (f" with {said}" if given else "")
    fix = "change the number of GPUs or the global batch"
    if given:
        fix = f"leave out {either(given)}, so that advise chooses it"
    return UserError("--gpus", resolution.num_gpus, reason, fix)
