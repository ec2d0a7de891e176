"""One setting on one job: memory of every stage, and the time of a step."""

from collections import Counter
from collections.abc import Iterable
from functools import cached_property
from typing import TYPE_CHECKING, Final

from msgspec import Struct
from msgspec.structs import replace

from advisor.answer.evaluation import (
    CLEAR,
    LIKELY,
    Evaluation,
    EvaluationDetail,
    Simulation,
    TimeBreakdown,
)
from advisor.base.sharing import first_equal
from advisor.frameworks.registry import parts_of
from advisor.hardware.calibration import Calibration
from advisor.job.job import Job
from advisor.job.pipeline_split import (
    ModelChunk,
    Pipeline,
    Stages,
    pipeline_of,
    pipeline_stages,
)
from advisor.memory.allocator import Reserved
from advisor.memory.chunk import kept_bytes
from advisor.models.layer_kind import LayerKind
from advisor.models.spec import ModelSpec
from advisor.plan.flops import model_flops, replayed_flops
from advisor.plan.recompute_plan import RecomputePlan, Setting
from advisor.search.job_memory import JobMemory, StageDetail, StagePasses
from advisor.search.rank_shape import rank_shape
from advisor.search.replay_room import kept_by_operator, most_freed
from advisor.time.job_time import Directions, JobTime, StagePart, StepTail
from advisor.time.machine import Machine
from advisor.time.rank_links import Network

if TYPE_CHECKING:
    from advisor.learning.applied import Applied


class Timed(Struct, frozen=True):
    """A setting with the time of a step: the half of an evaluation that is soon done. error: half
    of the band around it, relative."""

    setting: Setting
    plans: list[RecomputePlan]
    time: TimeBreakdown
    error: float


