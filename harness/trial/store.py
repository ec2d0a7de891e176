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

JSON is strict: a loss of NaN is the string "nan", as in Megatron's own golden files. What is
computed with in a result is checked when it is read, for a file may be anybody's. Trial and
environment are plain JSON and may be known in part; what of them is there has its type.
"""

import json
import math
import os
from contextlib import suppress
from datetime import datetime
from itertools import count
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar

from msgspec import Meta, Struct, ValidationError, convert
from msgspec.structs import replace

from advisor.base.documents import read_json
from advisor.base.errors import UserError, show
from advisor.base.fields import read_record
from advisor.base.limits import LARGEST, LARGEST_FLOAT
from advisor.base.record import as_dict
from advisor.base.units import whole_number
from harness.trial.files import Reservation, in_turn, remove_temporaries, tail, write_atomic
from harness.trial.result import SCHEMA_VERSION, Phase, TrialResult, TrialStatus
from harness.trial.trial import Device, RunPlan, Trial, joined_plan, same_trial

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
        """The final result; None where there is none that can be read, or another trial's."""
        with suppress(UserError):
            return self._own(self.path / _RESULT)
        return None

    def _own(self, path: Path) -> TrialResult:
        """The result in a file; UserError where it is another trial's (of old ones, by name)."""
        result, trial = decode_result(path), self.trial()
        if trial is None or "workload" not in result.trial:
            return result
        stated = trial
        with suppress(UserError):
            stated = read_record(Trial, result.trial, "trial")
        if result.name != trial.name or not same_trial(trial, stated):
            relation = f"is the result of another trial than the {_TRIAL} beside it tells"
            raise UserError(f"{path}: name", result.name, relation)
        return result

    def broken_result(self) -> UserError | None:
        """What is wrong with the result file; None where there is none, or nothing is."""
        if self.has_result():
            try:
                self._own(self.path / _RESULT)
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
                    found[rank] = self._own(path)
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
    """Says where a trial is, by one small write into an open file; silent on a full disk."""

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
        self._tidy()
        write_atomic(self.path / _PLAN, encode(plan))

    def join(self, plan: RunPlan) -> None:
        """Add `plan` to the plan that is there, as one of several processes that do so."""
        self._tidy()
        with in_turn(self.path / _PLAN_LOCK):
            joined = joined_plan(self.plan(), plan) if self.has_plan() else plan
            write_atomic(self.path / _PLAN, encode(joined))

    def _tidy(self) -> None:
        """Make the folder; where it is there, without what killed writers left in it."""
        (self.path / _TRIALS).mkdir(parents=True, exist_ok=True)
        for folder in (self.path, *(self.path / _TRIALS).iterdir()):
            remove_temporaries(folder)

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
        (self.path / "superseded").mkdir(exist_ok=True)
        places = (self.path / "superseded" / f"{name}.{number}" for number in count(1))
        target = next(place for place in places if not place.exists())
        os.rename(self.trial(name).path, target)
        return target


_PLAN: Final = "plan.json"
_PLAN_LOCK: Final = "plan.lock"
_TRIALS: Final = "trials"
_TRIAL: Final = "trial.json"
_RESULT: Final = "result.json"
_STATE: Final = "state.json"
_JOB: Final = "job.json"


_Size = Annotated[int, Meta(ge=1, le=LARGEST)] | None


class _Layout(Struct):
    tensor_model_parallel_size: _Size = None
    pipeline_model_parallel_size: _Size = None
    context_parallel_size: _Size = None
    data_parallel_size: _Size = None


class _Workload(Struct):
    model: dict[str, Any] | None = None
    layout: _Layout | None = None
    seq_length: _Size = None
    micro_batch_size: _Size = None
    global_batch_size: _Size = None
    device: Device | None = None
    recompute: str | None = None


class _Trial(Struct):
    workload: _Workload | None = None
    variables: tuple[str, ...] | None = None


class _Environment(Struct):
    software: dict[str, Any] | None = None
    gpus: tuple[dict[str, Any], ...] | None = None


class _Result(Struct):
    """What is computed with in a result: other keys may be there."""

    trial: _Trial
    environment: _Environment


T = TypeVar("T", bound=Struct)
Converted = TypeVar("Converted")


def _checked(values: object, kind: type[Converted], file: object, key: str = "") -> Converted:
    """`values` as `kind`. key: theirs, if not all of the file; a number may be a string there."""
    try:
        return convert(values, kind, strict=not key)
    except ValidationError as error:
        relation, _, path = str(error).partition(" - at `$")
        where = f"{key}{path.removesuffix('`')}".lstrip(".")
        raise UserError(f"{file}: {where}", None, relation) from None


def encode(value: Struct) -> str:
    """Deterministic JSON of a record: sorted keys, one value a line, no NaN literals."""
    values = _finite(as_dict(value))
    return json.dumps(values, sort_keys=True, indent=1, default=str, allow_nan=False) + "\n"


def plain(value: Struct) -> dict[str, Any]:
    """A record as the JSON object that `encode` writes."""
    found: dict[str, Any] = json.loads(encode(value))
    return found


def decode(cls: type[T], source: Path | str, file: object = "text") -> T:
    """An instance of `cls` from `encode`'s text, or a file of it; UserError where it is none."""
    return read_record(cls, read_json(source, file), _name(source, file))


def decode_result(source: Path | str, file: object = "text") -> TrialResult:
    """A result from `encode`'s text, or from a file of it; UserError where it is half written, of
    another schema, or holds what nobody measures."""
    values, file = read_json(source, file), _name(source, file)
    check_schema(values, SCHEMA_VERSION, file)
    _checked(values, _Result, file)
    loss = _checked(values.pop("loss", ()), tuple[float, ...], file, "loss")
    result = _checked(values, TrialResult, file)
    timed = result.status in (TrialStatus.OK, TrialStatus.UNSTABLE)
    if timed and result.times is not None and not result.times.seconds:
        raise UserError(f"{file}: times.seconds", "[]", "must hold the seconds of a step")
    for one in loss:
        if math.isfinite(one) and abs(one) > LARGEST_FLOAT:
            raise UserError(f"{file}: loss", one, f"is too large; at most {LARGEST_FLOAT:g}")
    try:
        datetime.fromisoformat(result.started_at or "2026-01-31")
    except ValueError:
        wrong = f"{file}: started_at", show(result.started_at)
        raise UserError(*wrong, "must be a time, e.g. 2026-01-31T12:00:00+00:00") from None
    return replace(result, loss=loss)


def check_schema(values: dict[str, Any], known: int, file: object) -> None:
    """UserError where a file is of another schema than the one `known`."""
    version = values.get("schema_version")
    if version != known:
        raise UserError(f"{file}: schema_version", show(version), f"must be {known}")


def _name(source: Path | str, file: object) -> object:
    return source if isinstance(source, Path) else file


def _finite(value: Any) -> Any:
    """`value` with numbers that JSON does not know written as strings."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value
