"""One trial on this machine, from its start to its final result on disk."""

import signal
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from advisor.base.fields import split_key_values
from harness.backends.command_flags import OTHER
from harness.execution.launchers import local
from harness.execution.signals import StopSignals
from harness.logs.parse import ParsedLog, parse_logs
from harness.logs.records import LogFramework
from harness.logs.trial_result import LoggedRun, failed, not_a_number, result_of
from harness.logs.trial_result import unmeasured as unmeasured_log
from harness.trial import failures
from harness.trial.failures import Failure, is_disk_full
from harness.trial.result import Evidence, Phase, TrialResult, TrialStatus, failed_ranks, merge
from harness.trial.store import TrialFolder, TrialState, encode, plain
from harness.trial.trial import TrainingCommand, Trial


class Attempt(Struct, frozen=True, kw_only=True):
    """When a trial was started, by the calendar and by a clock that only runs forward."""

    started_at: str
    clock: float


def conclude(folder: TrialFolder, trial: Trial, attempt: Attempt, ended: local.Exit) -> TrialResult:
    """The result of `trial`; what the worker wrote stands, whatever happened to it afterwards."""
    written = folder.result() or merged(folder, trial)
    if written is not None:
        return _completed(written, folder, ended)
    if trial.command is not None:
        stated = conclude_log(folder, trial, trial.command, attempt, ended)
        if stated is not None:
            return stated
    why = _judge(folder, trial, ended)
    evidence = Evidence(phase=folder.state().phase, message=why.message, over_bytes=why.over_bytes)
    return _completed(unmeasured(trial, attempt, why.status, evidence), folder, ended)


def unmeasured(
    trial: Trial, attempt: Attempt, status: TrialStatus, evidence: Evidence
) -> TrialResult:
    """The result of a trial that left none, and knows nothing of where it ran."""
    return TrialResult(
        name=trial.name,
        status=status,
        trial=plain(trial),
        environment={},
        started_at=attempt.started_at,
        wall_seconds=time.monotonic() - attempt.clock,
        evidence=evidence,
    )


def merged(folder: TrialFolder, trial: Trial) -> TrialResult | None:
    """Result of all ranks; None while some are missing and none of the others failed."""
    ranks = folder.rank_results()
    complete = len(ranks) == trial.workload.layout.world_size
    return merge(ranks) if ranks and (complete or failed_ranks(ranks)) else None


def _completed(result: TrialResult, folder: TrialFolder, ended: local.Exit) -> TrialResult:
    """A result; where it tells of a failure, with how the process ended and its log."""
    if result.evidence is None or result.evidence.log_tail:
        return result
    evidence = replace(
        result.evidence, exit_code=ended.code, signal=ended.signal, log_tail=folder.log_tail()
    )
    return replace(result, evidence=evidence)


def conclude_log(
    folder: TrialFolder, trial: Trial, command: TrainingCommand, attempt: Attempt, ended: local.Exit
) -> TrialResult | None:
    """The result of a command that did what it should, or whose log names why it did not; None
    where the way in which it ended says more than the log."""
    framework = None if command.framework == OTHER else LogFramework(command.framework)
    plan = trial.measurement
    parsed = parse_logs([folder.log], framework, plan.max_warmup_steps + plan.steps)
    question = LoggedRun(
        name=trial.name,
        trial=plain(trial),
        plan=plan,
        device=trial.workload.device,
        started_at=attempt.started_at,
        wall_seconds=time.monotonic() - attempt.clock,
        environment={
            "gpus": [{"name": command.gpu}] if command.gpu else [],
            "variables": split_key_values(command.variables),
        },
        done=ended.code == 0 and parsed.cause is None,
    )
    if ended.code == 0:
        return _completed(result_of(parsed, question), folder, ended)
    cause = _cause(parsed, trial, ended)
    if cause is None:
        return None
    return _completed(failed(unmeasured_log(parsed, question), parsed, cause), folder, ended)


