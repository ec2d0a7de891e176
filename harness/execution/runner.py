"""Runs the trials of a plan one after another, and loses nothing: not to a trial that hangs, not to
Ctrl-C, not to a full disk, not to a SIGKILL of this process. A trial is finished when its
result.json is there. Whatever else is in its folder is of an attempt that ended with its runner."""

from collections.abc import Callable, Iterable
from contextlib import closing
from typing import Final

from msgspec import Struct

from advisor.base.errors import UserError
from harness.execution import execute
from harness.execution.launchers.local import Launcher, end_left_over
from harness.execution.progress import Progress
from harness.execution.signals import StopSignals
from harness.trial.files import exclusive
from harness.trial.result import TrialResult, TrialStatus
from harness.trial.store import RunFolder, TrialFolder
from harness.trial.trial import PlannedSetting, RunPlan, Trial, same_question

MEASURED: Final = (TrialStatus.OK, TrialStatus.UNSTABLE)
UNMEASURED: Final = frozenset(TrialStatus).difference(MEASURED, {TrialStatus.PRUNED})
FAILED: Final = (
    *(TrialStatus.FAILED, TrialStatus.TIMEOUT, TrialStatus.NCCL_ERROR),
    *(TrialStatus.NAN, TrialStatus.NO_DATA),
)
"""Statuses that say nothing about the setting: an answer is still owed."""


class Runner(Struct, frozen=True, kw_only=True):
    """How trials are run, on this machine. retry: those of these statuses are run again. mine:
    names of the trials that this runner runs, where others run the rest of the plan in the same
    folder; None: it is alone, and runs all."""

    folder: RunFolder
    plan: RunPlan
    progress: Progress
    launcher: Callable[[Trial], Launcher] = execute.launcher_of
    retry: frozenset[TrialStatus] = frozenset()
    grace_seconds: float = execute.GRACE_SECONDS
    mine: frozenset[str] | None = None

    def run(self) -> dict[str, TrialResult]:
        """Final results of all trials by name, in the order in which they ran; a runner that does
        not wait leaves out those that are not final. Raises Stop on Ctrl-C and OSError where a
        result cannot be written; the same call goes on from there. UserError where another process
        is at work in the folder, unless both have trials of their own."""
        self.folder.path.mkdir(parents=True, exist_ok=True)
        shared = self.mine is not None
        with exclusive(self.folder.lock, shared=shared) as free, closing(self.progress):
            if not free:
                relation = "another harness run is using this folder"
                hint = "wait for it, or give name=ANOTHER"
                raise UserError("name", self.folder.path.name, relation, hint)
            (self.folder.join if shared else self.folder.create)(self.plan)
            with StopSignals() as signals:
                return self._run_all(signals)

    def _run_all(self, signals: StopSignals) -> dict[str, TrialResult]:
        trials = self._trials()
        found = {trial.name: self._finished(trial) for _, trial in trials}
        self.progress.plan(sum(result is None for result in found.values()))
        results: dict[str, TrialResult] = {}
        for number, (setting, trial) in enumerate(trials, start=1):
            label = label_of(setting, trial)
            result = found[trial.name]
            if result is not None:
                self.progress.found(number, label, result)
            else:
                self.progress.begin(number, label)
                result = self._run_one(setting, trial, signals)
                self.progress.end(result)
            results[trial.name] = result
        if trials and None not in found.values():
            again = "name=ANOTHER measures again"
            self.progress.say(f"nothing was run: all trials have results; {again}")
        return results

    def _trials(self) -> list[tuple[PlannedSetting, Trial]]:
        """What this runner is to see to, in its order."""
        names = self.mine
        return [one for one in self.plan.trials() if names is None or one[1].name in names]

    def _finished(self, trial: Trial) -> TrialResult | None:
        """The final result of an earlier run that answers the same question. What an earlier runner
        left behind is put in order first: its processes are ended, the results of all ranks become
        one, and results to other questions are set aside."""
        folder = self.folder.trial(trial.name)
        if not folder.path.exists():
            return None
        earlier = folder.trial()
        self._put_in_order(folder, earlier)
        result = folder.result()
        if result is None and not folder.has_result():
            return None
        if (broken := folder.broken_result()) is not None:
            self.progress.say(f"{broken}; its folder moves to superseded, and the trial runs again")
        wanted = result is not None and result.status not in self.retry
        if result and earlier and wanted and same_question(trial, earlier, result):
            return result
        self.folder.set_aside(trial.name)
        return None

    def _put_in_order(self, folder: TrialFolder, earlier: Trial | None) -> None:
        """End what still runs of an earlier attempt, and keep what all its ranks wrote."""
        job = folder.job()
        if job is not None and not folder.has_result():
            relation = f"is already submitted to Slurm as job {job.job}"
            raise UserError("trial", folder.path.name, relation, "add launcher=slurm to collect it")
        end_left_over(folder)
        if earlier is not None and not folder.has_result():
            result = execute.merged(folder, earlier)
            if result is not None:
                folder.write_result(result)

    def _run_one(self, setting: PlannedSetting, trial: Trial, signals: StopSignals) -> TrialResult:
        folder = self.folder.trial(trial.name)
        if setting.skip:
            with signals.held():
                folder.create(trial)
                attempt = execute.begin()
                result = execute.not_run(trial, attempt, TrialStatus.SKIPPED, setting.skip)
                execute.keep(folder, result)
                return result
        return execute.Execution(
            folder=folder,
            trial=trial,
            launcher=self.launcher(trial),
            signals=signals,
            tick=self.progress.tick,
            grace_seconds=self.grace_seconds,
        ).run()


def label_of(setting: PlannedSetting, trial: Trial) -> str:
    """A trial in a line of progress: its setting, and which repeat of how many."""
    repeats, name = len(setting.trials()), setting.label or setting.spec
    return f"{name} repeat {trial.repeat + 1}/{repeats}" if repeats > 1 else name


def exit_code(statuses: Iterable[TrialStatus]) -> int:
    """0: every setting has an answer, and one was measured. 4: a trial failed, or none measured."""
    found = set(statuses)
    return 0 if found.intersection(MEASURED) and not found.intersection(FAILED) else 4
