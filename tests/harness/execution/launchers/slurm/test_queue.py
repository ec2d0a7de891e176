"""What Slurm's commands print, read without them."""

import subprocess
from typing import Any

import pytest

from harness.execution.launchers.slurm import queue
from harness.execution.launchers.slurm.queue import JobReport, Queue, array_id, counts, tasks

# As Slurm 22.05 prints them, cut to the fields around those that are read.
RUNNING = (
    "JobId=13 ArrayJobId=12 ArrayTaskId=0 ArrayTaskThrottle=20 JobName=harness-1 "
    "JobState=RUNNING Reason=None Dependency=(null) Requeue=1 Restarts=0 ExitCode=0:0 "
    "NodeList=gpu[1-2] BatchHost=gpu1"
)
WAITING = (
    "JobId=12 ArrayJobId=12 ArrayTaskId=2-3,7%20 JobName=harness-1 JobState=PENDING "
    "Reason=Resources ExitCode=0:0 NodeList=(null)"
)
KILLED = "JobId=14 ArrayJobId=12 ArrayTaskId=1 JobState=FAILED Reason=NonZeroExitCode ExitCode=0:9"
ALONE = "JobId=20 JobName=harness-2 JobState=COMPLETED Reason=None ExitCode=0:0 NodeList=gpu1"
GONE = "slurm_load_jobs error: Invalid job id specified"
NO_ANSWER = "slurm_load_jobs error: Unable to contact slurm controller (connect failure)"


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> dict[str, tuple[int, str, str]]:
    """What each command answers: exit code, stdout, stderr."""
    answers: dict[str, tuple[int, str, str]] = {"sacct": (1, "", "accounting is disabled")}

    def ask(*words: str) -> Any:
        if words[0] not in answers:
            return None
        return subprocess.CompletedProcess(words, *answers[words[0]])

    monkeypatch.setattr(queue, "_ask", ask)
    return answers


def test_an_array_in_all_its_states(said: dict[str, tuple[int, str, str]]) -> None:
    said["scontrol"] = (0, "\n".join([RUNNING, WAITING, KILLED]), "")
    waiting = JobReport(state="PENDING", reason="Resources")
    assert Queue().reports("12") == {
        "12_0": JobReport(state="RUNNING", nodes="gpu[1-2]"),
        "12_1": JobReport(state="FAILED", signal=9, reason="NonZeroExitCode"),
        "12_2": waiting,
        "12_3": waiting,
        "12_7": waiting,
    }


def test_a_single_job_has_no_task(said: dict[str, tuple[int, str, str]]) -> None:
    said["scontrol"] = (0, ALONE, "")
    assert Queue().reports("20") == {"20": JobReport(state="COMPLETED", nodes="gpu1")}


def test_what_the_controller_forgot_is_in_the_accounts(said) -> None:
    said["scontrol"] = (1, "", GONE)
    assert Queue().reports("12") == {}
    said["sacct"] = (
        0,
        "12_0|CANCELLED by 1000|0:0|gpu1\n12_1|OUT_OF_MEMORY|0:125|gpu2\n"
        "12_[2-3]|PENDING|0:0|None assigned\n",
        "",
    )
    assert Queue().reports("12") == {
        "12_0": JobReport(state="CANCELLED", nodes="gpu1"),
        "12_1": JobReport(state="OUT_OF_MEMORY", signal=125, nodes="gpu2"),
    }


@pytest.mark.parametrize("answer", [(1, "", NO_ANSWER), None])
def test_a_controller_that_is_away_says_nothing_about_its_jobs(said, answer) -> None:
    if answer is not None:
        said["scontrol"] = said["squeue"] = answer
    assert Queue().reports("12") is None
    assert Queue().named("x") is None


def test_jobs_by_name(said: dict[str, tuple[int, str, str]]) -> None:
    said["squeue"] = (0, "12\n12\n15\n", "")
    assert Queue().named("harness-1") == ("12", "15")


def test_numbers_of_tasks() -> None:
    assert list(tasks("0,3-5%2")) == [0, 3, 4, 5]
    assert list(tasks("")) == []
    assert (array_id("12_3"), array_id("12")) == ("12", "12")


def test_counts_are_words() -> None:
    reports = [JobReport(state="RUNNING"), *[JobReport(state="PENDING", reason="Priority")] * 2]
    assert counts(reports) == "2 pending (Priority), 1 running"


def test_a_missing_command_is_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    assert Queue().reports("12") is None
