"""What the end of a Slurm job says about its trial, where the trial left no result."""

from typing import Final

from harness.run.launchers.launcher import Exit
from harness.run.launchers.slurm.queue import JobReport
from harness.trial.failures import Failure
from harness.trial.result import TrialStatus

_COMPLETED: Final = "COMPLETED"
_FAILED: Final = "FAILED"
# States of `man squeue`, JOB STATE CODES, that no other follows.
_ENDED: Final = {
    "BOOT_FAIL": (TrialStatus.FAILED, "its node did not boot"),
    "CANCELLED": (TrialStatus.FAILED, "was cancelled"),
    "DEADLINE": (TrialStatus.TIMEOUT, "missed its deadline"),
    "LAUNCH_FAILED": (TrialStatus.FAILED, "could not be launched"),
    "NODE_FAIL": (TrialStatus.FAILED, "lost its node"),
    "OUT_OF_MEMORY": (TrialStatus.OOM, "ran out of the host memory that it was given"),
    "PREEMPTED": (TrialStatus.FAILED, "was preempted, and not requeued"),
    "RECONFIG_FAIL": (TrialStatus.FAILED, "its node could not be configured"),
    "REVOKED": (TrialStatus.FAILED, "was revoked"),
    "TIMEOUT": (TrialStatus.TIMEOUT, "reached its time limit"),
}


def has_ended(report: JobReport) -> bool:
    """Whether nothing more comes: a job that is requeued waits again."""
    return report.state in (*_ENDED, _COMPLETED, _FAILED)


def exit_of(job: str, report: JobReport | None) -> Exit:
    """How `job` ended; None is a job that Slurm has forgotten."""
    if report is None:
        return Exit(told=_failed(f"Slurm no longer knows job {job}, and it left no result"))
    if report.state in _ENDED:
        status, words = _ENDED[report.state]
        where = f" on {report.nodes}" if report.nodes else ""
        return Exit(told=Failure(status=status, message=f"Slurm job {job} {words}{where}"))
    return Exit(code=None if report.signal else report.code, signal=report.signal or None)


def _failed(message: str) -> Failure:
    return Failure(status=TrialStatus.FAILED, message=message)
