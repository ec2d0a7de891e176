"""The cluster of the session, and runners that submit stub trials to it."""

import os
from collections.abc import Callable, Iterator
from io import StringIO
from pathlib import Path

import pytest
from msgspec.structs import replace

from harness.execution.launchers.slurm.runner import SlurmRunner
from harness.execution.progress import Progress
from harness.planner.launcher_options import LauncherKind, LauncherOptions
from harness.trial.store import RunFolder
from harness.trial.trial import RunPlan
from tests.harness.execution.launchers.slurm.cluster import Cluster, missing
from tests.harness.execution.launchers.slurm.on_node import stub

ROOT = Path(__file__).parents[5]
OPTIONS = LauncherOptions(kind=LauncherKind.SLURM, poll_seconds=0.2)


@pytest.fixture(scope="session")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Slurm, started once; skipped where it is not installed, which CI must have."""
    lacking = missing()
    if lacking:
        reason = f"Slurm is not installed ({', '.join(lacking)}): apt install slurm-wlm munge"
        assert not os.environ.get("CI"), reason
        pytest.skip(reason)
    if os.geteuid() != 0:
        assert not os.environ.get("CI"), "Slurm's daemons are started as root"
        pytest.skip("Slurm's daemons are started as root")
    found = Cluster(tmp_path_factory.mktemp("slurm"))
    try:
        found.start()
        yield found
    finally:
        found.stop()


@pytest.fixture
def cluster(slurm: Cluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """The cluster, with the environment in which Slurm's commands and jobs use it and this tree."""
    for name, value in slurm.variables.items():
        monkeypatch.setenv(name, value)
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    monkeypatch.setenv("PYTHONPATH", path)
    yield slurm
    slurm.ask("scancel", "--user=root", "--signal=KILL")
    slurm.ask("scancel", "--user=root")


@pytest.fixture
def make_slurm_runner(tmp_path: Path, faults: object) -> Callable[..., SlurmRunner]:
    """A runner of stub trials on the cluster, in a folder that is the same for a test."""

    def make(plan: RunPlan, stream: StringIO | None = None, **options: object) -> SlurmRunner:
        runner = SlurmRunner(
            folder=RunFolder(tmp_path / "run"),
            plan=plan,
            progress=Progress(sum(1 for _ in plan.trials()), stream or StringIO()),
            on_node=stub,
        )
        own = {key: options.pop(key) for key in ("retry", "on_node", "queue") if key in options}
        return replace(runner, options=replace(OPTIONS, **options), **own)

    return make
