"""One measured time and what the advisor predicts for it."""

from enum import StrEnum

from msgspec import Struct

from advisor.hardware.calibration import Calibration
from advisor.job.job import Job
from advisor.layers.transformer import transformer_layer
from advisor.plan.recompute_plan import Setting
from advisor.search.evaluate import Evaluator
from advisor.time.passes import layer_times, replay_seconds
from advisor.time.roofline import forward_seconds


class Quantity(StrEnum):
    """What was timed: a whole step, or a step over that of another job, or one layer's forward, or
    its forward, backward and replay."""

    STEP = "step"
    RATIO = "ratio"
    LAYER = "layer"
    LAYER_FORWARD = "layer_forward"


class Kind(StrEnum):
    """Classes of jobs whose times are known differently well: Megatron's dense models, its models
    with experts, eager torch layers."""

    DENSE = "dense"
    EXPERTS = "experts"
    EAGER = "eager"


class Target(Struct, frozen=True, kw_only=True):
    """A measured time.

    table: file of results/published. family: rows that repeat one measurement at another scale or
    in another release; together they weigh as one. group: rows that a left-out check leaves out
    together. source: file and table or line. seconds: of a ratio, its value. baseline: the job that
    a ratio is over. options: what the run had and no field of a job says, by the framework's names.
    judged_only: why nothing is fitted on it; empty where it may be. unexplained: that, though it is
    a run like any other: what bounds it is not known. comparable: whether it stands
    next to other rows of its table; not where only the software was another.
    """

    name: str
    table: str
    family: str
    group: str
    source: str
    job: Job
    setting: Setting
    seconds: float
    quantity: Quantity = Quantity.STEP
    baseline: Job | None = None
    options: tuple[tuple[str, str], ...] = ()
    judged_only: str = ""
    unexplained: bool = False
    comparable: bool = True

    @property
    def kind(self) -> Kind:
        """Of experts first: eager layers with experts are rarely timed."""
        model = self.job.model
        if model.num_moe_experts is not None:
            return Kind.EXPERTS
        return Kind.EAGER if model.transformer_impl.is_eager else Kind.DENSE


def predict(target: Target, calibration: Calibration) -> float:
    """Seconds that the advisor predicts for `target`, or the ratio of two steps."""
    evaluator = Evaluator(target.job, calibration)
    if target.quantity is Quantity.STEP:
        return evaluator.seconds(target.setting)
    if target.quantity is Quantity.RATIO:
        assert target.baseline is not None
        baseline = Evaluator(target.baseline, calibration).seconds(target.setting)
        return evaluator.seconds(target.setting) / baseline
    machine, network = evaluator.rates
    shape = evaluator.shape
    if target.quantity is Quantity.LAYER_FORWARD:
        passes = [forward_seconds(o, machine, network) for o in transformer_layer(shape)]
        return sum(one.compute + one.exposed for one in passes)
    segment = evaluator.plan(target.setting, evaluator.stages[0][0].layers).segments[0]
    kind = segment.layers[0]
    replay = replay_seconds(shape, machine, network, kind, segment.replay)
    return layer_times(shape, machine, network, kind).total + replay