class Evaluator:
    """Evaluates settings of one job; what does not depend on the setting is computed once, when it
    is first asked for.

    `calibration` gives the efficiencies; `recompute_overhead` is against `none` on the same job.
    stages: what they hold, where that is not what the job's layout says.
    """

    def __init__(self, job: Job, calibration: Calibration, stages: Stages | None = None) -> None:
        self.job = job
        self.calibration = calibration
        parts = parts_of(job.config.framework)
        self._none, self._model = parts.settings.none, parts.memory
        self.shape = first_equal(self._model.shape(job, rank_shape(job)))
        self.stages = stages or pipeline_stages(job.model, job.layout)
        self._pipeline = Pipeline(stages) if stages else pipeline_of(job.model, job.layout)
        self._kinds = tuple(dict.fromkeys(job.model.layer_kinds))
        self.budget_bytes = job.config.memory_budget_bytes or job.gpu.memory_bytes
        graphed, reductions = self._model.graphed_modules(job), self._model.reductions(job)
        self._time = JobTime(
            job, self.shape, self.stages, self._pipeline, calibration, graphed, reductions
        )
        self.step_time_error = step_time_error(job.model, calibration)
        self.learned = _learned(job, calibration)
        self._model_flops = model_flops(
            job.model,
            job.config.seq_length,
            job.config.global_batch_size,
            job.model.padded_vocab_size(job.layout.tensor_model_parallel_size),
            self.shape.attended_length,
        )

    @cached_property
    def at_least_seconds(self) -> float:
        """No setting takes less."""
        return self._at_least(host=True)

    @cached_property
    def at_least_without_host(self) -> float:
        """The same, did the processor never keep the GPU waiting."""
        return self._at_least(host=False)

    def _at_least(self, *, host: bool) -> float:
        least = self._time.at_least(self._plans(self._none), host=host)
        return least if self.learned is None else least * self.learned.least_factor

    @cached_property
    def _none_seconds(self) -> float:
        return self.seconds(self._none)

    @cached_property
    def _memory(self) -> JobMemory:
        return JobMemory(self.job, self.shape, self.stages, self._pipeline, self._model)

    @property
    def at_least_bytes(self) -> int:
        """No setting holds less."""
        return self._memory.fixed_bytes

    @property
    def mean_static_bytes(self) -> int:
        """Weights, gradients and optimizer of a stage, the mean over all: however layers are split
        over so many stages, one of them holds as much."""
        fixed = (self._model.fixed_memory(self.job, self.shape, held) for held in self.stages)
        return sum(one.static.total for one in fixed) // len(self.stages)

    @property
    def least_optimizer_seconds(self) -> float:
        """Seconds of the optimizer's step under any layout: see JobTime."""
        return self._time.least_optimizer_seconds

    @property
    def is_hopeless(self) -> bool:
        """Whether those bytes, which no recompute changes, are too many."""
        return self.at_least_bytes > self.budget_bytes

    def evaluate(self, setting: Setting) -> Evaluation:
        """Memory and time of `setting`, which must be legal for the job. The allocator is not
        simulated: see Evaluation.simulated."""
        return self.evaluate_timed(self.timed(setting))

    def timed(self, setting: Setting) -> Timed:
        """The time of a step under `setting`, its memory left aside."""
        plans = self._plans(setting)
        time, error = self._time.step(plans), self.step_time_error
        if self.learned is not None:
            time, error = self.learned.step(setting, time, error)
        return Timed(setting, plans, time, error)

    def shipped_time(self, setting: Setting) -> TimeBreakdown:
        """Seconds of a step by the calibration's efficiencies alone."""
        return self._time.step(self._plans(setting))

    def evaluate_timed(self, timed: Timed) -> Evaluation:
        """As evaluate."""
        return self._evaluation(timed, self._moved(self._memory.each_stage(timed.plans)))

    def evaluate_if_it_may_fit(self, timed: Timed) -> Evaluation | None:
        """The same, or None once it is clear of a stage that it does not fit, before a simulation
        as after it."""
        if self.learned is not None:  # what is measured may be less than what is predicted
            return self.evaluate_timed(timed)
        stages, unlikely = [], 1 - CLEAR
        for reserved in self._memory.at_least(timed.plans):
            if reserved.fit_probability(self.budget_bytes) <= unlikely:
                return None
        for stage in self._memory.each_stage(timed.plans):
            if stage.reserved.fit_probability(self.budget_bytes) <= unlikely:
                return None
            stages.append(stage)
        return self._evaluation(timed, stages)

    def may_fit_within(self, seconds: float) -> bool:
        """Whether replays alone may make the job fit in a step of so many seconds; False where
        none can, whatever they are."""
        if self.learned is not None:
            return True
        none, memory = self._plans(self._none), self._memory
        kept = [kept_bytes(self.shape, plan) for plan in none]
        stages = range(self.job.layout.pipeline_model_parallel_size)
        held = [sum(kept[group] * n for group, n in memory.in_flight(stage)) for stage in stages]
        worst = max(stages, key=lambda stage: memory.fixed_of(stage) + held[stage])
        made = [
            one.times(layers, number)
            for group, number in memory.in_flight(worst)
            for kind, layers in Counter(self._pipeline.groups[group]).items()
            for one in kept_by_operator(self.shape, *self.rates, kind)
        ]
        room = self._time.most_replay(none, worst, seconds) * (1 + _ROUNDING)
        least = memory.reserved_of(worst, held[worst] - int(most_freed(made, room)))
        return least.fit_probability(self.budget_bytes) > 1 - CLEAR

    def _evaluation(self, timed: Timed, stages: list[StageDetail]) -> Evaluation:
        setting, plans, seconds = timed.setting, timed.plans, timed.time.total
        error, most = timed.error, _most(stages)
        return Evaluation(
            job=self.job,
            setting=setting,
            calibration=self.calibration,
            peak_reserved_bytes=most,
            usual_reserved_bytes=most,
            time_seconds=timed.time,
            step_time_low_seconds=seconds * (1 - error),
            step_time_high_seconds=seconds * (1 + error),
            fit_probability=self._fit_probability(setting, stages),
            budget_bytes=self.budget_bytes,
            model_flops_per_step=float(self._model_flops),
            recompute_overhead=seconds / self._none_seconds - 1,
            look=lambda: self._detail(setting, plans, stages),
            simulate=lambda: self._simulation(setting),
        )

    def seconds(self, setting: Setting) -> float:
        """Seconds of a step under `setting`."""
        return self.timed(setting).time.total

    def parts(self, setting: Setting) -> list[StagePart]:
        """What each stage has of a step under `setting`."""
        return self._time.parts(self._plans(setting))

    def combined(self, slowest: StagePart, microbatch: float, optimizer: float) -> float:
        """Seconds of a step of such parts: see JobTime.combined."""
        return self._time.combined(slowest, microbatch, optimizer)

    def most_microbatch_seconds(self, seconds: float) -> float:
        """See JobTime.most_microbatch_seconds."""
        return self._time.most_microbatch_seconds(seconds)

    def least_reserved(self, setting: Setting) -> list[Reserved]:
        """What each stage reserves at least: see JobMemory.at_least."""
        return list(self._memory.at_least(self._plans(setting)))

    def plan(self, setting: Setting, chunk: ModelChunk) -> RecomputePlan:
        """The plan of one model chunk under `setting`."""
        return self._plan(setting, chunk.layers)

    def stage_detail(self, setting: Setting, stage: int, *, simulated: bool = False) -> StageDetail:
        """Memory of one stage in all its terms; simulated: with its allocator simulated."""
        plans = self._plans(setting)
        detail = list(self._memory.each_stage(plans))[stage]
        if simulated:
            detail = self._memory.simulated_stage(plans, stage, detail)
        return self._moved([detail])[0]

    def may_fit(self, setting: Setting) -> list[bool]:
        """Of each stage, whether it may fit, by what the allocator usually leaves unused and by
        what a simulation says at best."""
        budget = self.budget_bytes
        return [
            stage.reserved.fit_probability(budget) > 1 - CLEAR
            and self._memory.at_best(stage).fit_probability(budget) >= LIKELY
            for stage in self._memory.each_stage(self._plans(setting))
        ]

    def stage_details(self, setting: Setting, *, simulated: bool) -> list[StageDetail]:
        """Memory of all stages as an evaluation of `setting`, or as its simulation has it."""
        plans = self._plans(setting)
        found = self._memory.simulated(plans) if simulated else self._memory.each_stage(plans)
        return self._moved(found)

    def most_allocated(self, setting: Setting) -> int:
        """The most bytes that the first stage may allocate and likely fit, if its allocator leaves
        as many unused as it does under `setting`."""
        detail = self.stage_detail(setting, 0, simulated=True)
        return self._memory.most_allocated(detail, self.budget_bytes)

    def slowest_stage(self, setting: Setting) -> int:
        """The stage that sets the pace."""
        stages = self._time.stages(self._plans(setting))
        return max(range(len(stages)), key=lambda stage: stages[stage].total)

    def exchange_seconds(self, setting: Setting) -> float:
        """Seconds of the experts' exchange on the slowest stage that nothing hides."""
        stage, stages = self.slowest_stage(setting), self._time.stages(self._plans(setting))
        return self._time.exchange_seconds(stage, stages[stage])

    def directions(self, setting: Setting) -> list[list[Directions]]:
        """Of every stage the times of one microbatch through its chunks: see JobTime.directions."""
        return self._time.directions(self._plans(setting))

    def tail(self, setting: Setting) -> StepTail:
        """Seconds of a step behind its pipeline."""
        return self._time.tail(self._plans(setting))

    def pass_memory(self, setting: Setting) -> list[StagePasses]:
        """What every stage holds in its passes and in the optimizer's step."""
        return self._memory.of_passes(self._plans(setting))

    @property
    def rates(self) -> tuple[Machine, Network]:
        """Rates behind the times, for reports."""
        return self._time.machine, self._time.network

    def _simulation(self, setting: Setting) -> Simulation:
        plans = self._plans(setting)
        stages = self._moved(self._memory.simulated(plans))
        return Simulation(
            peak_reserved_bytes=_most(stages),
            fit_probability=self._fit_probability(setting, stages),
            requests=sum(stage.reserved.requests for stage in stages),
            look=lambda: self._detail(setting, plans, stages),
        )

    def _fit_probability(self, setting: Setting, stages: list[StageDetail]) -> float:
        found = min([stage.reserved.fit_probability(self.budget_bytes) for stage in stages])
        if self.learned is None:
            return found
        return self.learned.fit_probability(setting, found, self.budget_bytes)

    def _moved(self, stages: Iterable[StageDetail]) -> list[StageDetail]:
        """`stages` as measured runs move them."""
        learned = self.learned
        if learned is None:
            return list(stages)
        return [
            replace(stage, reserved=learned.reserved(stage.reserved, stage.fixed.total))
            for stage in stages
        ]

    def _plan(self, setting: Setting, layers: tuple[LayerKind, ...]) -> RecomputePlan:
        return self._model.plan(setting, self.shape, layers, self.job)

    def _plans(self, setting: Setting) -> list[RecomputePlan]:
        """The plan of each group of layers."""
        return [self._plan(setting, layers) for layers in self._pipeline.groups]

    def _detail(
        self, setting: Setting, plans: list[RecomputePlan], stages: list[StageDetail]
    ) -> EvaluationDetail:
        vpp = self.job.layout.virtual_pipeline_model_parallel_size
        return EvaluationDetail(
            stages=tuple(stage.summary(k, vpp) for k, stage in enumerate(stages)),
            needs=tuple(stage.reserved.need for stage in stages),
            saved_bytes_per_layer=self._saved_bytes_per_layer(setting),
            hardware_flops_per_step=float(self._model_flops + self._replayed_flops(plans)),
        )

    def _saved_bytes_per_layer(self, setting: Setting) -> dict[LayerKind, int]:
        """Bytes that one layer of each kind keeps, one microbatch: the mean over as many of them as
        the largest chunk has."""
        kept: dict[LayerKind, int] = {}
        for kind in self._kinds:
            most = max(layers.count(kind) for layers in self._pipeline.groups)
            plan = self._plan(setting, (kind,) * most)
            kept[kind] = kept_bytes(self.shape, plan) // most
        return kept

    def _replayed_flops(self, plans: list[RecomputePlan]) -> int:
        """FLOPs of all replays of one step on all ranks."""
        one_pipeline = 0
        for plan, copies in zip(plans, self._pipeline.copies, strict=True):
            one_pipeline += copies * replayed_flops(self.shape, plan)
        ranks = self.job.num_gpus // self.job.layout.pipeline_model_parallel_size
        return one_pipeline * self.job.num_microbatches * ranks


