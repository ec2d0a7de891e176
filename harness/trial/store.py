"""The folder of a run, and what may be trusted in it after a crash.

::

    runs/<name>/plan.json                     settings, order, predictions; written first,
                                              by a sweep joined to with every trial
    runs/<name>/trials/<trial>/trial.json     what is measured
                              /result.json    how it ended: there only once it is final
                              /log.txt        everything the trial's processes printed; those of
                                              further machines into log.node<k>.txt
                              /job.json       the job that a cluster runs it as
                              /state.json     phase and step of a trial that is running
                              /rank<k>.json   results of single ranks, until they are merged
    runs/<name>/superseded/<trial>.<n>/       trials that were run again, as they were
    runs/<name>/workers/<worker>              locks of a sweep's workers, as long as they live
    runs/<name>/tracked.json                  trials that were handed to trackers

Every JSON file is written next to its place and renamed, so it is whole or absent. The only thing
that is ever overwritten is a trial without a result.
"""

import os
from contextlib import suppress
from pathlib import Path
from typing import Final

from msgspec import Struct

from advisor.base.documents import read_json
from advisor.base.errors import UserError
from advisor.base.units import whole_number
from harness.trial.codec import decode, decode_result, encode
from harness.trial.files import Reservation, in_turn, remove_temporaries, tail, write_atomic
from harness.trial.result import Phase, TrialResult
from harness.trial.run_plan import RunPlan, joined_plan
from harness.trial.trial import Trial

_STATE_BYTES: Final = 160


class TrialState(Struct, frozen=True, kw_only=True):
    """Where a running trial is: its phase, and how many steps it has begun."""

    phase: Phase = Phase.START
    step: int = 0


class SubmittedJob(Struct, frozen=True, kw_only=True):
    """The job that a cluster runs a trial as, by the cluster's id."""

    job: str
    submitted_at: str


class TrialFolder(Struct, frozen=True):
    """Files of one trial."""

    path: Path

    @property
    def log(self) -> Path:
        """What its processes printed."""
        return self.path / "log.txt"

    def log_of(self, node: int) -> Path:
        """What the processes of one of its machines printed; `log` for the first."""
        return self.path / f"log.node{node}.txt" if node else self.log

    @property
    def lock(self) -> Path:
        """Held by the trial's processes as long as one of them lives."""
        return self.path / "lock"

    def create(self, trial: Trial) -> None:
        """Begin an attempt: nothing of an earlier, unfinished one is left but its log's place."""
        self.path.mkdir(parents=True, exist_ok=True)
        remove_temporaries(self.path)
        for path in (*self.rank_files(), self.path / _STATE):
            path.unlink(missing_ok=True)
        write_atomic(self.path / _TRIAL, encode(trial))

    def trial(self) -> Trial | None:
        """The trial as written before it ran; None where there is none that can be read."""
        with suppress(UserError):
            return decode(Trial, self.path / _TRIAL)
        return None

    def result(self) -> TrialResult | None:
        """The final result; None where there is none that can be read."""
        with suppress(UserError):
            return decode_result(self.path / _RESULT)
        return None

    def broken_result(self) -> UserError | None:
        """What is wrong with the result file; None where there is none, or nothing is."""
        if self.has_result():
            try:
                decode_result(self.path / _RESULT)
            except UserError as error:
                return error
        return None

    def job(self) -> SubmittedJob | None:
        """The job it was submitted as; None where it was not, or that cannot be read."""
        with suppress(UserError):
            return decode(SubmittedJob, self.path / _JOB)
        return None

    def write_job(self, job: SubmittedJob) -> None:
        """Say which job it was submitted as."""
        write_atomic(self.path / _JOB, encode(job))

    def forget_job(self) -> None:
        """Its job is of no account any more."""
        (self.path / _JOB).unlink(missing_ok=True)

    def has_result(self) -> bool:
        """Whether there is a result file, readable or not."""
        return (self.path / _RESULT).exists()

    def write_result(self, result: TrialResult) -> None:
        """Write the final result; OSError where the disk is full."""
        write_atomic(self.path / _RESULT, encode(result))

    def reserve(self, rank: int | None) -> Reservation:
        """Space for the result of the trial, or of one of its ranks."""
        return Reservation(self.path / (_RESULT if rank is None else f"rank{rank}.json"))

    def rank_files(self) -> tuple[Path, ...]:
        """Results of single ranks that are there, by name."""
        return tuple(sorted(self.path.glob("rank*.json")))

    def rank_results(self) -> dict[int, TrialResult]:
        """Readable results of single ranks by rank."""
        found = {}
        for path in self.rank_files():
            rank = whole_number(path.stem.removeprefix("rank"))
            if rank is not None:
                with suppress(UserError):
                    found[rank] = decode_result(path)
        return found

    def state(self) -> TrialState:
        """Where the trial was last; its start where it said nothing yet."""
        with suppress(ValueError, TypeError, KeyError):
            values = read_json(self.path / _STATE)
            return TrialState(phase=Phase(values["phase"]), step=int(values["step"]))
        return TrialState()

    def log_tail(self, lines: int = 20) -> tuple[str, ...]:
        """Last lines of the log."""
        return tail(self.log, lines)


