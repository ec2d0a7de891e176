"""Runs the command of a trial under a shell, and sees to it that nothing of it is left behind."""

import faulthandler
import os
import signal
import subprocess
from contextlib import suppress
from typing import Final

from advisor.base.key_value import split_key_values
from harness.execution.launchers.local import descendants, group_leaders, kill_groups
from harness.execution.launchers.parent_death import die_with_parent
from harness.trial.store import TrialFolder
from harness.trial.trial import MeasurementPlan, TrainingCommand

SHELL: Final = "/bin/sh"
FOLDER: Final = "HARNESS_TRIAL_FOLDER"
"""Tells the command where its trial's files are: a place for its own output."""


def supervise(command: TrainingCommand, plan: MeasurementPlan, folder: TrialFolder) -> int:
    """Run the command to its end; its exit code, or our own end by the signal that ended it.

    SIGTERM reaches the command's processes from where it reaches us, and they may take their time:
    we wait. When the harness itself dies, all of them are killed, ranks in sessions of their own
    (torchrun's) included.
    """
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