def _cause(parsed: ParsedLog, trial: Trial, ended: local.Exit) -> Failure | None:
    """Why a command failed; what we stopped may have been out of memory before."""
    named, bad = parsed.cause, not_a_number(parsed)
    if named is not None and named.status is TrialStatus.OOM:
        return named
    if bad is not None:
        return bad
    if ended.timed_out:
        return _timeout(trial)
    return None if ended.host_oom else named


def _timeout(trial: Trial, where: str = "") -> Failure:
    limit = trial.measurement.timeout_seconds
    return Failure(TrialStatus.TIMEOUT, f"not done after {limit:g} s{where}")


def _judge(folder: TrialFolder, trial: Trial, ended: local.Exit) -> Failure:
    """Why a trial left no result."""
    if ended.stated is not None:
        return ended.stated
    if ended.timed_out:
        state = folder.state()
        return _timeout(trial, f", at step {state.step}, phase {state.phase}")
    if ended.code == 0:
        what = "cannot be read" if folder.has_result() else "is missing"
        return Failure(TrialStatus.NO_DATA, f"ended without an error, but result.json {what}")
    several = trial.workload.layout.world_size > 1  # then torchrun ends with a code of its own
    if ended.host_oom and (several or ended.signal == signal.SIGKILL):
        return Failure(TrialStatus.OOM, "the kernel ended a process: the host ran out of memory")
    found = failures.of_log(folder.log_tail(50))
    if found is not None:
        return found
    if ended.signal is not None:
        return _judge_signal(ended.signal, ended.host_oom)
    lines = folder.log_tail(1)
    last = f": {lines[-1]}" if lines else ", and its log is empty"
    words = failures.one_line(f"ended with exit code {ended.code}{last}")
    return Failure(TrialStatus.FAILED, words)


def _judge_signal(number: int, host_oom: bool | None) -> Failure:
    """SIGKILL that is not ours is the kernel's, short of memory, unless its counts deny it."""
    name = signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
    if number != signal.SIGKILL:
        return Failure(TrialStatus.FAILED, f"ended by {name}")
    if host_oom is None:
        return Failure(TrialStatus.OOM, f"ended by {name}; the host may have run out of memory")
    outside = "from outside (not by the kernel's out-of-memory killer)"
    return Failure(TrialStatus.FAILED, f"ended by {name} {outside}")


GRACE_SECONDS: Final = 5.0
_TICK_SECONDS: Final = 0.5


def launcher_of(trial: Trial) -> local.Launcher:
    """torchrun where the layout has several ranks that no command starts, else one process."""
    several = trial.workload.layout.world_size > 1 and trial.command is None
    return local.TorchrunLauncher() if several else local.LocalLauncher()


def begin() -> Attempt:
    """An attempt that starts now."""
    now = datetime.now(UTC).isoformat(timespec="seconds")
    return Attempt(started_at=now, clock=time.monotonic())


class Execution(Struct, frozen=True, kw_only=True):
    """How one trial is run; `tick` is told where it is while it runs."""

    folder: TrialFolder
    trial: Trial
    launcher: local.Launcher
    signals: StopSignals
    tick: Callable[[TrialState], None]
    grace_seconds: float = GRACE_SECONDS

    def run(self) -> TrialResult:
        """The final result, on disk by then. Raises Stop; OSError where it cannot be written."""
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

    def _launch(self) -> local.Exit:
        """Start the trial and wait for its end, at most as long as its measurement may take."""
        running: local.Running | None = None
        try:
            with self.signals.held():
                running = self.launcher.start(self.trial, self.folder, self.trial.environment)
            return self._watch(running)
        except BaseException:
            if running is not None:
                with self.signals.held():
                    running.stop(self.grace_seconds)
            raise

    def _watch(self, running: local.Running) -> local.Exit:
        deadline = time.monotonic() + self.trial.measurement.timeout_seconds
        while True:
            left = deadline - time.monotonic()
            ended = running.wait(max(0.0, min(_TICK_SECONDS, left)))
            if ended is not None:
                return ended
            if left <= 0:
                return replace(running.stop(self.grace_seconds), timed_out=True)
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
