"""Time of one training step of a job: its slowest stage, the pipeline around it, the optimizer."""

from msgspec import Struct
from msgspec.structs import replace

from advisor.answer.evaluation import TimeBreakdown
from advisor.base.sharing import first_equal
from advisor.hardware.calibration import Calibration
from advisor.job.job import Job
from advisor.job.pipeline_split import Pipeline, Stages
from advisor.layers.shape import RankShape
from advisor.memory.static import trained_parameters
from advisor.plan.recompute_plan import RecomputePlan
from advisor.time import step_tail
from advisor.time.communication import waiting_share
from advisor.time.machine import hidden_exchange, host_of, machine_of
from advisor.time.optimizer_time import stage_optimizer_seconds
from advisor.time.passes import PassTimes
from advisor.time.rank_links import network
from advisor.time.stage_times import Directions, ExchangeOverlap, Rates, StageTimes
from advisor.time.step_tail import accumulation_seconds, parameter_groups, reduced_seconds


class StagePart(Struct, frozen=True):
    """Seconds of one stage, of which those of a step are made (see JobTime.combined).

    microbatch: of one, through all its chunks. work: of all, with what nothing hides of the
    experts' exchange. reduced: gradients that its passes do not hide. optimizer: of its step.
    """

    microbatch: float
    work: float
    reduced: float
    optimizer: float


class SlowestStage(Struct, frozen=True, kw_only=True):
    """The stage that sets the pace of a step. pace: of one microbatch through all its chunks; work:
    of all of them; exchange_seconds: of the experts' exchange in a step, what nothing hides;
    bubble: seconds in which the others fill and drain the pipeline around it."""

    number: int
    pace: PassTimes
    work: PassTimes
    exchange_seconds: float
    bubble: float


class StepTail(Struct, frozen=True, kw_only=True):
    """Seconds of a step after its pipeline: reducing the gradients that no pass hides, adding them
    up on the host, and the optimizer's step."""

    reduced: float
    accumulated: float
    optimizer: float

    @property
    def total(self) -> float:
        """Sum of all."""
        return self.reduced + self.accumulated + self.optimizer


