"""Slurm's states as statuses."""

import pytest

from harness.execution.launchers.local import Exit
from harness.execution.launchers.slurm.queue import JobReport, exit_of, has_ended, met_no_controller
from harness.trial.result import TrialStatus


@pytest.mark.parametrize(
    ("state", "status", "says"),
    [
        ("TIMEOUT", TrialStatus.TIMEOUT, "reached its time limit"),
        ("DEADLINE", TrialStatus.TIMEOUT, "missed its deadline"),
        ("OUT_OF_MEMORY", TrialStatus.OOM, "ran out of its host memory"),
        ("CANCELLED", TrialStatus.FAILED, "was cancelled"),
        ("NODE_FAIL", TrialStatus.FAILED, "lost its node"),
        ("PREEMPTED", TrialStatus.FAILED, "was preempted and not requeued"),
        ("BOOT_FAIL", TrialStatus.FAILED, "did not boot"),
    ],
)
def test_what_slurm_ended(state: str, status: TrialStatus, says: str) -> None:
    report = JobReport(state=state, nodes="gpu3")
    assert has_ended(report)
    stated = exit_of("12_3", report).stated
    assert stated.status is status
    assert stated.message.startswith("Slurm job 12_3 ")
    assert says in stated.message
    assert stated.message.endswith(" on gpu3")


def test_what_ended_by_itself_is_judged_by_its_exit_code() -> None:
    assert exit_of("1", JobReport(state="COMPLETED")) == Exit(code=0)
    assert exit_of("1", JobReport(state="FAILED", code=3)) == Exit(code=3)
    assert exit_of("1", JobReport(state="FAILED", signal=9)) == Exit(signal=9)


def test_a_job_that_slurm_has_forgotten() -> None:
    stated = exit_of("12_3", None).stated
    assert (stated.status, "no longer knows job 12_3" in stated.message) == (
        TrialStatus.FAILED,
        True,
    )


def test_only_a_job_that_failed_met_no_controller() -> None:
    output = ("srun: error: Unable to confirm allocation: Unable to contact slurm controller",)
    assert met_no_controller(JobReport(state="FAILED", code=1), output)
    assert met_no_controller(None, output)
    assert not met_no_controller(JobReport(state="CANCELLED"), output)
    assert not met_no_controller(JobReport(state="FAILED", code=1), ("srun: error: no such file",))


RUNNING = (
    "PENDING RUNNING SUSPENDED COMPLETING CONFIGURING REQUEUED REQUEUE_HOLD SPECIAL_EXIT STAGE_OUT "
    "SIGNALING RESIZING STOPPED"
)


@pytest.mark.parametrize("state", RUNNING.split())
def test_what_may_still_run(state: str) -> None:
    assert not has_ended(JobReport(state=state))