def _learned(job: Job, calibration: Calibration) -> "Applied | None":
    """What measured runs say of the job; None without any."""
    if type(calibration) is Calibration:
        return None
    from advisor.learning.applied import applied
    from advisor.learning.learned import LearnedCalibration

    assert isinstance(calibration, LearnedCalibration)
    return applied(calibration, job)


def _most(stages: list[StageDetail]) -> int:
    return max([stage.reserved.total for stage in stages])


def step_time_error(model: ModelSpec, calibration: Calibration) -> float:
    """Half-width of the band around the step times of a model."""
    experts = model.num_moe_experts is not None
    return calibration.error_of(experts=experts, eager=model.transformer_impl.is_eager)


def is_legal(setting: Setting, job: Job) -> bool:
    """Whether the job's framework takes the setting."""
    return not parts_of(job.config.framework).settings.check(setting, job)


def evaluate_settings(
    job: Job, settings: tuple[Setting, ...], calibration: Calibration
) -> tuple[Evaluation, ...]:
    """All `settings` on one job."""
    evaluator = Evaluator(job, calibration)
    return tuple(evaluator.evaluate(setting) for setting in settings)


def evaluate(job: Job, setting: Setting, calibration: Calibration) -> Evaluation:
    """`setting` on `job`, the allocator simulated; use an Evaluator for several settings."""
    return Evaluator(job, calibration).evaluate(setting).simulated


_ROUNDING: Final = 1e-9
"""Share by which sums of seconds may differ that are taken in another order."""
