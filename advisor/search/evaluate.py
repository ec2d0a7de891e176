"""One setting on one job: memory of every stage, and the time of a step."""

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from advisor.answer import evaluation
from advisor.answer.phases import Phase, PhaseName
from advisor.base.sharing import first_equal
from advisor.frameworks.registry import parts_of
from advisor.hardware.calibration import Calibration, band_ends
from advisor.job.job import Job
from advisor.job.microbatches import Microbatches, microbatches
from advisor.job.pipeline_split import Pipeline, Stages, pipeline_of, pipeline_stages
from advisor.memory.chunk_units import kept_bytes
from advisor.models.layer_kind import LayerKind
from advisor.plan.flops import head_replay_flops, model_flops, replayed_flops
from advisor.plan.recompute_plan import RecomputePlan, Setting
from advisor.search.job_memory import JobMemory, StageDetail
from advisor.search.rank_shape import rank_shape
from advisor.search.step_time_band import step_time_error
from advisor.time.job_time import JobTime
from advisor.time.step_tail import StepFacts

if TYPE_CHECKING:
    from advisor.learning.applied import Applied
    from advisor.search.cycle_phases import Cycle


class Timed(Struct, frozen=True):
    """A setting with the time of a step: the half of an evaluation that is soon done. error: half
    of the band around it, relative."""

    setting: Setting
    plans: list[RecomputePlan]
    time: evaluation.TimeBreakdown
    error: float


