"""Trials that Slurm runs: submitted once, collected by the same command whenever it runs again. A
trial with a result.json is finished; one with a job.json and no result belongs to that job until
Slurm says that the job has ended; one with neither, or whose job found no controller, is submitted.
So nothing is lost or run twice when this process, a node or the controller goes down."""

import os
import time
from contextlib import suppress

from msgspec import field
from msgspec.structs import replace

from advisor.base.units import counted
from harness.execution.execute import Attempt, conclude, keep
from harness.execution.launchers.slurm import queue as slurm
from harness.execution.launchers.slurm.submission import Submitter
from harness.execution.launchers.slurm.task import MakeLauncher, make_launcher
from harness.execution.runner import Runner, label_of
from harness.execution.signals import StopSignals
from harness.planner.launcher_options import LauncherKind, LauncherOptions
from harness.trial.files import tail
from harness.trial.result import TrialResult
from harness.trial.store import SubmittedJob, TrialFolder
from harness.trial.trial import PlannedSetting, Trial, same_trial

_TAIL_LINES = 20
Trials = list[tuple[PlannedSetting, Trial]]
Results = dict[str, TrialResult]


class SlurmRunner(Runner, frozen=True, kw_only=True):
    """Submits what has no job, collects what has ended; waits for the rest where it is told to."""

    options: LauncherOptions = LauncherOptions(kind=LauncherKind.SLURM)
    queue: slurm.Queue = field(default_factory=slurm.Queue)
    on_node: MakeLauncher = make_launcher

    def _run_all(self, signals: StopSignals) -> Results:
        trials = self._trials()
        self._submitter().recover()
        found = {trial.name: self._finished(trial) for _, trial in trials}
        results = {name: result for name, result in found.items() if result is not None}
        for number, (setting, trial) in enumerate(trials, start=1):
            if trial.name in results:
                self.progress.found(number, label_of(setting, trial), results[trial.name])
            elif setting.skip:
                results[trial.name] = self._run_one(setting, trial, signals)
        while True:
            self._collect(trials, results, signals)
            self._submit(trials, results, signals)
            if not self.options.wait or len(results) == len(trials):
                break
            time.sleep(self.options.poll_seconds)
        return {trial.name: results[trial.name] for _, trial in trials if trial.name in results}

    def _submitter(self) -> Submitter:
        return Submitter(
            folder=self.folder, options=self.options, queue=self.queue, launcher=self.on_node
        )

    def _submit(self, trials: Trials, results: Results, signals: StopSignals) -> None:
        """Submit what has neither a result nor a job."""
        waiting = [trial for _, trial in trials if trial.name not in results]
        new = [trial for trial in waiting if self.folder.trial(trial.name).job() is None]
        if new:
            with signals.held():
                jobs = self._submitter().submit(new)
            ids = ", ".join(dict.fromkeys(slurm.array_id(job) for job in jobs))
            self.progress.say(f"{counted(len(new), 'trial')} submitted as job {ids}")

    def _finished(self, trial: Trial) -> TrialResult | None:
        """As found; a job that measures what is not asked any more is cancelled."""
        folder = self.folder.trial(trial.name)
        job, earlier = folder.job(), folder.trial()
        if job is not None and earlier is not None and not folder.has_result():
            if same_trial(trial, earlier):
                return None
            self.queue.cancel(job.job)
            self.folder.set_aside(trial.name)
        return Runner._finished(self, trial)  # super() does not know a class with slots

    def _put_in_order(self, folder: TrialFolder, earlier: Trial | None) -> None:
        """What is a job's is left to it."""
        if folder.job() is None:
            Runner._put_in_order(self, folder, earlier)

    def _collect(self, trials: Trials, results: Results, signals: StopSignals) -> None:
        """Add to `results` what has become final."""
        reports: dict[str, dict[str, slurm.JobReport] | None] = {}
        waiting: list[slurm.JobReport] = []
        for number, (setting, trial) in enumerate(trials, start=1):
            folder = self.folder.trial(trial.name)
            job = folder.job()
            if trial.name in results or job is None:
                continue
            result = folder.result()
            if result is None:
                array = slurm.array_id(job.job)
                if array not in reports:
                    reports[array] = self.queue.reports(array)
                result = self._ended(folder, trial, job, reports[array], waiting, signals)
            if result is not None:
                results[trial.name] = result
                self.progress.collected(number, label_of(setting, trial), result)
        if None in reports.values():
            self.progress.say("Slurm's controller does not answer; its jobs continue")
        elif waiting and not self.options.wait:
            self.progress.say(f"in Slurm's queue: {slurm.counts(waiting)}")

    def _ended(
        self,
        folder: TrialFolder,
        trial: Trial,
        job: SubmittedJob,
        known: dict[str, slurm.JobReport] | None,
        waiting: list[slurm.JobReport],
        signals: StopSignals,
    ) -> TrialResult | None:
        """The result of a job that is over; None of one that is not, which joins `waiting`, of one
        that began nothing, which is forgotten, and where the controller does not answer."""
        report = None if known is None else known.get(job.job)
        if report is not None and not slurm.has_ended(report):
            waiting.append(report)
            return None
        if known is None:
            return None
        with signals.held():
            if not folder.lock.exists() and slurm.met_no_controller(report, self._output(job)):
                folder.forget_job()
                self.progress.say(
                    f"job {job.job} could not reach Slurm's controller and began nothing; "
                    "its trial is submitted again"
                )
                return None
            return self._conclude(folder, trial, job, report)

    def _conclude(
        self, folder: TrialFolder, trial: Trial, job: SubmittedJob, report: slurm.JobReport | None
    ) -> TrialResult:
        """The result that node 0 or all ranks wrote, else what Slurm says of the job's end."""
        with suppress(OSError):
            os.listdir(folder.path)  # network file systems: see what other hosts wrote
        attempt = Attempt(started_at=job.submitted_at, clock=time.monotonic())
        result = conclude(folder, trial, attempt, slurm.exit_of(job.job, report))
        if result.evidence is not None and not result.evidence.log_tail:
            result = replace(result, evidence=replace(result.evidence, log_tail=self._output(job)))
        keep(folder, result)
        return result

    def _output(self, job: SubmittedJob) -> tuple[str, ...]:
        """The last lines that the job printed outside of its trial."""
        found = (tail(path, _TAIL_LINES) for path in self._submitter().output(job.job))
        return next((lines for lines in found if lines), ())
