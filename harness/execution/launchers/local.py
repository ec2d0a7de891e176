"""One trial as a process group of this machine, or as several ranks under torchrun."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, Protocol

from msgspec import Struct
from msgspec.structs import replace

from advisor.base.errors import UserError, nearest_divisors
from advisor.base.grouping import grouped
from harness.execution.launchers.parent_death import TETHER
from harness.trial.failures import Failure
from harness.trial.files import Lock, holders
from harness.trial.store import TrialFolder
from harness.trial.trial import Trial


class Exit(Struct, frozen=True, kw_only=True):
    """How the first process of a trial ended. code: None where a signal ended it. timed_out: we
    did, because the time was over. host_oom: whether the kernel killed processes for memory
    meanwhile; None where that cannot be read. stated: what a scheduler says of the end."""

    code: int | None = None
    signal: int | None = None
    timed_out: bool = False
    host_oom: bool | None = None
    stated: Failure | None = None


class Running(Protocol):
    """A trial that has been started."""

    def wait(self, seconds: float) -> Exit | None:
        """How it ended, or None after `seconds`."""

    def stop(self, grace_seconds: float) -> Exit:
        """Ask all its processes to end; after `grace_seconds` make them. None is left behind."""


class Launcher(Protocol):
    """Starts trials on some machine."""

    def start(self, trial: Trial, folder: TrialFolder, variables: dict[str, str]) -> Running:
        """Start `trial`, whose trial.json is in `folder`; its output goes to log.txt there. Raises
        OSError where it cannot be started at all."""


_PATIENCE_SECONDS: Final = 30.0
WORKER: Final = (sys.executable, "-m", "harness.execution.worker")


class LocalLauncher:
    """Starts `program FOLDER` in a session of its own; `program` is the worker, or a test's."""

    def __init__(self, program: Sequence[str] = WORKER) -> None:
        self._program = tuple(program)

    def start(self, trial: Trial, folder: TrialFolder, variables: dict[str, str]) -> "ProcessGroup":
        """Start the trial's one process."""
        return ProcessGroup([*self._program, str(folder.path.resolve())], folder, variables)


