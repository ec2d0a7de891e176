"""Runs ONE trial in a fresh process and writes one result. ``python -m harness.execution.worker
FOLDER``.

Exit code 0: the trial was measured, or is one that the backend does not run. 1: it failed, and the
result says how; under torchrun the other ranks are then stopped. Whatever ends the process before
it can write (a signal, a full disk) is for the parent to judge (harness.execution.execute)."""

import faulthandler
import importlib
import math
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any, Final, TypeVar, cast

from msgspec import Struct
from msgspec.structs import replace

from advisor.base.fields import split_key_values
from harness.backends.building import factory
from harness.execution.launchers.local import descendants, group_leaders, kill_groups
from harness.execution.launchers.parent_death import die_with_parent
from harness.measure.training_step import Measured, Recorder, StepFactory, TrainingStep
from harness.trial import failures, store
from harness.trial.result import DONE, Evidence, Phase, TrialResult, TrialStatus
from harness.trial.trial import Backend, Device, MeasurementPlan, TrainingCommand, Trial

Answer = TypeVar("Answer")


class Tools(Struct, frozen=True, kw_only=True):
    """What a worker runs with; torch comes in through these alone."""

    build: Callable[[Backend], StepFactory]
    measure: Callable[[TrainingStep, MeasurementPlan, Device, float | None], Measured]
    fingerprint: Callable[..., dict[str, Any]]


def tools() -> Tools:
    """The real ones."""
    session = importlib.import_module("harness.measure.session")
    environment = importlib.import_module("harness.measure.fingerprint")
    return Tools(build=factory, measure=session.measure, fingerprint=environment.fingerprint)


class PhaseWatch:
    """Where the trial is now: kept for evidence, and told to the parent."""

    def __init__(self, folder: store.TrialFolder, rank: int) -> None:
        self.current = Phase.START
        self.step = 0
        self._state = store.StateWriter(folder) if rank == 0 else None
        self.phase(Phase.START)

    def phase(self, phase: Phase) -> None:
        """`phase` begins now."""
        self.current = phase
        if self._state is not None:
            self._state.write(phase, self.step)


class WatchedStep:
    """A training step that tells where it is, and ends at the first loss that is no number."""

    def __init__(self, step: TrainingStep, watch: PhaseWatch) -> None:
        self._step, self._watch = step, watch

    def run(self, recorder: Recorder) -> float:
        """One step of the backend; NonFiniteLossError where its loss is NaN or infinite."""
        self._watch.step += 1
        loss = self._step.run(_Both(self._watch, recorder))
        if not math.isfinite(loss):
            raise failures.NonFiniteLossError(self._watch.step, loss)
        return loss

    def __getattr__(self, name: str) -> Any:
        """All else is the step's own."""
        return getattr(self._step, name)


class _Both:
    """Tells the parent, then the measurement, which so does not time the telling."""

    def __init__(self, watch: PhaseWatch, recorder: Recorder) -> None:
        self._watch, self._recorder = watch, recorder

    def phase(self, phase: Phase) -> None:
        self._watch.phase(phase)
        self._recorder.phase(phase)

    def replay(self, begins: bool) -> None:
        """The measurement's business alone: the parent is not told of every layer."""
        self._recorder.replay(begins)


