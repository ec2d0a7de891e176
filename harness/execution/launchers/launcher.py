"""How a trial's processes are started and watched; local, torchrun, Slurm."""

from typing import Protocol

from msgspec import Struct
from msgspec.structs import replace

from harness.trial.failures import Failure
from harness.trial.store import TrialFolder
from harness.trial.trial import Trial


class Exit(Struct, frozen=True, kw_only=True):
    """How the first process of a trial ended.

    code: None where a signal ended it. stopped: we asked for the end; timed_out: because the time
    was over. host_oom: the kernel's count of processes killed for memory rose meanwhile; None
    where it cannot be read. told: what a scheduler says of the end, which we cannot see.
    """

    code: int | None = None
    signal: int | None = None
    stopped: bool = False
    timed_out: bool = False
    host_oom: bool | None = None
    told: Failure | None = None

    def after_timeout(self) -> "Exit":
        """The same end, because the time was over."""
        return replace(self, stopped=True, timed_out=True)


class Running(Protocol):
    """A trial that has been started."""

    def wait(self, seconds: float) -> Exit | None:
        """How it ended, or None after `seconds`."""

    def stop(self, grace_seconds: float) -> Exit:
        """Ask all its processes to end; after `grace_seconds` make them. None is left behind."""


class Launcher(Protocol):
    """Starts trials on some machine."""

    def start(self, trial: Trial, folder: TrialFolder, variables: dict[str, str]) -> Running:
        """Start `trial`, whose trial.json is in `folder`; its output goes to log.txt there.

        Raises OSError where it cannot be started at all.
        """
