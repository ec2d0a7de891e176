"""What the workers of a sweep have claimed, what came of it, and what this one does next. A claim
is one trial of an Optuna study, made whole in one write. Workers claim in turn, and a claim counts
only if no trial was made since its worker looked: where a turn is lost with its connection, the
later of two claims withdraws. Results are on disk before they are told; a trial whose worker has
died is told from there, else it ends as failed (status `lost`), and its task is claimed anew."""

import time
from collections.abc import Callable
from datetime import datetime
from functools import partial
from typing import Final, Self, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from harness.sweeps.history import History, Outcome, Task, outcome_of
from harness.sweeps.priority import Action, Ask, End, Measure, Wait
from harness.sweeps.space import Space
from harness.sweeps.workers.claims import Heart, HeartbeatWatch, SweepWorker, Ticket
from harness.sweeps.workers.ledger import INTERRUPTED, LOST, WITHDRAWN, Entry, Ledger, Told, history
from harness.sweeps.workers.storages import Storage, is_lost
from harness.trial.result import TrialResult, TrialStatus
from harness.trial.store import RunFolder, TrialFolder
from harness.trial.trial import Trial, same_question


def trial_of(space: Space, task: Task) -> Trial:
    """The trial that a task is."""
    return replace(space.planned[task.point].trial, repeat=task.repeat)


def result_of(folder: RunFolder, space: Space, task: Task) -> TrialResult | None:
    """Its result, where there is one that answers what is asked now."""
    trial = trial_of(space, task)
    return _answer(folder.trial(trial.name), trial)


def results_in(folder: RunFolder, space: Space) -> dict[Task, TrialResult]:
    """Those of all tasks of the space that have one, the earliest first."""
    place = {point: number for number, point in enumerate(space.planned)}
    found = {}
    for one in folder.trials():
        trial = one.trial()
        point = None if trial is None else space.point_of(trial.workload)
        if trial is not None and point is not None:
            task = Task(point, trial.repeat)
            if (result := _answer(one, trial_of(space, task))) is not None:
                found[task] = result
    return dict(sorted(found.items(), key=lambda one: (one[1].started_at, place[one[0].point])))


def _answer(folder: TrialFolder, asked: Trial) -> TrialResult | None:
    earlier, result = folder.trial(), folder.result()
    if earlier is None or result is None or not same_question(asked, earlier, result):
        return None
    return result


T = TypeVar("T")
_FIRST_WAIT_SECONDS: Final = 0.05
_WAIT_SECONDS: Final = 2.0


class Claim(Struct, frozen=True, kw_only=True):
    """What this worker, and no other, runs now. trial: Optuna's id of it."""

    measure: Measure
    trial: int

    @property
    def task(self) -> Task:
        """The point and its repeat."""
        return self.measure.task


