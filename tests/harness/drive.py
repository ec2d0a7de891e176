"""`harness` with stub trials, as a process of its own that a test can kill."""

import sys
from functools import partial
from pathlib import Path

import harness.execution.launch
from harness.cli.main import main
from harness.execution.launchers.local import LocalLauncher
from harness.execution.runner import Runner

STUB = (sys.executable, "-I", "-S", str(Path(__file__).with_name("stub_trial.py")))
stubbed = partial(Runner, launcher=lambda _: LocalLauncher(STUB), grace_seconds=0.3)

if __name__ == "__main__":
    setattr(harness.execution.launch, "Runner", stubbed)  # noqa: B010 (a partial is no type)
    sys.exit(main())
