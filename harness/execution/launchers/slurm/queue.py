"""What Slurm says of jobs, by its own commands, and what their ends say of the trials. ``scontrol``
knows a job for MinJobAge after its end (five minutes unless configured otherwise); ``sacct`` knows
it for good where the cluster keeps accounts. A controller that is restarted does not answer for a
while, which says nothing about its jobs."""

import os
import re
import subprocess
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

from msgspec import Struct, convert

from advisor.base.configuration import load_yaml, packaged_configs
from harness.execution.launchers.local import Exit
from harness.trial.failures import Failure
from harness.trial.result import TrialStatus

_TIMEOUT_SECONDS: Final = 60
_NO_CONTROLLER: Final = "Unable to contact slurm controller"  # slurm_errno.c
_FIELD: Final = re.compile(r"(\w+)=(\S*)")
_UNCUT: Final = {"SLURM_BITSTR_LEN": "0"}  # else long lists of array tasks are shortened


class JobReport(Struct, frozen=True, kw_only=True):
    """A job's state in Slurm's word, its exit code or signal, where it ran, and why it waits."""

    state: str
    code: int = 0
    signal: int = 0
    nodes: str = ""
    reason: str = ""


class Queue:
    """The cluster's queue."""

    def reports(self, job: str) -> dict[str, JobReport] | None:
        """All tasks of `job` by id (``12`` or ``12_3``) as far as they are known; None where the
        controller does not answer."""
        shown = _ask("scontrol", "show", "job", "--oneliner", job)
        if shown is None or (shown.returncode and "Invalid job id" not in shown.stderr):
            return None
        found = dict(_accounts(job))
        for line in shown.stdout.splitlines():
            found.update(_report(line))
        return found

    def named(self, name: str) -> tuple[str, ...] | None:
        """Jobs of that name that wait or run; None where the controller does not answer."""
        shown = _ask("squeue", "--noheader", f"--name={name}", "--format=%F")
        if shown is None or shown.returncode:
            return None
        return tuple(dict.fromkeys(shown.stdout.split()))

    def cancel(self, job: str) -> None:
        """Ask for the end of a job; one that has ended stays as it is."""
        _ask("scancel", job)


def _ask(*words: str) -> "subprocess.CompletedProcess[str] | None":
    try:
        return subprocess.run(
            words,
            capture_output=True,
            text=True,
            check=False,
            timeout=_TIMEOUT_SECONDS,
            env={**os.environ, **_UNCUT},
        )
    except (OSError, subprocess.TimeoutExpired):
        return None


def _report(line: str) -> Iterator[tuple[str, JobReport]]:
    """The jobs of one line of scontrol: one, or all tasks of an array that still wait."""
    fields = dict(_FIELD.findall(line))
    if "JobState" not in fields:
        return
    code, signal = _exit_code(fields.get("ExitCode", ""))
    report = JobReport(
        state=fields["JobState"],
        code=code,
        signal=signal,
        nodes=_given(fields.get("NodeList", "")),
        reason=_given(fields.get("Reason", "")),
    )
    if "ArrayJobId" not in fields:
        yield fields["JobId"], report
        return
    for task in tasks(fields.get("ArrayTaskId", "")):
        yield f"{fields['ArrayJobId']}_{task}", report


def _accounts(job: str) -> Iterator[tuple[str, JobReport]]:
    """The same of jobs that have ended, where the cluster keeps accounts."""
    asked = f"--jobs={job}", "--format=JobID,State,ExitCode,NodeList"
    shown = _ask("sacct", "--noheader", "--parsable2", "--allocations", *asked)
    for line in () if shown is None or shown.returncode else shown.stdout.splitlines():
        name, state, exit_code, nodes = (line.split("|") + [""] * 3)[:4]
        if name and "[" not in name and state:
            code, signal = _exit_code(exit_code)
            # "CANCELLED by 1000"
            yield name, JobReport(state=state.split()[0], code=code, signal=signal, nodes=nodes)


def tasks(text: str) -> Iterator[int]:
    """Numbers of an array: ``0,3-5%2`` is 0, 3, 4, 5."""
    for part in text.partition("%")[0].split(","):
        first, _, last = part.partition("-")
        if first.isdigit():
            yield from range(int(first), int(last or first) + 1)


def _exit_code(text: str) -> tuple[int, int]:
    code, _, signal = text.partition(":")
    return (int(code) if code.isdigit() else 0), (int(signal) if signal.isdigit() else 0)


def _given(text: str) -> str:
    return "" if text in ("(null)", "None", "N/A") else text


def array_id(job: str) -> str:
    """``12`` of ``12_3``."""
    return job.partition("_")[0]


def counts(reports: Sequence[JobReport]) -> str:
    """``3 running, 14 pending (Resources)``."""
    found = Counter(
        one.state.lower() + (f" ({one.reason})" if one.reason else "") for one in reports
    )
    return ", ".join(f"{number} {words}" for words, number in sorted(found.items()))


_FAILED: Final = "FAILED"
_ENDED: Final = convert(
    load_yaml(packaged_configs() / "logs" / "slurm.yaml").values, dict[str, tuple[TrialStatus, str]]
)


def has_ended(report: JobReport) -> bool:
    """Whether nothing more comes: a job that is requeued waits again."""
    return report.state in (*_ENDED, "COMPLETED", _FAILED)


def met_no_controller(report: JobReport | None, output: Sequence[str]) -> bool:
    """Whether a job failed as srun, by its `output`, could not reach the controller; one that Slurm
    ended, for instance cancelled, did not. None is a job that Slurm has forgotten."""
    failed = report is None or report.state == _FAILED
    return failed and any(_NO_CONTROLLER in line for line in output)


def exit_of(job: str, report: JobReport | None) -> Exit:
    """How `job` ended; None is a job that Slurm has forgotten."""
    if report is None:
        gone = f"Slurm no longer knows job {job}, which left no result"
        return Exit(stated=Failure(TrialStatus.FAILED, gone))
    if report.state in _ENDED:
        status, words = _ENDED[report.state]
        where = f" on {report.nodes}" if report.nodes else ""
        return Exit(stated=Failure(status, f"Slurm job {job} {words}{where}"))
    return Exit(code=None if report.signal else report.code, signal=report.signal or None)