class Study:
    """The study of `space` in `storage` as one worker of a sweep has it. retry: results of these
    statuses that were told before it came do not count. say: is told of a silent storage."""

    def __init__(
        self,
        storage: Storage,
        ledger: Ledger,
        space: Space,
        folder: RunFolder,
        timeout_seconds: float,
        retry: frozenset[TrialStatus] = frozenset(),
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._storage, self._ledger, self._say = storage, ledger, say
        self._space, self._folder, self._retry = space, folder, retry
        self._open: dict[int, Claim] = {}
        self._pause = _FIRST_WAIT_SECONDS
        self._worker = SweepWorker(folder.path)
        self._watch = HeartbeatWatch(self._worker, timeout_seconds)
        _, entries = self._patiently(ledger.entries)
        self._ignored = frozenset(
            one.number for one in entries if one.told and one.told.outcome.status in retry
        )
        self._heart = Heart(self._beat, timeout_seconds)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def restore(self) -> dict[Task, TrialResult]:
        """Results in the folder, of which the study is told what it does not know."""
        return self._patiently(self._restore)

    def decide(self, choose: Callable[[History], Action]) -> Claim | Wait | End:
        """What this worker does now: what `choose`, in its turn, names is claimed."""
        action = None
        while action is None:
            action = self._patiently(partial(self._decide, choose, self._worker.ticket()))
        if isinstance(action, Claim):
            self._pause = _FIRST_WAIT_SECONDS
        return action

    def tell(self, claim: Claim, result: TrialResult) -> None:
        """What came of it, once, however often the storage goes away meanwhile."""
        now = time.time()
        told = Told(outcome=outcome_of(result), began=now - result.wall_seconds, ended=now)
        self._patiently(lambda: self._tell(claim, told))
        del self._open[claim.trial]

    def history(self) -> History:
        """All that has happened, whichever worker did it."""
        _, entries = self._patiently(self._ledger.entries)
        return history(entries, self._ignored)

    def wait(self) -> None:
        """Sleep until it is worth asking again."""
        time.sleep(self._pause)
        self._pause = min(2 * self._pause, _WAIT_SECONDS)

    def close(self) -> None:
        """Give back what is claimed and not told; where the storage is silent, others find out."""
        self._heart.close()
        try:
            for claim in self._open.values():
                self._conclude(claim.trial, claim.task, INTERRUPTED)
        except Exception as error:
            if not is_lost(error):
                raise
        finally:
            self._worker.close()
            self._storage.forget_connections()

    def _restore(self) -> dict[Task, TrialResult]:
        with self._storage.turn():
            _, known = self._look()
            self._worker.bury()
            found = {
                task: result
                for task, result in results_in(self._folder, self._space).items()
                if result.status not in self._retry
            }
            for task, result in found.items():
                self._add(task, _told(result), known)
            return found

    def _decide(
        self, choose: Callable[[History], Action], ticket: Ticket
    ) -> Claim | Wait | End | None:
        """None where another worker has made a trial since we looked."""
        with self._storage.turn():
            number, known = self._look()
            action = choose(known)
            if isinstance(action, Ask):
                claim = self._asked(known, ticket, number)
                if claim is not None:
                    return claim
                number, action = number + 1, action.otherwise
            if not isinstance(action, Measure):
                return action
            return self._claimed(action, number, *self._ledger.claim(action.task, ticket))

    def _claimed(self, measure: Measure, seen: int, trial: int, number: int) -> Claim | None:
        """The claim, if its trial is the next after the `seen` ones."""
        if number != seen:
            self._ledger.give_up(trial, WITHDRAWN)
            return None
        self._open[trial] = Claim(measure=measure, trial=trial)
        return self._open[trial]

    def _asked(self, known: History, ticket: Ticket, seen: int) -> Claim | None:
        """The point that Optuna's sampler names; None where it is not to be run now."""
        trial, number, task = self._ledger.ask()
        skip = self._space.planned[task.point].skip
        if task.point in known.finished:
            self._ledger.end(trial, task, next(iter(known.finished[task.point].values())))
        elif skip:
            skipped = Outcome(name=task.point.label, status=TrialStatus.SKIPPED, reason=skip)
            self._ledger.end(trial, task, skipped)
        elif any(one.point == task.point for one in known.running):
            self._ledger.give_up(trial, WITHDRAWN)
        else:
            self._ledger.sign(trial, task, ticket)
            return self._claimed(Measure(task=task), seen, trial, number)
        return None

    def _tell(self, claim: Claim, told: Told) -> None:
        with self._storage.turn():
            if self._finished(claim.trial, claim.task, told) or self._ledger.was_told(claim.trial):
                return
            # we counted as dead, and the trial was given up
            _, known = self._look()
            self._add(claim.task, told, known)

    def _add(self, task: Task, told: Told, known: History) -> None:
        """Tell of a task that nobody has told of, and nobody is at."""
        if task.repeat not in known.finished.get(task.point, {}) and task not in known.running:
            self._ledger.add(task, told)

    def _finished(self, trial: int, task: Task, told: Told) -> bool:
        """Whether the trial was still running, and now has its result."""
        from optuna.exceptions import UpdateFinishedTrialError

        try:
            self._ledger.finish(trial, task, told)
        except UpdateFinishedTrialError:
            return False
        return True

    def _look(self) -> tuple[int, History]:
        """How many trials there are, and what they say once those of dead workers have ended."""
        count, entries = self._ledger.entries()
        dead = [one for one in entries if one.running and self._is_orphan(one)]
        for one in dead:
            self._conclude(one.id, one.task, LOST, one.told)
        if dead:
            count, entries = self._ledger.entries()
        return count, history(entries, self._ignored)

    def _is_orphan(self, entry: Entry) -> bool:
        """Whether nobody works at a running trial: a dead worker's, or ours and never heard of."""
        if entry.ticket is not None and entry.ticket.owner == self._worker.owner:
            return entry.id not in self._open
        return self._watch.is_dead(entry.number, entry.ticket, entry.heartbeat)

    def _conclude(self, trial: int, task: Task, status: str, told: Told | None = None) -> None:
        """End a trial that nobody works at: with its result, if one was told or is on disk."""
        result = None if told else result_of(self._folder, self._space, task)
        if result is not None and result.status not in self._retry:
            told = _told(result)
        if told is None:
            self._ledger.give_up(trial, status)
        else:
            self._finished(trial, task, told)

    def _beat(self, number: int) -> None:
        for trial in list(self._open):
            try:
                self._ledger.beat(trial, number)
            except Exception:  # the worker itself meets it, and waits
                self._watch.forget()

    def _patiently(self, act: Callable[[], T]) -> T:
        return self._storage.patiently(act, self._say, self._watch.forget)


def _told(result: TrialResult) -> Told:
    """A result on disk, with when it was measured."""
    began = datetime.fromisoformat(result.started_at).timestamp()
    return Told(outcome=outcome_of(result), began=began, ended=began + result.wall_seconds)