class Worker:
    """One rank of one trial."""

    def __init__(self, folder: store.TrialFolder, trial: Trial, rank: int, world_size: int) -> None:
        self._trial, self._rank = trial, rank
        self._single = world_size == 1
        self._watch = PhaseWatch(folder, rank)
        self._reservation = folder.reserve(None if self._single else rank)
        self._started_at = datetime.now(UTC).isoformat(timespec="seconds")
        self._clock = time.monotonic()
        self._environment: dict[str, Any] = {}

    def run(self, make_tools: Callable[[], Tools]) -> TrialResult:
        """Build, measure and write; every failure becomes a result."""
        try:
            result = self._measure(make_tools())
        except Exception as error:
            traceback.print_exc()
            result = self._failed(error)
        self._write(result)
        return result

    def _measure(self, given: Tools) -> TrialResult:
        trial = self._trial
        device = trial.workload.device
        self._environment = given.fingerprint(device)
        self._watch.phase(Phase.BUILD)
        own = given.build(trial.workload.backend)(trial.workload, trial.measurement.seed)
        step = cast(TrainingStep, WatchedStep(own, self._watch))
        try:
            self._watch.phase(Phase.WARMUP)
            measured = given.measure(step, trial.measurement, device, trial.limit_seconds)
            self._watch.phase(Phase.REPORT)
            saved = _if_possible(step.saved_bytes_per_layer)
            return replace(
                self._result(_status(measured)),
                times=measured.times,
                memory=tuple(replace(one, saved_bytes_per_layer=saved) for one in measured.memory),
                timeline=measured.timeline,
                phases=measured.phases,
                flops=_if_possible(step.flops),
                loss=measured.loss,
                stages=measured.stages,
                load=measured.load,
                concerns=measured.concerns,
                evidence=self._pruned(measured) if measured.pruned else None,
            )
        finally:
            _if_possible(step.close)

    def _result(self, status: TrialStatus) -> TrialResult:
        return TrialResult(
            name=self._trial.name,
            status=status,
            trial=store.plain(self._trial),
            environment=self._environment,
            started_at=self._started_at,
            wall_seconds=time.monotonic() - self._clock,
        )

    def _pruned(self, measured: Measured) -> Evidence:
        assert measured.times is not None
        seconds = measured.times.seconds
        message = (
            f"pruned after {len(seconds)} steps: the median step time of {median(seconds):.4g} s "
            f"is clearly above the limit of {self._trial.limit_seconds:.4g} s"
        )
        return Evidence(phase=Phase.TRAINING, message=message)

    def _failed(self, error: BaseException) -> TrialResult:
        found, phase = failures.of_exception(error), self._watch.current
        evidence = Evidence(
            phase=phase, message=found.message, rank=self._rank, over_bytes=found.over_bytes
        )
        return replace(self._result(found.status), evidence=evidence)

    def _write(self, result: TrialResult) -> None:
        """Into the reserved space; without its timeline where the rest of the disk is full."""
        with self._reservation as reservation:
            try:
                reservation.commit(store.encode(result))
            except OSError as error:
                if not failures.is_disk_full(error):
                    raise
                reservation.commit(store.encode(replace(result, timeline=())))


def _status(measured: Measured) -> TrialStatus:
    if measured.pruned:
        return TrialStatus.PRUNED
    unstable = any(concern.fatal for concern in measured.concerns)
    return TrialStatus.UNSTABLE if unstable else TrialStatus.OK


def _if_possible(act: Callable[[], Answer]) -> Answer | None:
    """What `act` gives; None, with the reason in the log, where it fails."""
    try:
        return act()
    except Exception:
        traceback.print_exc()
        return None


def prepare_process() -> None:
    """Die with our parent; on SIGTERM write where every thread stands, then end."""
    die_with_parent()
    faulthandler.enable()
    faulthandler.register(signal.SIGTERM, all_threads=True, chain=True)


def main(argv: Sequence[str], make_tools: Callable[[], Tools] = tools) -> int:
    """Run the trial of folder `argv[0]` as rank RANK of WORLD_SIZE."""
    folder = store.TrialFolder(Path(argv[0]))
    trial = folder.trial()
    if trial is None:
        print(f"worker: {folder.path} holds no trial.json that can be read", file=sys.stderr)
        return 2
    if trial.command is not None:
        return supervise(trial.command, trial.measurement, folder)
    rank, world_size = (int(os.environ.get(k, d)) for k, d in (("RANK", 0), ("WORLD_SIZE", 1)))
    return 0 if Worker(folder, trial, rank, world_size).run(make_tools).status in DONE else 1


SHELL: Final = "/bin/sh"
FOLDER: Final = "HARNESS_TRIAL_FOLDER"
"""Tells the command where its trial's files are: a place for its own output."""


def supervise(command: TrainingCommand, plan: MeasurementPlan, folder: store.TrialFolder) -> int:
    """Run the command to its end; its exit code, or our own end by the signal that ended it.
    SIGTERM reaches the command's processes as it reaches us, and they may take their time. When the
    harness itself dies, all are killed, ranks in sessions of their own (torchrun's) included."""
    faulthandler.unregister(signal.SIGTERM)
    signal.signal(signal.SIGTERM, lambda *_: None)
    signal.signal(signal.SIGHUP, lambda *_: _end_all())
    die_with_parent(signal.SIGHUP)
    line = command.shell_line(plan)
    print(f"+ {line}", flush=True)
    # what the user has set stands
    needed = split_key_values(command.variables)
    environment = {**needed, **os.environ, FOLDER: str(folder.path.resolve())}
    # close_fds=False: the lock of the trial stays held as long as one of its processes lives
    child = subprocess.Popen([SHELL, "-c", line], env=environment, close_fds=False)
    code = child.wait()
    if code < 0:  # end by the same signal: whoever waits for us sees what became of the command
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    return code


def _end_all() -> None:
    members = descendants(os.getpid())
    kill_groups(group_leaders(members), signal.SIGKILL)
    for pid in members:  # those of our own group
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    os._exit(128 + signal.SIGHUP)


if __name__ == "__main__":
    prepare_process()
    sys.exit(main(sys.argv[1:]))
