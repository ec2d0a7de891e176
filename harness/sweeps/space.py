"""The points of a sweep: recompute settings x micro batches x layouts, and which are legal."""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Final

from msgspec import Struct
from msgspec.structs import asdict, replace

from advisor.answer.evaluation import Evaluation
from advisor.base.errors import UserError
from advisor.base.units import human_bytes
from advisor.frameworks.framework_parts import RecomputeSettings
from advisor.frameworks.registry import parts_of
from advisor.hardware.gpu import check_budget
from advisor.job.job import Job
from advisor.job.layout import ParallelLayout
from advisor.plan.recompute_plan import Setting
from advisor.search.evaluate import Evaluator
from advisor.search.layouts import layouts
from advisor.search.ranking import order
from harness.backends.jobs import as_run, differences_as_run, is_backends_own
from harness.backends.native.unsupported import check
from harness.planner.device import Machine
from harness.planner.forecast import predict
from harness.planner.launcher_options import SweepOptions
from harness.planner.planning import Target, bare_trial, find_target
from harness.planner.run_request import RunConfig
from harness.trial.trial import AsRun, Backend, Device, PlannedSetting, Workload, layout_name

_BUDGET: Final = "sweep.memory_budget"


class Point(Struct, frozen=True, kw_only=True):
    """One choice of each; these are the names and values that Optuna sees."""

    layout: str
    micro_batch_size: int
    recompute: str

    def params(self) -> dict[str, str | int]:
        """The point as Optuna's parameters."""
        return asdict(self)

    @property
    def label(self) -> str:
        """The point in a line of progress."""
        return f"{self.layout} mbs{self.micro_batch_size} {self.recompute}"


class Space(Struct, frozen=True):
    """All points in the advisor's order. planned: each as a setting, or why it is illegal."""

    planned: dict[Point, PlannedSetting]
    target: Target

    @property
    def budget_bytes(self) -> int | None:
        """What a peak may be: sweep.memory_budget, or the job's own; None where nobody said."""
        return self.target.job.config.memory_budget_bytes

    @property
    def room_bytes(self) -> int | None:
        """The budget, else what the GPU has; None on a CPU, where nobody said."""
        on_cpu = self.device is Device.CPU
        return self.budget_bytes or (None if on_cpu else self.target.job.gpu.memory_bytes)

    @property
    def device(self) -> Device:
        """What all trials run on."""
        return next(iter(self.planned.values())).trial.workload.device

    def choices(self) -> dict[str, list[str | int]]:
        """Values of each parameter, in a fixed order."""
        names = Point.__struct_fields__
        return {name: sorted({p.params()[name] for p in self.planned}, key=str) for name in names}

    @property
    def legal(self) -> list[Point]:
        """Points that may be run, in the advisor's order."""
        return [point for point, planned in self.planned.items() if not planned.skip]

    def point_of(self, workload: Workload) -> Point | None:
        """The point that a workload is; None where it is none of ours."""
        point = Point(
            layout=layout_name(workload.layout),
            micro_batch_size=workload.micro_batch_size,
            recompute=workload.recompute,
        )
        known = self.planned.get(point)
        return point if known is not None and known.trial.workload == workload else None


def make_space(config: RunConfig, machine: Machine, options: SweepOptions) -> Space:
    """Every point; UserError where none is legal."""
    target, budget = find_target(config, machine), options.budget_bytes()
    if machine.device is not Device.CPU:
        check_budget(budget, target.job.gpu, _BUDGET)
    if budget is not None:  # what fits is judged by it
        limited = replace(target.job.config, memory_budget_bytes=budget)
        target = replace(target, job=replace(target.job, config=limited))
    found = dict(_Builder(config, machine, options, target).points())
    if all(planned.skip for planned in found.values()):
        raise _nothing_to_run(config.experiment_name, found, options)
    return Space(found, target)


def _nothing_to_run(
    name: str, found: Mapping[Point, PlannedSetting], options: SweepOptions
) -> UserError:
    """Why no point is run: the budget where some only need more, else the most common reason."""
    other = "change sweep.micro_batch_sizes, sweep.layouts or recompute.settings"
    predicted = [planned.trial.prediction for planned in found.values()]
    peaks = [one.peak_reserved_bytes for one in predicted if one and one.peak_reserved_bytes]
    budget = options.budget_bytes()
    if budget is not None and peaks and min(peaks) > budget:
        relation = f"fits none of {len(found)} points; the smallest needs"
        least = human_bytes(min(peaks))
        return UserError(
            _BUDGET, human_bytes(budget), f"{relation} {least}", f"raise it, or {other}"
        )
    (reason, number), *_ = Counter(planned.skip for planned in found.values()).most_common()
    relation = f"has no legal point: {reason} ({number} of {len(found)} points)"
    return UserError("sweep", name, relation, other)


