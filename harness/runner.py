"""Runs the trials of a plan one after another, and loses nothing: not to a trial that hangs, not to
Ctrl-C, not to a full disk, not to a SIGKILL of this process.

A trial is finished when its result.json is there. Whatever else is found in its folder is the rest
of an attempt that ended with its runner, and is run again.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from advisor.errors import UserError
from harness.codec import encode, plain
from harness.conclude import Attempt, conclude, merged
from harness.failures import is_disk_full
from harness.files import Lock
from harness.launchers.base import Exit, Launcher, Running
from harness.launchers.local import LocalLauncher, end_left_over
from harness.launchers.torchrun import TorchrunLauncher
from harness.plan import PlannedSetting, RunPlan, same_question
from harness.progress import Progress
from harness.result import Evidence, Phase, TrialResult, TrialStatus
from harness.signals import StopSignals
from harness.store import RunFolder, TrialFolder
from harness.trial import Trial

GRACE_SECONDS: Final = 5.0
_TICK_SECONDS: Final = 0.5
MEASURED: Final = (TrialStatus.OK, TrialStatus.UNSTABLE)
FAILED: Final = (
    TrialStatus.FAILED, TrialStatus.TIMEOUT, TrialStatus.NCCL_ERROR, TrialStatus.NAN,
    TrialStatus.NO_DATA,
)  # fmt: skip
"""Statuses that say nothing about the setting: an answer is still owed."""


def launcher_of(trial: Trial) -> Launcher:
    """One process where the layout has one rank, torchrun where it has several."""
    several = trial.workload.layout.world_size > 1
    return TorchrunLauncher() if several else LocalLauncher()


@dataclass(frozen=True, slots=True, kw_only=True)
class Runner:
    """How trials are run. retry: those that did not measure are run again."""

    folder: RunFolder
    plan: RunPlan
    progress: Progress
    launcher: Callable[[Trial], Launcher] = launcher_of
    retry: bool = False
    grace_seconds: float = GRACE_SECONDS

    def run(self) -> dict[str, TrialResult]:
        """Final results of all trials by name, in the order in which they ran.

        Raises Stop on Ctrl-C and OSError where a result cannot be written; what is finished is
        on disk by then, and the same call goes on from there. UserError where another process is
        at work in the folder.
        """
        self.folder.path.mkdir(parents=True, exist_ok=True)
        lock = Lock(self.folder.lock)
        try:
            if not lock.take():
                raise UserError(
                    "name", self.folder.path.name, "another harness run is at work in this folder",
                    "wait for it, or give name=ANOTHER",
                )  # fmt: skip
            self.folder.create(self.plan)
            with StopSignals() as signals:
                return self._run_all(signals)
        finally:
            lock.close()

    def _run_all(self, signals: StopSignals) -> dict[str, TrialResult]:
        trials = list(self.plan.trials())
        found = {trial.name: self._finished(trial) for _, trial in trials}
        self.progress.plan(sum(result is None for result in found.values()))
        results: dict[str, TrialResult] = {}
        for number, (setting, trial) in enumerate(trials, start=1):
            repeats = len(setting.trials())
            label = setting.spec + (f" repeat {trial.repeat + 1}/{repeats}" if repeats > 1 else "")
            result = found[trial.name]
            if result is not None:
                self.progress.found(number, label, result)
            else:
                self.progress.begin(number, label)
                result = self._run_one(setting, trial, signals)
                self.progress.end(result)
            results[trial.name] = result
        return results

    def _finished(self, trial: Trial) -> TrialResult | None:
        """The final result of an earlier run that answers the same question.

        What an earlier runner left behind is put in order first: its processes are ended, the
        results of all ranks become one, and results to other questions are set aside.
        """
        folder = self.folder.trial(trial.name)
        if not folder.path.exists():
            return None
        end_left_over(folder)
        earlier, result = folder.trial(), folder.result()
        if result is None and earlier is not None and not folder.has_result():
            result = merged(folder, earlier)
            if result is not None:
                folder.write_result(result)
        if result is None and not folder.has_result():
            return None
        if result is not None and earlier is not None and same_question(trial, earlier, result):
            answered = result.status in MEASURED or not self.retry
            if answered:
                return result
        self.folder.set_aside(trial.name)
        return None

    def _run_one(self, setting: PlannedSetting, trial: Trial, signals: StopSignals) -> TrialResult:
        folder = self.folder.trial(trial.name)
        folder.create(trial)
        attempt = Attempt(
            started_at=datetime.now(UTC).isoformat(timespec="seconds"), clock=time.monotonic()
        )
        if setting.skip:
            result = _not_run(trial, attempt, TrialStatus.SKIPPED, setting.skip)
        else:
            try:
                ended = self._launch(trial, folder, signals)
            except OSError as error:
                if is_disk_full(error):
                    raise
                result = _not_run(trial, attempt, TrialStatus.FAILED, f"cannot start: {error}")
            else:
                result = conclude(folder, trial, attempt, ended)
        with signals.held():
            _keep(folder, result)
        return result

    def _launch(self, trial: Trial, folder: TrialFolder, signals: StopSignals) -> Exit:
        """Start the trial and wait for its end, at most as long as its measurement may take."""
        variables = dict(pair.split("=", 1) for pair in self.plan.variables)
        running: Running | None = None
        try:
            with signals.held():
                running = self.launcher(trial).start(trial, folder, variables)
            return self._watch(running, trial, folder)
        except BaseException:
            if running is not None:
                with signals.held():
                    running.stop(self.grace_seconds)
            raise

    def _watch(self, running: Running, trial: Trial, folder: TrialFolder) -> Exit:
        deadline = time.monotonic() + trial.measurement.timeout_seconds
        while True:
            left = deadline - time.monotonic()
            ended = running.wait(max(0.0, min(_TICK_SECONDS, left)))
            if ended is not None:
                return ended
            if left <= 0:
                return running.stop(self.grace_seconds).after_timeout()
            self.progress.tick(folder.state())


def _keep(folder: TrialFolder, result: TrialResult) -> None:
    """Write the final result, unless the worker wrote the same; where the disk is too full to add
    what the parent knows, the worker's stands."""
    written = folder.result()
    if written is not None and encode(result) == encode(written):
        return
    try:
        folder.write_result(result)
    except OSError:
        if written is None:
            raise


def _not_run(trial: Trial, attempt: Attempt, status: TrialStatus, message: str) -> TrialResult:
    return TrialResult(
        name=trial.name,
        status=status,
        trial=plain(trial),
        environment={},
        started_at=attempt.started_at,
        wall_seconds=time.monotonic() - attempt.clock,
        evidence=Evidence(phase=Phase.START, message=message),
    )


def exit_code(results: dict[str, TrialResult]) -> int:
    """0: every setting has an answer, and one was measured. 4: a trial failed, or none measured."""
    statuses = [result.status for result in results.values()]
    failed = any(status in FAILED for status in statuses)
    measured = any(status in MEASURED for status in statuses)
    return 0 if measured and not failed else 4
