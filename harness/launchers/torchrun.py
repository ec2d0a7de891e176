"""One trial as several ranks of this machine under torchrun."""

import sys
from collections.abc import Sequence
from typing import Final

from harness.launchers.local import ProcessGroup
from harness.store import TrialFolder
from harness.trial import Trial

_WORKER: Final = ("-m", "harness.worker")
_TETHERED: Final = (sys.executable, "-m", "harness.launchers.tether", sys.executable)


class TorchrunLauncher:
    """Starts `program` once a rank, the worker or a test's; a rank that fails takes the others
    with it."""

    def __init__(self, program: Sequence[str] = _WORKER) -> None:
        self._program = tuple(program)

    def start(self, trial: Trial, folder: TrialFolder, variables: dict[str, str]) -> ProcessGroup:
        """Start torchrun, tied to us as the ranks are tied to it."""
        return ProcessGroup(command(trial, folder, self._program), folder, variables)


def command(trial: Trial, folder: TrialFolder, program: Sequence[str] = _WORKER) -> list[str]:
    """The command line: one rank a device of the layout, no restarts, a free port."""
    ranks = trial.workload.layout.world_size
    return [
        *_TETHERED, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}",
        "--max-restarts=0", *program, str(folder.path.resolve()),
    ]  # fmt: skip