class Evaluator:
    """Evaluates settings of one job; what does not depend on the setting is computed once.

    stages: what they hold, where that is not what the job's layout says. samples: what microbatches
    hold; shape is that of the worst one, mean_shape of the mean one. time, memory: seconds and
    bytes under the `plans` of a setting, before measured runs move them (`learned`). rates: how
    fast a rank computes and communicates.
    """

    def __init__(self, job: Job, calibration: Calibration, stages: Stages | None = None) -> None:
        self.job, self.calibration = job, calibration
        parts = parts_of(job.config.framework)
        self.none, self._model = parts.settings.none, parts.memory
        varies = job.config.samples.varies
        worst, mean = (self.samples.worst, self.samples.mean) if varies else (job, job)
        self.shape = first_equal(self._model.shape(worst, rank_shape(worst)))
        self.mean_shape = first_equal(self._model.shape(mean, rank_shape(mean)))
        self.stages = stages or pipeline_stages(job.model, job.layout)
        self.pipeline = Pipeline(stages) if stages else pipeline_of(job.model, job.layout)
        self.budget_bytes = job.config.memory_budget_bytes or job.gpu.memory_bytes
        facts = StepFacts(
            self._model.turns(mean),
            self._model.graphed_modules(mean),
            mean.config.torch_compile and self._model.runs_compiled,
            self._model.parameter_seconds,
        )
        self.time = JobTime(mean, self.mean_shape, self.stages, self.pipeline, calibration, facts)
        self.rates = self.time.rates
        self.step_time_error = step_time_error(job, calibration)
        self.learned = learned_of(job, calibration)
        self.model_flops = model_flops(
            job.model,
            round(self.samples.tokens),
            1,
            job.model.padded_vocab_size(job.layout.tensor_model_parallel_size),
            self.mean_shape.attended_length,
            job.config.tuning,
        )

    @cached_property
    def samples(self) -> Microbatches:
        """What microbatches the job's samples become."""
        return microbatches(self.job)

    @cached_property
    def at_least_seconds(self) -> float:
        """No setting takes less."""
        return self._at_least(host=True)

    @cached_property
    def at_least_without_host(self) -> float:
        """The same, did the processor never keep the GPU waiting."""
        return self._at_least(host=False)

    def _at_least(self, *, host: bool) -> float:
        least = self.time.at_least(self.plans(self.none), host=host)
        return least if self.learned is None else least * self.learned.least_factor

    @cached_property
    def _none_seconds(self) -> float:
        return self.seconds(self.none)

    @cached_property
    def memory(self) -> JobMemory:
        """Bytes of the job's stages under plans, in the update where there are other phases."""
        return self._plain_memory if self.cycle is None else self.cycle.update

    @cached_property
    def _plain_memory(self) -> JobMemory:
        return JobMemory(self.samples.worst, self.shape, self.stages, self.pipeline, self._model)

    @cached_property
    def cycle(self) -> "Cycle | None":
        """The phases of the job; None where a step is its update alone."""
        if not self.job.config.rl.has_phases:
            return None
        from advisor.search.cycle_phases import Cycle

        none, budget = self.plans(self.none), self.budget_bytes
        return Cycle(self.job, self.stages, self._plain_memory, none, budget)

    @property
    def is_hopeless(self) -> bool:
        """Whether the bytes that no recompute changes are too many."""
        if self.cycle is not None and self.cycle.likely <= 1 - evaluation.CLEAR:
            return True
        return self.memory.fixed_bytes > self.budget_bytes

    def evaluate(self, setting: Setting) -> evaluation.Evaluation:
        """Memory and time of `setting`, which must be legal for the job. The allocator is not
        simulated: see Evaluation.simulated."""
        return self.evaluate_timed(self.timed(setting))

    def timed(self, setting: Setting) -> Timed:
        """The time of a step under `setting`, its memory left aside."""
        plans = self.plans(setting)
        time, error = self.time.step(plans), self.step_time_error
        if self.learned is not None:
            time, error = self.learned.step(setting, time, error)
        return Timed(setting, plans, time, error)

    def evaluate_timed(self, timed: Timed) -> evaluation.Evaluation:
        """As evaluate."""
        return self._evaluation(timed, list(self.memory.each_stage(timed.plans)))

    def evaluate_if_it_may_fit(self, timed: Timed) -> evaluation.Evaluation | None:
        """The same, or None once it is clear of a stage that it does not fit, before a simulation
        as after it."""
        if self.learned is not None:  # what is measured may be less than what is predicted
            return self.evaluate_timed(timed)
        stages, unlikely = [], 1 - evaluation.CLEAR
        least = self.memory.at_least(timed.plans)
        if any(one.fit_probability(self.budget_bytes) <= unlikely for one in least):
            return None
        for stage in self.memory.each_stage(timed.plans):
            if stage.reserved.fit_probability(self.budget_bytes) <= unlikely:
                return None
            stages.append(stage)
        return self._evaluation(timed, stages)

    def _evaluation(self, timed: Timed, predicted: list[StageDetail]) -> evaluation.Evaluation:
        setting, plans, seconds = timed.setting, timed.plans, timed.time.total
        stages = self._moved(predicted)
        (low, high), most = band_ends(timed.error), self._most(plans, stages)
        return evaluation.Evaluation(
            job=self.job,
            setting=setting,
            calibration=self.calibration,
            peak_reserved_bytes=most,
            usual_reserved_bytes=most,
            time_seconds=timed.time,
            step_time_low_seconds=seconds * (1 + low),
            step_time_high_seconds=seconds * (1 + high),
            fit_probability=self._fit_probability(setting, stages),
            budget_bytes=self.budget_bytes,
            model_flops_per_step=float(self.model_flops),
            recompute_overhead=seconds / self._none_seconds - 1,
            look=lambda: _detail(self, setting, plans, stages),
            simulate=lambda: self._simulation(setting),
            likely_with=lambda share: self._likely_with(share, setting, predicted),
        )

    def seconds(self, setting: Setting) -> float:
        """Seconds of a step under `setting`."""
        return self.timed(setting).time.total

    def plan(self, setting: Setting, layers: tuple[LayerKind, ...]) -> RecomputePlan:
        """What `setting` does to the layers of a chunk."""
        return self._model.plan(setting, self.shape, layers, self.samples.worst)

    def plans(self, setting: Setting) -> list[RecomputePlan]:
        """The plan of each group of layers of the pipeline: what `time` and `memory` take."""
        return [self.plan(setting, layers) for layers in self.pipeline.groups]

    def stage_detail(self, setting: Setting, stage: int, *, simulated: bool = False) -> StageDetail:
        """Memory of one stage in all its terms; simulated: with its allocator simulated."""
        plans = self.plans(setting)
        detail = list(self.memory.each_stage(plans))[stage]
        if simulated:
            detail = self.memory.simulated_stage(plans, stage, detail)
        return self._moved([detail])[0]

    def may_fit(self, setting: Setting) -> list[bool]:
        """Of each stage, whether it may fit, by what the allocator usually leaves unused and by
        what a simulation says at best."""
        budget = self.budget_bytes
        return [
            stage.reserved.fit_probability(budget) > 1 - evaluation.CLEAR
            and self.memory.with_unused(stage, 0).reserved.fit_probability(budget)
            >= self.job.config.certainty
            for stage in self.memory.each_stage(self.plans(setting))
        ]

    def stage_details(self, setting: Setting, *, simulated: bool) -> list[StageDetail]:
        """Memory of all stages as an evaluation of `setting`, or as its simulation has it."""
        memory, plans = self.memory, self.plans(setting)
        return self._moved(memory.simulated(plans) if simulated else memory.each_stage(plans))

    def most_allocated(self, setting: Setting) -> int:
        """The most bytes that the first stage may allocate and likely fit, if its allocator leaves
        as many unused as it does under `setting`."""
        detail = self.stage_detail(setting, 0, simulated=True)
        return self.memory.most_allocated(detail, self.budget_bytes)

    def _simulation(self, setting: Setting) -> evaluation.Simulation:
        plans = self.plans(setting)
        stages = self._moved(self.memory.simulated(plans))
        return evaluation.Simulation(
            peak_reserved_bytes=self._most(plans, stages),
            fit_probability=self._fit_probability(setting, stages),
            requests=sum(stage.reserved.requests for stage in stages),
            look=lambda: _detail(self, setting, plans, stages),
        )

    def _likely_with(self, share: float, setting: Setting, stages: list[StageDetail]) -> float:
        """How likely `stages` fit whose allocators leave a share of what is allocated unused."""
        held = ((stage, int(share * stage.reserved.allocated)) for stage in stages)
        found = self._moved(self.memory.with_unused(stage, unused) for stage, unused in held)
        return self._fit_probability(setting, found)

    def _fit_probability(self, setting: Setting, stages: list[StageDetail]) -> float:
        found = min([stage.reserved.fit_probability(self.budget_bytes) for stage in stages])
        if self.learned is not None:
            found = self.learned.fit_probability(setting, found, self.budget_bytes)
        phases = self.phases(self.plans(setting), stages)
        others = (one.fit_probability for one in phases if one.name is not PhaseName.UPDATE)
        if (has := self.job.config.host_memory_bytes) is not None:
            found *= self.job.gpus_of_a_server * self.host_bytes(setting, stages) <= has
        return min((found, *others))

    def phases(
        self, plans: list[RecomputePlan], stages: Sequence[StageDetail]
    ) -> tuple[Phase, ...]:
        """Of the cycle, whose update has these stages; none where that is all."""
        return () if self.cycle is None else self.cycle.phases(plans, stages)

    def host_bytes(self, setting: Setting, stages: Sequence[StageDetail]) -> int:
        """Host memory of one rank, in the phase and on the stage that need most of it."""
        plans = self.plans(setting)
        found = [phase.host_bytes for phase in self.phases(plans, stages)]
        found += (self.memory.host_bytes(plans, stage) for stage in range(len(stages)))
        return max(found)

    def _most(self, plans: list[RecomputePlan], stages: list[StageDetail]) -> int:
        phases = (phase.peak_reserved_bytes for phase in self.phases(plans, stages))
        return max((*phases, *(stage.reserved.total for stage in stages)))

    def _moved(self, stages: Iterable[StageDetail]) -> list[StageDetail]:
        """`stages` as measured runs move them."""
        if self.learned is None:
            return list(stages)
        move = self.learned.reserved
        return [replace(one, reserved=move(one.reserved, one.fixed.total)) for one in stages]


