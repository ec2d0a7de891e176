"""Trials into Slurm's queue: submitit writes the batch script, one array for all of one shape."""

import secrets
from collections.abc import Sequence
from contextlib import redirect_stderr
from datetime import UTC, datetime
from io import StringIO
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from advisor.base.errors import UserError
from advisor.base.grouping import grouped
from harness.execution.launchers.local import per_node
from harness.execution.launchers.slurm.queue import Queue
from harness.execution.launchers.slurm.task import NOTICE_SECONDS, MakeLauncher, NodeTask
from harness.planner.launcher_options import LauncherOptions, minutes
from harness.trial import files, store
from harness.trial.trial import Device, Trial

_SPARE_MINUTES: Final = 5  # for the start of python and torch on a busy file system


class Shape(Struct, frozen=True, kw_only=True):
    """What one trial asks of the cluster: trials of one shape share an array."""

    nodes: int
    gpus_per_node: int
    cpus_per_task: int
    minutes: int


def shape_of(trial: Trial, options: LauncherOptions) -> Shape:
    """Nodes and devices of a trial: all ranks on one node unless the options say otherwise."""
    ranks = trial.workload.layout.world_size
    nodes = options.nodes or -(-ranks // (options.gpus_per_node or ranks))
    here = per_node(ranks, nodes)
    if options.gpus_per_node and here > options.gpus_per_node:
        relation = f"must be at least {here}, the number of ranks per node"
        raise UserError("launcher.gpus_per_node", options.gpus_per_node, relation)
    on_cpu = trial.workload.device is Device.CPU
    needed = -(-int(trial.measurement.timeout_seconds) // 60) + _SPARE_MINUTES
    return Shape(
        nodes=nodes,
        gpus_per_node=0 if on_cpu else options.gpus_per_node or here,
        cpus_per_task=options.cpus_per_task or (here if on_cpu else 0),
        minutes=minutes(options.time) if options.time else needed,
    )


def parameters(shape: Shape, options: LauncherOptions, name: str) -> dict[str, Any]:
    """submitit's parameters; what it has no name for goes to sbatch as it is."""
    own = {
        key: getattr(options, key)
        for key in ("partition", "account", "qos", "reservation", "constraint", "mem")
        if getattr(options, key)
    }
    for entry in options.sbatch:
        key, has_value, value = entry.partition("=")
        own[key] = value if has_value else True
    given = {"gpus_per_node": shape.gpus_per_node, "cpus_per_task": shape.cpus_per_task}
    return {
        **{key: number for key, number in given.items() if number},
        "job_name": name,
        "nodes": shape.nodes,
        "ntasks_per_node": 1,
        "time": shape.minutes,
        "signal_delay_s": NOTICE_SECONDS,
        "array_parallelism": options.array_parallelism,
        "setup": list(options.setup),
        "srun_args": ["--kill-on-bad-exit=1"],
        "wckey": None,  # submitit's own would have to be known to the accounts
        "additional_parameters": {"requeue" if options.max_requeues else "no-requeue": True, **own},
    }


class Pending(Struct, frozen=True, kw_only=True):
    """A submission whose job ids are not on disk yet: the job's name, and its trials."""

    name: str
    trials: tuple[str, ...]


class Submitter(Struct, frozen=True, kw_only=True):
    """Brings trials of a run into the queue, so that one that is killed on the way loses none and
    leaves none twice: what it was about is on disk before, and the next one cancels it."""

    folder: store.RunFolder
    options: LauncherOptions
    queue: Queue
    launcher: MakeLauncher

    @property
    def path(self) -> Path:
        """Where submitit keeps its scripts, pickles and the jobs' output."""
        return (self.folder.path / "slurm").resolve()

    def recover(self) -> None:
        """Undo a submission that was cut off; UserError where the controller does not answer."""
        file = self.path / _PENDING
        if not file.exists():
            return
        pending = store.decode(Pending, file)
        jobs = self.queue.named(pending.name)
        if jobs is None:
            raise UserError(
                "launcher", "slurm", "the controller does not answer", "try again later"
            )
        for job in jobs:
            self.queue.cancel(job)
        for name in pending.trials:
            if not self.folder.trial(name).has_result():
                self.folder.trial(name).forget_job()
        file.unlink()

    def submit(self, trials: Sequence[Trial]) -> tuple[str, ...]:
        """Ids of the new jobs, one a trial, on disk by then; UserError where sbatch refuses."""
        shapes = grouped((shape_of(trial, self.options), trial) for trial in trials)
        return tuple(job for shape, same in shapes.items() for job in self._submit(shape, same))

    def _submit(self, shape: Shape, trials: Sequence[Trial]) -> list[str]:
        self.path.mkdir(parents=True, exist_ok=True)
        name = f"harness-{secrets.token_hex(4)}"
        pending = Pending(name=name, trials=tuple(trial.name for trial in trials))
        for trial in trials:
            self.folder.trial(trial.name).create(trial)
        files.write_atomic(self.path / _PENDING, store.encode(pending))
        tasks = [
            NodeTask(
                folder=str(self.folder.trial(trial.name).path.resolve()),
                minutes=shape.minutes,
                max_requeues=self.options.max_requeues,
                launcher=self.launcher,
            )
            for trial in trials
        ]
        jobs = self._sbatch(tasks, shape, name)
        now = datetime.now(UTC).isoformat(timespec="seconds")
        for trial, job in zip(trials, jobs, strict=True):
            self.folder.trial(trial.name).write_job(store.SubmittedJob(job=job, submitted_at=now))
        (self.path / _PENDING).unlink()
        return jobs

    def _sbatch(self, node_tasks: list[NodeTask], shape: Shape, name: str) -> list[str]:
        from submitit import SlurmExecutor
        from submitit.core.utils import FailedJobError, FailedSubmissionError

        try:
            executor = SlurmExecutor(self.path, python=self.options.python or None)
            executor.update_parameters(**parameters(shape, self.options, name))
            with redirect_stderr(StringIO()), executor.batch():  # sbatch's words are the error's
                jobs = [executor.submit(task) for task in node_tasks]
        except (FailedJobError, FailedSubmissionError, RuntimeError, OSError) as error:
            said = " ".join(str(error).split())
            raise UserError("launcher", "slurm", f"nothing was submitted: {said}") from None
        return [str(job.job_id) for job in jobs]

    def output(self, job: str) -> tuple[Path, ...]:
        """What the job's first node printed outside of its trial: stderr, stdout."""
        return tuple(self.path / f"{job}_0_log.{kind}" for kind in ("err", "out"))


_PENDING: Final = "submitting.json"
