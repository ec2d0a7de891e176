"""The runner that ``launcher=`` means."""

from collections.abc import Callable
from typing import Any

from advisor.base.errors import require
from harness.execution.launchers.launcher import Launcher
from harness.execution.launchers.torchrun import Rendezvous, TorchrunLauncher
from harness.execution.progress import Progress
from harness.execution.runner import Runner
from harness.planner.launcher_options import LauncherKind, LauncherOptions
from harness.trial.result import TrialStatus
from harness.trial.run_plan import RunPlan
from harness.trial.store import RunFolder
from harness.trial.trial import Trial


def make_runner(
    options: LauncherOptions,
    folder: RunFolder,
    plan: RunPlan,
    progress: Progress,
    retry: frozenset[TrialStatus] = frozenset(),
    mine: frozenset[str] | None = None,
) -> Runner:
    """A runner of `plan`; what it needs beyond the standard library is imported only now.

    UserError where that is not installed.
    """
    given: dict[str, Any] = {
        "folder": folder,
        "plan": plan,
        "progress": progress,
        "retry": retry,
        "mine": mine,
    }
    if options.kind is LauncherKind.SLURM:
        require("submitit", "launcher=slurm", "harness,slurm")
        from harness.execution.launchers.slurm.runner import SlurmRunner

        return SlurmRunner(options=options, **given)
    if options.kind is LauncherKind.TORCHRUN:
        from harness.execution.launchers.follow import Follower

        launcher = _torchrun(options)
        if options.node_rank:
            return Follower(launcher=launcher, node_rank=options.node_rank, **given)
        return Runner(launcher=launcher, **given)
    return Runner(**given)


def _torchrun(options: LauncherOptions) -> Callable[[Trial], Launcher]:
    if options.nnodes == 1:
        return lambda _: TorchrunLauncher()
    host, port = options.endpoint()
    place = Rendezvous(nnodes=options.nnodes, node_rank=options.node_rank, host=host, port=port)
    return lambda _: TorchrunLauncher(rendezvous=place)
