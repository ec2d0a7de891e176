"""The loop of a worker of a sweep: the policy decides, the runner runs, the study is told. Every
task is one trial with one result.json, written by whichever runner ``launcher=`` means. A sweep
that is killed and started again finds them all, tells the study what it missed, and goes on;
started while another works, on this machine or elsewhere, it shares the work with it."""

from msgspec import Struct, field
from msgspec.structs import replace

from harness.execution import launch, runner, signals
from harness.execution.progress import Progress
from harness.planner.launcher_options import LauncherKind, LauncherOptions, SweepOptions
from harness.sweeps.history import Outcome, over_repeats
from harness.sweeps.priority import End, make_policy
from harness.sweeps.space import Point, Space
from harness.sweeps.workers.opening import open_study
from harness.sweeps.workers.study import Claim, Study, trial_of
from harness.trial.result import TrialStatus
from harness.trial.store import RunFolder
from harness.trial.trial import PlannedSetting, RunPlan


class Sweep(Struct, frozen=True, kw_only=True):
    """A sweep of `space` into `folder` by its `plan`. retry: statuses that are run again."""

    folder: RunFolder
    plan: RunPlan
    space: Space
    options: SweepOptions
    launcher: LauncherOptions
    retry: frozenset[TrialStatus] = frozenset()
    finished: dict[Point, dict[int, Outcome]] = field(default_factory=dict)

    @property
    def outcomes(self) -> dict[Point, Outcome]:
        """What came of every point over its repeats, in the order in which they were chosen."""
        return {point: over_repeats([*every.values()]) for point, every in self.finished.items()}

    @property
    def statuses(self) -> list[TrialStatus]:
        """How every task ended, wherever it ran."""
        return [one.status for every in self.finished.values() for one in every.values()]

    def run(self) -> End:
        """Why it ended; by then `finished` holds what came of every task, whichever worker ran it.
        Raises as Runner.run does; UserError where the storage fails or holds another sweep."""
        progress = Progress(min(self.options.trials, len(self.space.legal)), growing=True)
        device, retry = self.plan.device_name, self.retry
        study = open_study(self.folder, self.space, self.options, device, retry, progress.say)
        with signals.StopSignals(), study:
            for task, result in study.restore().items():
                label = runner.label_of(self.space.planned[task.point], trial_of(self.space, task))
                progress.found(0, label, result)
            ended = self._work(study, progress)
            for point, outcomes in study.history().finished.items():
                self.finished[point] = dict(outcomes)
        tied = tuple(self.space.planned[point].trial.name for point in ended.tied)
        self.folder.join(replace(self.plan, ended=ended.words, tied=tied))
        return ended

    def _work(self, study: Study, progress: Progress) -> End:
        choose = make_policy(self.space, self.options).next
        while True:
            action = study.decide(choose)
            if isinstance(action, End):
                return action
            claims: list[Claim] = []
            while isinstance(action, Claim):
                claims.append(action)
                if len(claims) == self.options.batch:
                    break
                action = study.decide(choose)
            if claims:
                self._execute(claims, study, progress)
            else:
                study.wait()

    def _execute(self, claims: list[Claim], study: Study, progress: Progress) -> None:
        """Run what is claimed, and tell what came of it."""
        names = {claim.trial: trial_of(self.space, claim.task).name for claim in claims}
        plan = replace(self.plan, settings=tuple(self._planned(claim) for claim in claims))
        mine = frozenset(names.values())
        # a round's results must be known before the next is asked for
        slurm = self.launcher.kind is LauncherKind.SLURM
        launcher = replace(self.launcher, wait=True) if slurm else self.launcher
        results = launch.make_runner(launcher, self.folder, plan, progress, self.retry, mine).run()
        for claim in claims:
            study.tell(claim, results[names[claim.trial]])

    def _planned(self, claim: Claim) -> PlannedSetting:
        planned = self.space.planned[claim.task.point].repeated(claim.task.repeat + 1)
        limited = replace(planned.trial, limit_seconds=claim.measure.limit_seconds)
        return replace(planned, trial=limited)
