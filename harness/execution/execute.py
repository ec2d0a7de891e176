"""One trial on this machine, from its start to its final result on disk."""

import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

from msgspec import Struct

from harness.execution.conclude import Attempt, conclude, unmeasured
from harness.execution.launchers.launcher import Exit, Launcher, Running
from harness.execution.launchers.local import LocalLauncher
from harness.execution.launchers.torchrun import TorchrunLauncher
from harness.execution.signals import StopSignals
from harness.trial.codec import encode
from harness.trial.failures import is_disk_full
from harness.trial.result import Evidence, Phase, TrialResult, TrialStatus
from harness.trial.store import TrialFolder, TrialState
from harness.trial.trial import Trial

GRACE_SECONDS: Final = 5.0
_TICK_SECONDS: Final = 0.5


def launcher_of(trial: Trial) -> Launcher:
    """One process where the layout has one rank, torchrun where it has several; a command starts
    its ranks itself."""
    several = trial.workload.layout.world_size > 1 and trial.command is None
    return TorchrunLauncher() if several else LocalLauncher()


def begin() -> Attempt:
    """An attempt that starts now."""
    return Attempt(
        started_at=datetime.now(UTC).isoformat(timespec="seconds"), clock=time.monotonic()
    )


class Execution(Struct, frozen=True, kw_only=True):
    """How one trial is run; `tick` is told where it is while it runs."""

    folder: TrialFolder
    trial: Trial
    launcher: Launcher
    signals: StopSignals
    tick: Callable[[TrialState], None]
    grace_seconds: float = GRACE_SECONDS

    def run(self) -> TrialResult:
        """The final result, which is on disk by then.

        Raises Stop where we are asked to end; OSError where the result cannot be written.
        """
        self.folder.create(self.trial)
        attempt = begin()
        try:
            ended = self._launch()
        except OSError as error:
            if is_disk_full(error):
                raise
            result = not_run(self.trial, attempt, TrialStatus.FAILED, f"cannot start: {error}")
        else:
            result = conclude(self.folder, self.trial, attempt, ended)
        with self.signals.held():
            keep(self.folder, result)
        return result

    def _launch(self) -> Exit:
        """Start the trial and wait for its end, at most as long as its measurement may take."""
        running: Running | None = None
        try:
            with self.signals.held():
                running = self.launcher.start(self.trial, self.folder, self.trial.environment)
            return self._watch(running)
        except BaseException:
            if running is not None:
                with self.signals.held():
                    running.stop(self.grace_seconds)
            raise

    def _watch(self, running: Running) -> Exit:
        deadline = time.monotonic() + self.trial.measurement.timeout_seconds
        while True:
            left = deadline - time.monotonic()
            ended = running.wait(max(0.0, min(_TICK_SECONDS, left)))
            if ended is not None:
                return ended
            if left <= 0:
                return running.stop(self.grace_seconds).after_timeout()
            self.tick(self.folder.state())


def keep(folder: TrialFolder, result: TrialResult) -> None:
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


def not_run(trial: Trial, attempt: Attempt, status: TrialStatus, message: str) -> TrialResult:
    """The result of a trial of which no process was started."""
    return unmeasured(trial, attempt, status, Evidence(phase=Phase.START, message=message))
