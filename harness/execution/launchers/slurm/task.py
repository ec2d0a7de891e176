"""What Slurm runs once on every node of a trial: node 0 the trial, the others their ranks."""

import os
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Self

from msgspec import Struct
from msgspec.structs import replace

from harness.execution.execute import Execution, begin, keep, launcher_of, not_run
from harness.execution.launchers.local import Exit, Launcher, Rendezvous, Running, TorchrunLauncher
from harness.execution.signals import Stop, StopSignals
from harness.trial.failures import Failure
from harness.trial.result import TrialStatus, failed_ranks
from harness.trial.store import TrialFolder
from harness.trial.trial import Trial

NOTICE_SECONDS: Final = 30
"""How long before its time limit a job gets SIGUSR2; Slurm may send it a minute earlier."""
_EARLY_SECONDS: Final = NOTICE_SECONDS + 90
_OTHERS_SECONDS: Final = 15.0
_GRACE_SECONDS: Final = 5.0
_SIGNALS_APART_SECONDS: Final = 0.2
_FIRST_PORT: Final = 10000
_NUM_PORTS: Final = 20000  # below the ports that Linux gives to clients

MakeLauncher = Callable[[Trial, Rendezvous | None], Launcher]


def make_launcher(trial: Trial, rendezvous: Rendezvous | None) -> Launcher:
    """The launcher of this machine, or of this node's share."""
    return launcher_of(trial) if rendezvous is None else TorchrunLauncher(rendezvous=rendezvous)


class NodeTask(Struct, frozen=True, kw_only=True):
    """One trial on one node; submitit pickles it. minutes is the job's time limit. A trial that
    Slurm starts anew, preempted or its node lost, begins anew, at most `max_requeues` times."""

    folder: str
    minutes: int
    max_requeues: int
    launcher: MakeLauncher = make_launcher

    def __call__(self) -> None:
        """Run; SystemExit where Slurm ends us, with no result, as Slurm knows why."""
        folder = TrialFolder(Path(self.folder))
        trial = folder.trial()
        if trial is None:
            raise RuntimeError(f"{folder.path} holds no trial.json that can be read")
        rendezvous = rendezvous_of(os.environ)
        launcher = self.launcher(trial, rendezvous)
        notice = Notice(self.minutes)
        with StopSignals() as signals:
            try:
                if rendezvous is not None and rendezvous.node_rank:
                    self._join(launcher, trial, folder)
                else:
                    others = None if rendezvous is None else folder
                    self._run(Watched(launcher, notice, others), trial, folder, signals)
            except Stop as stop:
                raise SystemExit(stop.exit_code) from None

    def _run(
        self, launcher: Launcher, trial: Trial, folder: TrialFolder, signals: StopSignals
    ) -> None:
        """Node 0: everything from the start to result.json; nothing where it is there already."""
        if folder.result() is not None:
            return
        requeues = int(os.environ.get("SLURM_RESTART_COUNT") or 0)
        if requeues > self.max_requeues:
            message = f"was requeued {requeues} times: preempted, or its node was lost"
            keep(folder, not_run(trial, begin(), TrialStatus.FAILED, message))
            return
        Execution(
            folder=folder, trial=trial, launcher=launcher, signals=signals, tick=lambda _: None
        ).run()

    def _join(self, launcher: Launcher, trial: Trial, folder: TrialFolder) -> None:
        """Another node: its ranks, and an exit code by which Slurm ends the job if they fail,
        once node 0 has had the time to conclude by itself."""
        running = launcher.start(trial, folder, trial.environment)
        try:
            while (ended := running.wait(1.0)) is None:
                pass
        except BaseException:
            running.stop(_GRACE_SECONDS)
            raise
        if ended.code != 0:
            time.sleep(_OTHERS_SECONDS)
            raise SystemExit(ended.code or 1)


class Notice:
    """Whether Slurm has told us, by SIGUSR2, that the job is about to end."""

    def __init__(self, minutes: int) -> None:
        self.minutes = minutes
        self.came = False
        self.early = False  # it came so long before the limit that it means preemption
        self._began = time.monotonic()
        # in place of submitit's handler, which requeues
        signal.signal(signal.SIGUSR2, self._receive)

    def _receive(self, *_: Any) -> None:
        self.came = True
        self.early = time.monotonic() - self._began < self.minutes * 60 - _EARLY_SECONDS


class Watched:
    """A launcher, and the trial that it started, which ends by itself, by its parent, or by what
    this node cannot see in it: Slurm's notice, or ranks of `others` (other nodes) that failed."""

    def __init__(self, launcher: Launcher, notice: Notice, others: TrialFolder | None) -> None:
        self._launcher, self._notice, self._others = launcher, notice, others
        self._running: Running
        self._failed_since: float | None = None

    def start(self, trial: Trial, folder: TrialFolder, variables: dict[str, str]) -> Self:
        """Start the trial."""
        self._running = self._launcher.start(trial, folder, variables)
        return self

    def wait(self, seconds: float) -> Exit | None:
        """How it ended, or None after `seconds`."""
        ended = self._running.wait(seconds)
        if ended is not None and ended.code != 0:
            time.sleep(_SIGNALS_APART_SECONDS)  # Slurm signals the ranks and us in any order
        if self._notice.came:
            ended = ended or self._running.stop(_GRACE_SECONDS)
            if self._notice.early:
                raise Stop(signal.SIGUSR2)
            message = f"ended shortly before Slurm's time limit of {self._notice.minutes} min"
            return replace(ended, stated=Failure(TrialStatus.TIMEOUT, message))
        if ended is None and self._others_failed():
            return self._running.stop(_GRACE_SECONDS)
        return ended

    def stop(self, grace_seconds: float) -> Exit:
        """End it."""
        return self._running.stop(grace_seconds)

    def _others_failed(self) -> bool:
        """Whether a rank has said for some time that it failed, while ours wait for it."""
        if self._others is None or not failed_ranks(self._others.rank_results()):
            return False
        now = time.monotonic()
        self._failed_since = self._failed_since or now
        return now - self._failed_since > _OTHERS_SECONDS


def rendezvous_of(variables: Any) -> Rendezvous | None:
    """Where the nodes of this job meet, from SLURM_*; None where there is one node. The host is the
    job's first node, by the address from which srun was started where its name does not resolve.
    The port is the job's own: jobs that share a node have different ones."""
    nnodes = int(variables.get("SLURM_JOB_NUM_NODES") or 1)
    if nnodes == 1:
        return None
    return Rendezvous(
        nnodes=nnodes,
        node_rank=int(variables["SLURM_NODEID"]),
        host=_host(first_node(variables["SLURM_JOB_NODELIST"]), variables),
        port=_FIRST_PORT + int(variables["SLURM_JOB_ID"]) % _NUM_PORTS,
    )


def first_node(nodes: str) -> str:
    """``gpu007`` of ``gpu[007-009,012],big1``."""
    head, bracket, rest = nodes.partition("[")
    if not bracket or "," in head:
        return head.partition(",")[0]
    digits = rest.partition("]")[0].partition(",")[0].partition("-")[0]
    return head + digits + rest.partition("]")[2].partition(",")[0]


def _host(name: str, variables: Any) -> str:
    try:
        socket.getaddrinfo(name, None)
    except OSError:
        return str(variables.get("SLURM_LAUNCH_NODE_IPADDR") or name)
    return name