def _detail(
    evaluator: Evaluator, setting: Setting, plans: list[RecomputePlan], stages: list[StageDetail]
) -> evaluation.EvaluationDetail:
    job, shape, groups = evaluator.samples.mean, evaluator.shape, evaluator.pipeline.groups
    kept: dict[LayerKind, int] = {}  # one microbatch, the mean over the layers of the largest chunk
    for kind in dict.fromkeys(job.model.layer_kinds):
        most = max(layers.count(kind) for layers in groups)
        kept[kind] = kept_bytes(shape, evaluator.plan(setting, (kind,) * most)) // most
    copies = zip(plans, evaluator.pipeline.copies, strict=True)
    replays = sum(number * replayed_flops(evaluator.mean_shape, plan) for plan, number in copies)
    replays += head_replay_flops(evaluator.mean_shape)
    replays *= job.num_microbatches * (job.num_gpus // job.layout.pipeline_model_parallel_size)
    vpp = job.layout.virtual_pipeline_model_parallel_size
    return evaluation.EvaluationDetail(
        stages=tuple(stage.summary(k, vpp) for k, stage in enumerate(stages)),
        needs=tuple(stage.reserved.need for stage in stages),
        uneven=_uneven(stages, evaluator.budget_bytes),
        phases=evaluator.phases(plans, stages),
        host_bytes=evaluator.host_bytes(setting, stages),
        saved_bytes_per_layer=kept,
        hardware_flops_per_step=float(evaluator.model_flops + replays),
    )


def _uneven(stages: list[StageDetail], budget: int) -> evaluation.UnevenRouting | None:
    """Of the stage that uneven routing fills first."""
    found = [
        evaluation.UnevenRouting(
            stated=reserved.uneven.stated,
            doubled=reserved.uneven.doubled,
            safe=1 + reserved.room(budget) / reserved.uneven.doubled,
        )
        for reserved in (stage.reserved for stage in stages)
        if reserved.uneven.doubled
    ]
    return min(found, key=lambda one: one.safe, default=None)


def learned_of(job: Job, calibration: Calibration) -> "Applied | None":
    """What measured runs say of the job; None without any."""
    if type(calibration) is Calibration:
        return None
    from advisor.learning.applied import applied
    from advisor.learning.learned import LearnedCalibration

    assert isinstance(calibration, LearnedCalibration)
    return applied(calibration, job)


def is_legal(setting: Setting, job: Job) -> bool:
    """Whether the job's framework takes the setting."""
    return not parts_of(job.config.framework).settings.check(setting, job)


def evaluate(job: Job, setting: Setting, calibration: Calibration) -> evaluation.Evaluation:
    """`setting` on `job`, the allocator simulated; use an Evaluator for several settings."""
    return Evaluator(job, calibration).evaluate(setting).simulated
