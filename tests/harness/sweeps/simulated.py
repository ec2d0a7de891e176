"""A SIMULATED device: no trial runs. Its times and peaks are the advisor's predictions times a bias
that is drawn once, and noise between processes; whatever is shown with it is simulated."""

import math
import random
from collections.abc import Callable, Mapping
from functools import cache
from statistics import median

from msgspec import Struct

from harness.planner.device import Machine
from harness.planner.launcher_options import SweepOptions
from harness.planner.run_request import compose_sweep
from harness.sweeps.history import Expected, History, Outcome, Task, expectations
from harness.sweeps.prior import kind_of
from harness.sweeps.priority import MARGIN, End, Ending, Measure, PriorPolicy, Standing
from harness.sweeps.space import Point, make_space
from harness.trial.result import TrialStatus
from harness.trial.trial import Device

NOISE = 0.01  # between processes, as harness.judge.metrics assumes of one GPU node
PEAK_NOISE = 0.01  # of measured over predicted peaks within a run: results/measured
STEPS = 10
_NEVER_SECONDS = 1e6  # told of what does not run
ONE_GPU = ("sweep=llama3_8b_1xh200",)
LAYOUTS = (
    *("experiment=llama3_8b_1xh200", "gpus=8xH100", "job.global_batch_size=64"),
    *("sweep.micro_batch_sizes=[1,2,4]", "sweep.layouts=true"),
)


class ModelError(Struct, frozen=True, kw_only=True):
    """Standard deviations of ln(true / predicted): of what all points share, and of what those of
    one layout, micro batch and kind of recompute share, and of each point alone."""

    sweep: float = 0.0
    layout: float = 0.0
    micro_batch_size: float = 0.0
    kind: float = 0.0
    point: float = 0.0


ERRORS = {
    "one bias": ModelError(sweep=0.10),
    "as measured": ModelError(
        sweep=0.09, layout=0.03, micro_batch_size=0.02, kind=0.02, point=0.005
    ),
    "by group": ModelError(sweep=0.07, layout=0.04, micro_batch_size=0.04, kind=0.04, point=0.01),
    "each point its own": ModelError(point=0.10),
}
"""A model error of 10 % (root mean square), shared in four ways; `as measured` has the proportions
of results/measured."""


class Swept(Struct, frozen=True, kw_only=True):
    """A simulated sweep. found: trials until a point within MARGIN of the true best was run, None
    where none was. regret: of the point that led in the end, over the true best."""

    found: int | None
    trials: int
    points: int
    regret: float
    why: Ending


@cache
def expected_of(*overrides: str) -> tuple[dict[Point, Expected], int]:
    """The points of a sweep on GPUs that are not here, and the bytes of one of them."""
    config, options = compose_sweep(overrides)
    count, name = (config.gpus or "1xH200").split("x")
    machine = Machine(device=Device.CUDA, gpu_names=(name,) * int(count))
    space = make_space(config, machine, options)
    assert space.room_bytes is not None
    return expectations(space), space.room_bytes


class SimulatedDevice:
    """The device of one seed."""

    def __init__(
        self, expected: Mapping[Point, Expected], room_bytes: int, error: ModelError, seed: int
    ) -> None:
        self._random = random.Random(seed)
        self.room_bytes = room_bytes
        self.legal = [point for point, one in expected.items() if not one.skip]
        shared: dict[object, float] = {}

        def bias(point: Point) -> float:
            groups = {
                "sweep": "",
                "layout": point.layout,
                "micro_batch_size": point.micro_batch_size,
                "kind": kind_of(point.recompute),
                "point": point,
            }
            for name, member in groups.items():
                if (name, member) not in shared:
                    shared[name, member] = self._random.gauss(0.0, getattr(error, name))
            return math.exp(sum(shared[pair] for pair in groups.items()))

        self.seconds = {p: (expected[p].step_seconds or 0.0) * bias(p) for p in self.legal}
        self.peaks = {
            point: int((expected[point].peak_bytes or 0) * self._around_one(PEAK_NOISE))
            for point in self.legal
        }
        self.best_seconds = min(self.seconds[point] for point in self.legal if self.fits(point))

    def fits(self, point: Point) -> bool:
        return self.peaks[point] <= self.room_bytes

    def regret(self, point: Point) -> float:
        """How much slower than the best that fits."""
        return self.seconds[point] / self.best_seconds - 1

    def is_best(self, point: Point) -> bool:
        return self.fits(point) and self.regret(point) <= MARGIN

    def run(self, point: Point) -> Outcome:
        """One simulated process."""
        if not self.fits(point):
            return Outcome(name=point.label, status=TrialStatus.OOM)
        process = self.seconds[point] * self._around_one(NOISE)
        steps = tuple(process * self._around_one(NOISE / 3) for _ in range(STEPS))
        return Outcome(
            name=point.label,
            status=TrialStatus.OK,
            step_seconds=median(steps),
            peak_bytes=self.peaks[point],
            steps=steps,
            wall_seconds=60.0,
        )

    def _around_one(self, spread: float) -> float:
        return math.exp(self._random.gauss(0.0, spread))


def sweep(expected: Mapping[Point, Expected], device: SimulatedDevice) -> Swept:
    """Our policy until it ends, with the options that are the default, and no end to the trials."""
    options = SweepOptions(trials=10**6)
    policy = PriorPolicy(expected, options, room_bytes=device.room_bytes)
    finished: dict[Point, dict[int, Outcome]] = {}
    tasks: list[Task] = []
    action = policy.next(History())
    while isinstance(action, Measure):
        task = action.task
        tasks.append(task)
        finished.setdefault(task.point, {})[task.repeat] = device.run(task.point)
        action = policy.next(History(finished=finished))
    assert isinstance(action, End)
    leader = Standing(History(finished=finished), None, NOISE).leader
    assert leader is not None
    return Swept(
        found=next((k for k, task in enumerate(tasks, 1) if device.is_best(task.point)), None),
        trials=len(tasks),
        points=len(finished),
        regret=device.regret(leader),
        why=action.why,
    )


def search_with_tpe(
    expected: Mapping[Point, Expected],
    device: SimulatedDevice,
    seed: int,
    most: int,
    given: int = 0,
) -> int:
    """Trials until Optuna's TPE, minimising the step time without any prediction, has run a point
    within MARGIN of the true best, or `most`. What it asks for twice, and what may not run at all,
    costs it nothing; what runs out of memory is a trial, as it is of ours. given: so many of the
    advisor's best it is told to run first."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    names = ("layout", "micro_batch_size", "recompute")
    distributions = {
        name: optuna.distributions.CategoricalDistribution(
            sorted({point.params()[name] for point in expected}, key=str)
        )
        for name in names
    }
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed, multivariate=True))
    for point in device.legal[:given]:
        study.enqueue_trial(point.params())
    run: Callable[[Point], Outcome] = cache(device.run)
    legal, seen = set(device.legal), set[Point]()
    for _ in range(5 * most):
        trial = study.ask(distributions)
        point = Point(**trial.params)
        if point not in legal:
            study.tell(trial, _NEVER_SECONDS)
            continue
        seen.add(point)
        if device.is_best(point) or len(seen) == most:
            break
        study.tell(trial, run(point).step_seconds or _NEVER_SECONDS)
    return len(seen)
