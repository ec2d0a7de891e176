"""Who has claimed a task, and whether that worker still lives. On the machine of the worker that
asks, a lock file in the run's folder tells at once. Elsewhere a worker counts as dead once its
heartbeat has stood still for `timeout_seconds` of the asker's own clock, in which the storage
answered throughout: no clocks are compared."""

import hashlib
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from msgspec import Struct, convert

from harness.trial.files import Lock, exclusive

CLAIM: Final = "harness:claim"
HEARTBEAT: Final = "harness:heartbeat"
_WORKERS: Final = "workers"
_BEATS_IN_TIME: Final = 8


class Owner(Struct, frozen=True, kw_only=True):
    """A worker as its claims name it. host: hash of its name. kernel: its boot's id;
    empty: not known."""

    worker: str
    host: str
    pid: int
    kernel: str


class Ticket(Struct, frozen=True, kw_only=True):
    """A claim as it is stored. token: unlike that of any other. since: seconds since 1970."""

    owner: Owner
    token: str
    since: float


def others_at_work(folder: Path) -> bool:
    """Whether a worker of this machine has the run's folder open."""
    return any(not _is_free(path) for path in (folder / _WORKERS).glob("*"))


def ticket_of(attributes: Mapping[str, Any]) -> Ticket | None:
    """The claim in a trial's system attributes; None where there is none."""
    stored = attributes.get(CLAIM)
    return None if stored is None else convert(stored, Ticket)


class SweepWorker:
    """This process as a worker of a sweep: it holds a lock file as long as it lives."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / _WORKERS
        self._folder.mkdir(parents=True, exist_ok=True)
        name = uuid.uuid4().hex[:12]
        host = hashlib.sha256(socket.gethostname().encode()).hexdigest()[:12]
        kernel = ""
        with suppress(OSError):
            kernel = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        self.owner = Owner(worker=name, host=host, pid=os.getpid(), kernel=kernel)
        self._lock = Lock(self._folder / name)
        while not self._lock.take():  # another worker looks whether we live
            time.sleep(0.001)

    def ticket(self) -> Ticket:
        """A new claim of ours."""
        return Ticket(owner=self.owner, token=uuid.uuid4().hex, since=time.time())

    def lock_of(self, owner: Owner) -> Path | None:
        """The lock file by which we see whether `owner` lives; None where we cannot."""
        path = self._folder / owner.worker
        same = owner.kernel and owner.kernel == self.owner.kernel
        return path if same and path.exists() else None

    def bury(self) -> None:
        """Remove what workers of this machine left that were killed, once nobody asks for them."""
        for path in self._folder.iterdir():
            if path != self._lock.path and _is_free(path):
                path.unlink(missing_ok=True)

    def close(self) -> None:
        """We are no worker any more."""
        self._lock.path.unlink(missing_ok=True)
        self._lock.close()
        with suppress(OSError):
            self._folder.rmdir()


class HeartbeatWatch:
    """What one worker has seen of the heartbeats of the others."""

    def __init__(
        self,
        worker: SweepWorker,
        timeout_seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._worker, self._timeout, self._clock = worker, timeout_seconds, clock
        self._seen: dict[int, tuple[object, float]] = {}

    def is_dead(self, trial: int, ticket: Ticket | None, heartbeat: object) -> bool:
        """Whether the worker that claimed trial number `trial`, or was about to, is gone."""
        if ticket is not None:
            if ticket.owner == self._worker.owner:
                return False
            lock = self._worker.lock_of(ticket.owner)
            if lock is not None:
                return _is_free(lock)
        now = self._clock()
        before, since = self._seen.setdefault(trial, (heartbeat, now))
        if before != heartbeat:
            self._seen[trial] = (heartbeat, now)
            return False
        return now - since > self._timeout

    def forget(self) -> None:
        """The storage was away: for how long others are silent is counted from now on."""
        self._seen.clear()


class Heart:
    """A thread that calls `beat` with a growing number, often in `timeout_seconds`, while open."""

    def __init__(self, beat: Callable[[int], None], timeout_seconds: float) -> None:
        self._beat, self._pause = beat, timeout_seconds / _BEATS_IN_TIME
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        number = 0
        while not self._stop.wait(self._pause):
            number += 1
            self._beat(number)

    def close(self) -> None:
        """No beat more, unless one is under way."""
        self._stop.set()


def _is_free(path: Path) -> bool:
    """Whether nobody holds the lock file."""
    if not path.exists():
        return True
    with exclusive(path) as free:
        return free
