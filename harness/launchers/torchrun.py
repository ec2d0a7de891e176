"""One trial as several ranks of this machine under torchrun."""

import sys
from typing import Final

from harness.launchers.local import ProcessGroup
from harness.store import TrialFolder
from harness.trial import Trial

_TETHERED: Final = (sys.executable, "-m", "harness.launchers.tether", sys.executable)


class TorchrunLauncher:
    """Starts the worker once a rank; a rank that fails takes the others with it."""

    def start(self, trial: Trial, folder: TrialFolder, variables: dict[str, str]) -> ProcessGroup:
        """Start torchrun, tied to us as the ranks are tied to it."""
        return ProcessGroup(command(trial, folder), folder, variables)


def command(trial: Trial, folder: TrialFolder) -> list[str]:
    """The command line: one rank a device of the layout, no restarts, a free port."""
    ranks = trial.workload.layout.world_size
    return [
        *_TETHERED, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}",
        "--max-restarts=0", "-m", "harness.worker", str(folder.path.resolve()),
    ]  # fmt: skip