class _Builder:
    """Evaluates the product of layouts, micro batches and settings."""

    def __init__(
        self, config: RunConfig, machine: Machine, options: SweepOptions, target: Target
    ) -> None:
        self._config, self._machine, self._options = config, machine, options
        self._target = target
        self._trial = bare_trial(config, machine, target.job, "none")
        self._as_run: dict[Job, AsRun] = {}
        framework = target.job.config.framework
        self._settings: RecomputeSettings = parts_of(framework).settings
        asked = config.recompute.settings
        self._own = [text for text in asked if is_backends_own(text, framework)]
        self._named = [text for text in asked if text not in self._own]

    def points(self) -> Iterator[tuple[Point, PlannedSetting]]:
        """Legal points in the advisor's order, those that only the backend knows, those not run."""
        jobs = {(layout, size): self._job(layout, size) for layout, size in self._shapes()}
        legal: dict[Point, PlannedSetting] = {}
        places: dict[Point, tuple[float, ...]] = {}
        for found in jobs.values():
            for evaluation in self._evaluate(found) if isinstance(found, Job) else ():
                point, planned = self._legal(evaluation)
                legal[point], places[point] = planned, _place(evaluation, planned)
        ordered = sorted(legal, key=places.__getitem__)
        run = [point for point in ordered if not legal[point].skip]
        yield from ((point, replace(legal[point], rank=k)) for k, point in enumerate(run, start=1))
        yield from ((point, legal[point]) for point in ordered if legal[point].skip)
        specs = list(dict.fromkeys(point.recompute for point in ordered))
        own = self._own
        others = [self._settings.parse(text).spec for text in self._named]
        for (layout, size), job in jobs.items():
            for spec in dict.fromkeys([*own, *specs, *others]):
                if isinstance(job, str):
                    yield self._bare(layout, size, spec, job)
                elif self._point(layout, size, spec) not in legal:
                    reason = "" if spec in own else self._refusal(job, spec)
                    yield self._bare(layout, size, spec, reason)

    def _shapes(self) -> Iterator[tuple[ParallelLayout, int]]:
        job = self._target.job
        found: tuple[ParallelLayout, ...] = (job.layout,)
        if self._options.layouts:  # all is searched that nobody gave
            free = {"layout_fields": self._config.layout, "micro_batch_is_free": True}
            legal = layouts(replace(self._target.resolution, **free))
            found = tuple(dict.fromkeys((job.layout, *legal)))
        sizes = self._options.micro_batch_sizes or (job.config.micro_batch_size,)
        return ((layout, size) for layout in found for size in dict.fromkeys(sizes))

    def _job(self, layout: ParallelLayout, size: int) -> Job | str:
        """The job of a layout and a micro batch, or why there is none."""
        base = self._target.job
        try:
            job = replace(base, layout=layout, config=replace(base.config, micro_batch_size=size))
        except UserError as error:
            return str(error)
        refused = self._settings.check_job(job)
        return refused[0].reason if refused else job

    def _evaluate(self, job: Job) -> Iterator[Evaluation]:
        workload = replace(
            self._trial.workload, layout=job.layout, micro_batch_size=job.config.micro_batch_size
        )
        evaluator = Evaluator(as_run(job, workload), self._target.calibration)
        return map(evaluator.evaluate, self._to_try(job))

    def _to_try(self, job: Job) -> list[Setting]:
        if not self._config.recompute.settings:
            return list(self._settings.candidates(job))
        named = dict.fromkeys(self._settings.parse(text) for text in self._named)
        return [setting for setting in named if not self._settings.check(setting, job)]

    def _refusal(self, job: Job, spec: str) -> str:
        refused = self._settings.check(self._settings.parse(spec), job)
        return refused[0].reason if refused else "keeps and replays the same as another setting"

    def _legal(self, evaluation: Evaluation) -> tuple[Point, PlannedSetting]:
        job = evaluation.job
        size, spec = job.config.micro_batch_size, evaluation.setting.spec
        point, planned = self._bare(job.layout, size, spec, "")
        prediction = predict(planned.trial.workload, evaluation)
        as_run = self._as_run.get(job) or differences_as_run(job, planned.trial.workload)
        self._as_run[job] = as_run  # one for all settings of a job: it takes longest
        trial = replace(planned.trial, prediction=prediction, as_run=as_run)
        planned = replace(planned, trial=trial)
        likely, least = prediction.fit_probability, self._options.min_fit_probability
        if planned.skip or likely is None or likely >= least:
            return point, planned
        reason = f"predicted to fit with a probability below sweep.min_fit_probability = {least:g}"
        return point, replace(planned, skip=reason)

    def _bare(
        self, layout: ParallelLayout, size: int, spec: str, skip: str
    ) -> tuple[Point, PlannedSetting]:
        trial = self._trial
        workload = replace(trial.workload, layout=layout, micro_batch_size=size, recompute=spec)
        point = self._point(layout, size, spec)
        why = skip or _refusal_by_backend(workload)
        prediction = predict(workload) if workload.device is Device.CPU and not why else None
        trial = replace(trial, workload=workload, prediction=prediction)
        return point, PlannedSetting(trial=trial, skip=why, label=point.label)

    @staticmethod
    def _point(layout: ParallelLayout, size: int, spec: str) -> Point:
        return Point(layout=layout_name(layout), micro_batch_size=size, recompute=spec)


def _refusal_by_backend(workload: Workload) -> str:
    """Why our own backend does not run a workload; empty where it does, or only its trial knows."""
    if workload.backend is Backend.NATIVE:
        try:
            check(workload)
        except UserError as error:
            return f"{error.field}: {error.relation}"
    return ""


def _place(evaluation: Evaluation, planned: PlannedSetting) -> tuple[float, ...]:
    """The advisor's order, by the time in which the backend is predicted to run it."""
    tier, seconds, *rest = order(evaluation)
    predicted = planned.trial.prediction
    known = predicted is not None and predicted.step_time_seconds
    return (tier, known if known and tier < 2 else seconds, *rest)