class ProcessGroup:
    """A command and everything it starts; `node` is which of a trial's machines this is."""

    def __init__(
        self, command: Sequence[str], folder: TrialFolder, variables: dict[str, str], node: int = 0
    ) -> None:
        self._oom_kills = oom_kills()
        environment = {**os.environ, **_ALWAYS, **variables}
        lock = Lock(folder.lock)
        try:
            lock.take()
            with open(folder.log_of(node), "wb") as log:
                self._process = subprocess.Popen(
                    list(command),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env=environment,
                    start_new_session=True,
                    pass_fds=(lock.descriptor,),
                )
        finally:
            lock.close()  # the process holds it now, and keeps it should we die

    @property
    def pid(self) -> int:
        """Leader of the group."""
        return self._process.pid

    def wait(self, seconds: float) -> Exit | None:
        """How the command ended, or None after `seconds`; what it left running is ended."""
        try:
            code = self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None
        kill_groups({self.pid}, signal.SIGKILL)
        before, after = self._oom_kills, oom_kills()
        known = None if before is None or after is None else after > before
        return replace(_exit_of(code), host_oom=known)

    def stop(self, grace_seconds: float) -> Exit:
        """SIGTERM to all, SIGKILL after `grace_seconds`; torchrun's ranks have groups of their own,
        so descendants are looked up while their parents live."""
        groups = {self.pid} | group_leaders(descendants(self.pid))
        kill_groups(groups, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(grace_seconds)
        groups |= group_leaders(descendants(self.pid))
        kill_groups(groups, signal.SIGKILL)
        return _exit_of(self._process.wait())


def _exit_of(code: int) -> Exit:
    return Exit(code=code) if code >= 0 else Exit(signal=-code)


def end_left_over(folder: TrialFolder, grace_seconds: float = 2.0) -> None:
    """End what an earlier runner that was killed left running in `folder`, and wait until it has.
    The processes of a trial hold its lock; a runner that dies takes its own hold with it. Raises
    UserError where they do not end (another user's, another host's)."""
    if not folder.lock.exists():
        return
    lock = Lock(folder.lock)
    try:
        began = time.monotonic()
        while not lock.take():
            waited = time.monotonic() - began
            if waited > grace_seconds + _PATIENCE_SECONDS:
                relation = "is still in use by processes of an earlier run that do not end"
                raise UserError("trial", folder.path.name, relation, "end them first")
            pids = set(holders(folder.lock))
            number = signal.SIGKILL if waited > grace_seconds else signal.SIGTERM
            kill_groups(group_leaders(pids.union(*(descendants(pid) for pid in pids))), number)
            time.sleep(0.05)
    finally:
        lock.close()


def kill_groups(groups: set[int], number: signal.Signals) -> None:
    """Send a signal to process groups; those that are gone are passed over, ours is spared."""
    for group in groups - {os.getpgrp(), 0, 1}:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(group, number)


def group_leaders(pids: set[int]) -> set[int]:
    """Groups that the processes belong to."""
    groups = set()
    for pid in pids:
        with suppress(OSError):
            groups.add(os.getpgid(pid))
    return groups


def descendants(pid: int) -> set[int]:
    """Children of a process, their children, and so on; empty without /proc."""
    children: dict[int | None, list[int]] = {}
    with suppress(OSError):
        processes = (entry for entry in os.listdir("/proc") if entry.isdigit())
        children = grouped((_parent(entry), int(entry)) for entry in processes)
    found: set[int] = set()
    waiting = list(children.get(pid, ()))
    while waiting:
        child = waiting.pop()
        found.add(child)
        waiting += children.get(child, ())
    return found


def _parent(entry: str) -> int | None:
    try:
        # "pid (name) state ppid …": the name may hold spaces and brackets
        return int(Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()[1])
    except (OSError, ValueError, IndexError):
        return None


def oom_kills() -> int | None:
    """Processes that the kernel has killed for memory so far, here or in our container."""
    found = None
    for path in ("/proc/vmstat", "/sys/fs/cgroup/memory.events"):
        with suppress(OSError, ValueError):
            for line in Path(path).read_text().splitlines():
                if line.startswith("oom_kill "):
                    found = (found or 0) + int(line.split()[1])
    return found


_ALWAYS: Final = {TETHER: "1", "PYTHONUNBUFFERED": "1", "PYTHONFAULTHANDLER": "1"}


_WORKER: Final = ("-m", "harness.execution.worker")
_TETHER: Final = "harness.execution.launchers.parent_death"
_TORCHRUN: Final = (sys.executable, "-m", _TETHER, sys.executable, "-m", "torch.distributed.run")


class Rendezvous(Struct, frozen=True, kw_only=True):
    """Which of several machines this is, and where node 0 listens."""

    nnodes: int
    node_rank: int
    host: str
    port: int


class TorchrunLauncher:
    """Starts `program` once a rank, the worker or a test's; a rank that fails takes the others
    with it. With a `rendezvous` it starts this machine's share of the ranks."""

    def __init__(
        self, program: Sequence[str] = _WORKER, rendezvous: Rendezvous | None = None
    ) -> None:
        self._program, self._rendezvous = tuple(program), rendezvous

    def start(self, trial: Trial, folder: TrialFolder, variables: dict[str, str]) -> ProcessGroup:
        """Start torchrun, tied to us as the ranks are tied to it."""
        words = command(trial, folder, self._program, self._rendezvous)
        node = 0 if self._rendezvous is None else self._rendezvous.node_rank
        return ProcessGroup(words, folder, variables, node)


def command(
    trial: Trial,
    folder: TrialFolder,
    program: Sequence[str] = _WORKER,
    rendezvous: Rendezvous | None = None,
) -> list[str]:
    """The command line: one rank a device of the layout, no restarts. Alone, a free port; over
    several machines, ranks in the order of the nodes."""
    ranks = trial.workload.layout.world_size
    place = ["--standalone", f"--nproc-per-node={ranks}"]
    if rendezvous is not None:
        place = [
            f"--nnodes={rendezvous.nnodes}",
            f"--node-rank={rendezvous.node_rank}",
            f"--nproc-per-node={per_node(ranks, rendezvous.nnodes)}",
            "--rdzv-backend=static",
            f"--master-addr={rendezvous.host}",
            f"--master-port={rendezvous.port}",
        ]
    return [*_TORCHRUN, *place, "--max-restarts=0", *program, str(folder.path.resolve())]


def per_node(ranks: int, nnodes: int) -> int:
    """Ranks of each machine; UserError where they do not come out even."""
    if ranks % nnodes:
        relation = f"must divide the layout's {ranks} ranks"
        raise UserError("nodes", nnodes, relation, f"nearest: {nearest_divisors(ranks, nnodes)}")
    return ranks // nnodes
