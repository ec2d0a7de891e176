"""The runner that ``launcher=`` means; and that of the other machines of a run without a scheduler,
of which each starts its ranks of every trial that node 0 runs, in the same order, from the same
folder on a shared file system."""

import time
from typing import Any, Final

from advisor.base.errors import require
from harness.execution.launchers.local import Rendezvous, Running, TorchrunLauncher
from harness.execution.progress import Progress
from harness.execution.runner import Runner, label_of
from harness.execution.signals import StopSignals
from harness.planner.launcher_options import LauncherKind, LauncherOptions
from harness.trial.result import TrialResult, TrialStatus
from harness.trial.store import RunFolder, TrialFolder
from harness.trial.trial import PlannedSetting, RunPlan, Trial, same_trial

_LOOK_SECONDS: Final = 0.5
_OTHERS_SECONDS: Final = 10.0


class Follower(Runner, frozen=True, kw_only=True):
    """Runs no trial of its own and writes no result: node 0's result ends each of them."""

    def run(self) -> dict[str, TrialResult]:
        """Results of all trials as node 0 wrote them. Raises Stop where we are asked to end."""
        with StopSignals() as signals:
            trials = list(self.plan.trials())
            before = {one.name: self.folder.trial(one.name).result() for _, one in trials}
            self.progress.plan(len(trials))
            return {
                trial.name: self._follow(number, setting, trial, before[trial.name], signals)
                for number, (setting, trial) in enumerate(trials, start=1)
            }

    def _follow(
        self,
        number: int,
        setting: PlannedSetting,
        trial: Trial,
        before: TrialResult | None,
        signals: StopSignals,
    ) -> TrialResult:
        """Help with one trial until it has a result that node 0 will not run again."""
        self.progress.begin(number, label_of(setting, trial))
        folder = self.folder.trial(trial.name)
        running: Running | None = None
        try:
            while (result := self._final(trial, folder, before)) is None:
                if running is None and not setting.skip and self._is_asked(trial, folder):
                    with signals.held():
                        running = self.launcher(trial).start(trial, folder, trial.environment)
                if running is None:
                    time.sleep(_LOOK_SECONDS)
                elif running.wait(_LOOK_SECONDS) is not None:
                    running = None  # node 0 was not ready yet, or is about to conclude
        finally:
            if running is not None:
                with signals.held():
                    if running.wait(_OTHERS_SECONDS) is None:
                        running.stop(self.grace_seconds)
        self.progress.end(result)
        return result

    def _is_asked(self, trial: Trial, folder: TrialFolder) -> bool:
        written = folder.trial()
        return written is not None and same_trial(trial, written)

    def _final(
        self, trial: Trial, folder: TrialFolder, before: TrialResult | None
    ) -> TrialResult | None:
        """The trial's result where node 0 keeps it as found, or has just written it."""
        result = folder.result()
        if result is None or not self._is_asked(trial, folder):
            return None
        return None if result.status in self.retry and result == before else result


def make_runner(
    options: LauncherOptions,
    folder: RunFolder,
    plan: RunPlan,
    progress: Progress,
    retry: frozenset[TrialStatus] = frozenset(),
    mine: frozenset[str] | None = None,
) -> Runner:
    """A runner of `plan`; UserError where a package that it needs is not installed."""
    given: dict[str, Any] = {"folder": folder, "plan": plan, "progress": progress}
    given |= {"retry": retry, "mine": mine}
    if options.kind is LauncherKind.SLURM:
        require("submitit", "launcher=slurm", "harness,slurm")
        from harness.execution.launchers.slurm.runner import SlurmRunner

        return SlurmRunner(options=options, **given)
    if options.kind is LauncherKind.TORCHRUN:
        kind, place = Follower if options.node_rank else Runner, None
        if options.nnodes > 1:
            host, port = options.endpoint()
            where = {"nnodes": options.nnodes, "node_rank": options.node_rank}
            place = Rendezvous(**where, host=host, port=port)
        return kind(launcher=lambda _: TorchrunLauncher(rendezvous=place), **given)
    return Runner(**given)
