"""Stub trials as jobs start them: imported on the node, by reference of the pickled task."""

import sys
from pathlib import Path

from harness.execution.launchers.local import Launcher, LocalLauncher, Rendezvous, TorchrunLauncher
from harness.trial.trial import Trial

STUB = Path(__file__).parents[3] / "stub_trial.py"


def stub(_: Trial, rendezvous: Rendezvous | None) -> Launcher:
    """The stub in place of the worker, alone or under torchrun."""
    if rendezvous is None:
        return LocalLauncher((sys.executable, "-I", "-S", str(STUB)))
    return TorchrunLauncher((str(STUB),), rendezvous)
