"""The result of a trial whose command has ended, out of its log."""

import time
from typing import Any

from msgspec.structs import replace

from harness.backends.command_flags import OTHER
from harness.execution.launchers.launcher import Exit
from harness.logs.parse import ParsedLog, parse_logs
from harness.logs.records import LogFramework
from harness.logs.trial_result import Question, failed, not_a_number, result_of, unmeasured
from harness.trial.codec import plain
from harness.trial.failures import Failure
from harness.trial.result import TrialResult, TrialStatus
from harness.trial.store import TrialFolder
from harness.trial.trial import Command, Trial


def read_log(folder: TrialFolder, command: Command) -> ParsedLog:
    """What the command's log says; of whichever framework where the command does not tell."""
    framework = None if command.framework == OTHER else LogFramework(command.framework)
    return parse_logs([folder.log], framework)


def conclude_log(
    folder: TrialFolder, trial: Trial, command: Command, started_at: str, clock: float, ended: Exit
) -> TrialResult | None:
    """The result, where the command did what it should, or its log names why it did not; None where
    the way in which it ended says more than the log."""
    parsed = read_log(folder, command)
    question = Question(
        name=trial.name,
        trial=plain(trial),
        plan=trial.measurement,
        device=trial.workload.device,
        started_at=started_at,
        wall_seconds=time.monotonic() - clock,
        environment=_environment(command),
        done=ended.code == 0 and parsed.cause is None,
    )
    if ended.code == 0:
        return _with_log(result_of(parsed, question), folder, ended)
    cause = _cause(parsed, trial, ended)
    if cause is None:
        return None
    return _with_log(failed(unmeasured(parsed, question), parsed, cause), folder, ended)


def _cause(parsed: ParsedLog, trial: Trial, ended: Exit) -> Failure | None:
    """Why a command that failed did so. One that we stopped says a lot on its way down; but ranks
    that wait for one without memory hang, and memory it was."""
    named, bad = parsed.cause, not_a_number(parsed)
    if named is not None and named.status is TrialStatus.OOM:
        return named
    if bad is not None:
        return bad
    if ended.timed_out:
        limit = trial.measurement.timeout_seconds
        return Failure(status=TrialStatus.TIMEOUT, message=f"not done after {limit:g} s")
    return None if ended.host_oom else named


def _environment(command: Command) -> dict[str, Any]:
    """What is known of where it ran: the GPU, and what the setting needed."""
    pairs = dict(pair.split("=", 1) for pair in command.variables)
    gpus = [{"name": command.gpu}] if command.gpu else []
    return {"gpus": gpus, "variables": pairs}


def _with_log(result: TrialResult, folder: TrialFolder, ended: Exit) -> TrialResult:
    if result.evidence is None:
        return result
    evidence = replace(
        result.evidence, exit_code=ended.code, signal=ended.signal, log_tail=folder.log_tail()
    )
    return replace(result, evidence=evidence)
