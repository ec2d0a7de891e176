"""The final result of a trial whose processes have ended: the worker's, or what can be inferred."""

import signal
import time

from msgspec import Struct
from msgspec.structs import replace

from harness.execution.command_result import conclude_log
from harness.execution.launchers.launcher import Exit
from harness.trial import failures
from harness.trial.codec import plain
from harness.trial.ranks import failed_ranks, merge
from harness.trial.result import Evidence, TrialResult, TrialStatus
from harness.trial.store import TrialFolder
from harness.trial.trial import Trial


class Attempt(Struct, frozen=True, kw_only=True):
    """When a trial was started, by the calendar and by a clock that only runs forward."""

    started_at: str
    clock: float


def conclude(folder: TrialFolder, trial: Trial, attempt: Attempt, ended: Exit) -> TrialResult:
    """The result of `trial`; what the worker wrote stands, whatever happened to it afterwards."""
    written = folder.result() or merged(folder, trial)
    if written is not None:
        return _completed(written, folder, ended)
    if trial.command is not None:
        told = conclude_log(folder, trial, trial.command, attempt.started_at, attempt.clock, ended)
        if told is not None:
            return told
    status, message, over = _judge(folder, trial, ended)
    evidence = Evidence(
        phase=folder.state().phase,
        message=message,
        exit_code=ended.code,
        signal=ended.signal,
        over_bytes=over,
        log_tail=folder.log_tail(),
    )
    return unmeasured(trial, attempt, status, evidence)


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


def _completed(result: TrialResult, folder: TrialFolder, ended: Exit) -> TrialResult:
    """The worker's result; where it tells of a failure, with how the process ended and its log."""
    if result.evidence is None or result.evidence.log_tail:
        return result
    evidence = replace(
        result.evidence,
        exit_code=ended.code,
        signal=ended.signal,
        log_tail=folder.log_tail(),
    )
    return replace(result, evidence=evidence)


def _judge(folder: TrialFolder, trial: Trial, ended: Exit) -> tuple[TrialStatus, str, int | None]:
    """Status, reason and bytes over of a trial that left no result."""
    if ended.told is not None:
        return ended.told.status, ended.told.message, ended.told.over_bytes
    if ended.timed_out:
        limit = trial.measurement.timeout_seconds
        state = folder.state()
        where = f"in phase {state.phase} of step {state.step}"
        return TrialStatus.TIMEOUT, f"not done after {limit:g} s, {where}", None
    if ended.code == 0:
        what = "cannot be read" if folder.has_result() else "is missing"
        return TrialStatus.NO_DATA, f"ended without an error, and result.json {what}", None
    several = trial.workload.layout.world_size > 1  # then torchrun ends with a code of its own
    if ended.host_oom and (several or ended.signal == signal.SIGKILL):
        return TrialStatus.OOM, "the kernel ended a process: the host ran out of memory", None
    found = failures.of_log(folder.log_tail(50))
    if found is not None:
        return found.status, found.message, found.over_bytes
    if ended.signal is not None:
        return _judge_signal(ended.signal, ended.host_oom)
    lines = folder.log_tail(1)
    last = f": {lines[-1]}" if lines else ", and its log is empty"
    return TrialStatus.FAILED, failures.one_line(f"ended with exit code {ended.code}{last}"), None


def _judge_signal(number: int, host_oom: bool | None) -> tuple[TrialStatus, str, int | None]:
    """SIGKILL that is not ours is the kernel's, short of memory, unless its counts deny it."""
    name = _signal_name(number)
    if number != signal.SIGKILL:
        return TrialStatus.FAILED, f"ended by {name}", None
    if host_oom is None:
        return TrialStatus.OOM, f"ended by {name}, likely because the host ran out of memory", None
    return TrialStatus.FAILED, f"ended by {name} from outside; the kernel killed nothing", None


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