class JobTime:
    """Seconds of a step under any recompute, of plans of each group of layers of `pipeline`.
    `facts`: what the framework says about it."""

    def __init__(
        self,
        job: Job,
        shape: RankShape,
        stages: Stages,
        pipeline: Pipeline,
        calibration: Calibration,
        facts: step_tail.StepFacts,
    ) -> None:
        self._job, self._pipeline, self._calibration = job, pipeline, calibration
        layout = job.layout
        self._vpp = layout.virtual_pipeline_model_parallel_size
        self._microbatches = job.num_microbatches
        joined = first_equal(network(layout, job.gpu, calibration, job.model))
        hidden_share, pp = hidden_exchange(job, joined), len(stages)
        self._exchange = ExchangeOverlap(hidden_share, pp, self._vpp, self._microbatches)
        passes = self._microbatches * self._vpp
        host = host_of(job, calibration, facts.graphed, hidden_share, passes, facts.compiled)
        machine = machine_of(job, calibration, host)
        self.rates, each = Rates(machine, joined), pipeline.of_each_stage
        self._parameters = each(
            lambda stage: parameter_groups(shape, stages[stage], layout, job.gpu, calibration)
        )

        def reduction(stage: int) -> tuple[step_tail.DataParallelWork, ...] | step_tail.ShardedWork:
            held, parameters = stages[stage], self._parameters[stage]
            return step_tail.data_parallel_work(
                job, held, parameters, machine, calibration, facts.turns
            )

        def optimizer(stage: int) -> float:
            held, parameters = stages[stage], self._parameters[stage]
            seconds = stage_optimizer_seconds(job, shape, held, parameters, machine)
            each_one = facts.parameter_seconds
            return seconds + (each_one * trained_parameters(shape, held) if each_one else 0.0)

        self._reductions, self._optimizers = each(reduction), each(optimizer)
        self._stage_times = StageTimes(job, shape, stages, pipeline, calibration, self.rates)
        self.optimizer_seconds = max(self._optimizers) + calibration.step_seconds
        self.straggling = waiting_share(job.num_gpus, calibration.speed_spread)
        """Seconds of waiting for the slowest GPU, per second of passes and bubble."""

    def step(self, plans: list[RecomputePlan]) -> TimeBreakdown:
        """Seconds of a step: the slowest stage sets the pace, the others fill and drain the
        pipeline around it. Source: arXiv 2104.04473 (Narayanan et al. 2021), section 2: a bubble of
        (p - 1) / v stages of one microbatch, here of stages of unequal length. Every rank waits for
        the slowest one when gradients are reduced. Left out: the data loader, checkpoints,
        evaluation, and logging.
        """
        slowest = self.slowest(plans)
        work, tail = slowest.work, self._tail(slowest)
        passes = work.total - work.exchange + slowest.exchange_seconds + slowest.bubble
        exposed = work.exposed + slowest.exchange_seconds
        return TimeBreakdown(
            forward=work.forward,
            backward=work.backward,
            recompute=work.recompute,
            exposed_communication=exposed + tail.reduced,
            pipeline_bubble=slowest.bubble,
            optimizer=tail.optimizer,
            offload=work.offload + tail.accumulated,
            host=work.host,
            stragglers=passes * self.straggling,
        )

    def slowest(self, plans: list[RecomputePlan]) -> SlowestStage:
        """The stage that sets the pace, the first of equals."""
        stages = self._stage_times.of_each_stage(plans)
        totals = [stage.total for stage in stages]
        number = totals.index(max(totals))
        return SlowestStage(
            number=number,
            pace=stages[number],
            work=stages[number].times(self._microbatches),
            exchange_seconds=self._exchange.shown_seconds(number, stages[number]),
            bubble=(sum(totals) - totals[number]) / self._vpp,
        )

    def tail(self, plans: list[RecomputePlan]) -> StepTail:
        """What of `step` comes after the pipeline."""
        return self._tail(self.slowest(plans))

    def _tail(self, slowest: SlowestStage) -> StepTail:
        stage, pace = slowest.number, slowest.pace
        return StepTail(
            reduced=reduced_seconds(self._reductions[stage], pace),
            accumulated=self._accumulated(stage, pace),
            optimizer=self.optimizer_seconds,
        )

    def _accumulated(self, stage: int, pace: PassTimes) -> float:
        return accumulation_seconds(self._job, self._parameters[stage], self.rates.machine, pace)

    def directions(self, plans: list[RecomputePlan]) -> list[list[Directions]]:
        """See StageTimes.directions; of the exchange what the slowest stage does not hide."""
        slowest = self.slowest(plans)
        whole = slowest.work.exchange
        shown = slowest.exchange_seconds / whole if whole else 1.0
        return self._stage_times.directions(plans, shown)

    def parts(self, plans: list[RecomputePlan]) -> list[StagePart]:
        """What each stage has of a step: none of it depends on what the others hold or replay."""
        return [
            StagePart(
                pace.total,
                self._microbatches * (pace.total - pace.exchange)
                + self._exchange.shown_seconds(stage, pace),
                reduced_seconds(self._reductions[stage], pace) + self._accumulated(stage, pace),
                self._optimizers[stage],
            )
            for stage, pace in enumerate(self._stage_times.of_each_stage(plans))
        ]

    def combined(self, slowest: StagePart, microbatch: float, optimizer: float) -> float:
        """Seconds of a step, as `step` has them, whose `slowest` stage is given, and of all stages
        the sum of their seconds of a microbatch and the longest optimizer step."""
        bubble = (microbatch - slowest.microbatch) / self._vpp
        passes = (slowest.work + bubble) * (1.0 + self.straggling)
        return passes + slowest.reduced + optimizer + self._calibration.step_seconds

    def most_microbatch_seconds(self, seconds: float) -> float:
        """Of a step of at most `seconds`, what no stage takes longer for one microbatch."""
        return seconds / (self._microbatches * (1.0 - self._exchange.most))

    def at_least(self, none: list[RecomputePlan], *, host: bool = True) -> float:
        """Seconds that no setting of the job undercuts, from the plans of `none`: replays and
        transfers only add to what a stage does, more than the exchange that replays hide, and
        the gradients' reduction is hidden behind passes that they leave as they are; but which
        stage is the slowest may change. host: False counts no waiting for the processor."""
        stages = self._stage_times.of_each_stage(none)
        if not host:
            stages = [replace(stage, host=0.0) for stage in stages]
        totals = [stage.total for stage in stages]
        slowest = max(totals)
        bubble = (sum(totals) - slowest) / self._vpp
        each = self._pipeline.of_each_stage
        reduced = min(each(lambda stage: reduced_seconds(self._reductions[stage], stages[stage])))
        share = self._exchange.hidden_share
        hidden = max(pace.exchange * share(k) for k, pace in enumerate(stages))
        passes = self._microbatches * (slowest - hidden)
        work = (passes + bubble) * (1.0 + self.straggling)
        return work + reduced + self.optimizer_seconds

    def most_replay(self, none: list[RecomputePlan], stage: int, seconds: float) -> float:
        """Seconds that replays of one microbatch may take on a stage, at most, in a step of so many
        seconds; from the plans of `none`. What the gradients' reduction takes is left out."""
        stages = self._stage_times.of_each_stage(none)
        totals = [one.total - one.host for one in stages]
        passes = (seconds - self.optimizer_seconds) / (1.0 + self.straggling)
        bubble = (sum(totals) - totals[stage]) / self._vpp
        hidden = stages[stage].exchange * self._exchange.hidden_share(stage)
        return (passes - bubble) / self._microbatches - totals[stage] + hidden