class StateWriter:
    """Says where a trial is, by one small write into an open file: a few microseconds.

    Nothing depends on it: where the disk is full it stays silent.
    """

    def __init__(self, folder: TrialFolder) -> None:
        self._descriptor: int | None = None
        with suppress(OSError):
            self._descriptor = os.open(folder.path / _STATE, os.O_WRONLY | os.O_CREAT, 0o644)

    def write(self, phase: Phase, step: int) -> None:
        """`phase` of step number `step` begins."""
        if self._descriptor is None:
            return
        text = f'{{"phase": "{phase}", "step": {step}}}'.ljust(_STATE_BYTES)
        with suppress(OSError):
            os.pwrite(self._descriptor, text.encode(), 0)


class RunFolder(Struct, frozen=True):
    """Files of one run."""

    path: Path

    @property
    def lock(self) -> Path:
        """Held by the runner at work."""
        return self.path / "lock"

    def create(self, plan: RunPlan) -> None:
        """Make the folder and write the plan."""
        (self.path / _TRIALS).mkdir(parents=True, exist_ok=True)
        remove_temporaries(self.path)
        write_atomic(self.path / _PLAN, encode(plan))

    def join(self, plan: RunPlan) -> None:
        """Add `plan` to the plan that is there, as one of several processes that do so."""
        (self.path / _TRIALS).mkdir(parents=True, exist_ok=True)
        with in_turn(self.path / _PLAN_LOCK):
            joined = joined_plan(self.plan(), plan) if self.has_plan() else plan
            write_atomic(self.path / _PLAN, encode(joined))

    def has_plan(self) -> bool:
        """Whether this is the folder of a run at all."""
        return (self.path / _PLAN).exists()

    def plan(self) -> RunPlan:
        """The plan; UserError where the folder holds none."""
        path = self.path / _PLAN
        if not self.has_plan():
            raise UserError("run", str(self.path), f"holds no {_PLAN}", "name the folder of a run")
        return decode(RunPlan, path)

    def trial(self, name: str) -> TrialFolder:
        """Folder of a trial by its name, whether it exists or not."""
        return TrialFolder(self.path / _TRIALS / name)

    def trials(self) -> tuple[TrialFolder, ...]:
        """Folders of all trials that were begun, by name."""
        paths = sorted((self.path / _TRIALS).glob("*"))
        return tuple(TrialFolder(path) for path in paths if (path / _TRIAL).exists())

    def results(self) -> dict[str, TrialResult]:
        """Final results of the plan's trials by trial name, in the plan's order."""
        found = {trial.name: self.trial(trial.name).result() for _, trial in self.plan().trials()}
        return {name: result for name, result in found.items() if result is not None}

    def set_aside(self, name: str) -> Path:
        """Move a trial's folder out of the way by one rename; nothing in it is touched."""
        target_folder = self.path / "superseded"
        target_folder.mkdir(exist_ok=True)
        number = 1
        while (target_folder / f"{name}.{number}").exists():
            number += 1
        target = target_folder / f"{name}.{number}"
        os.rename(self.trial(name).path, target)
        return target


_PLAN: Final = "plan.json"
_PLAN_LOCK: Final = "plan.lock"
_TRIALS: Final = "trials"
_TRIAL: Final = "trial.json"
_RESULT: Final = "result.json"
_STATE: Final = "state.json"
_JOB: Final = "job.json"
