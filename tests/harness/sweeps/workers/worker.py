"""A worker of a sweep whose trials measure nothing: ``worker URL FOLDER POINTS SECONDS TIMEOUT``.

Storage, claims, results on disk and what befalls them are real. What ends is a line in the file
`measured` next to the folder of runs: ``TRIAL PID``.
"""

import os
import sys
import time
from pathlib import Path

from harness.planner.launcher_options import SweepOptions
from harness.sweeps.history import History, Task
from harness.sweeps.priority import Action, End, Ending, Measure, Wait
from harness.sweeps.space import Space
from harness.sweeps.workers.opening import open_study
from harness.sweeps.workers.study import trial_of
from harness.trial.result import MemoryPeak, StepTimes, TrialResult, TrialStatus
from harness.trial.store import RunFolder
from tests.harness.sweeps.workers.grid import grid


class InOrder:
    """Every point once, in the order of the space."""

    def __init__(self, space: Space) -> None:
        self._points = list(space.planned)

    def next(self, history: History) -> Action:
        left = [Task(point) for point in self._points if point not in history.finished]
        free = next((task for task in left if task not in history.running), None)
        if free is not None:
            return Measure(task=free)
        return Wait() if left else End(why=Ending.EXHAUSTED, words="All are measured.")


def result_of(name: str, number: int = 0) -> TrialResult:
    return TrialResult(
        name=name,
        status=TrialStatus.OK,
        trial={},
        environment={},
        started_at="2026-01-01T00:00:00+00:00",
        wall_seconds=1.0,
        times=StepTimes(seconds=(0.01 + number * 1e-5,), warmup_seconds=(), clock="host"),
        memory=(MemoryPeak(rank=0, stage=0, allocated=1000 + number),),
    )


def measure(folder: RunFolder, space: Space, task: Task, seconds: float) -> TrialResult:
    trial = trial_of(space, task)
    place = folder.trial(trial.name)
    place.create(trial)
    time.sleep(seconds)
    result = result_of(trial.name, list(space.planned).index(task.point))
    place.write_result(result)
    with open(folder.path.parents[1] / "measured", "a") as log:
        log.write(f"{trial.name} {os.getpid()}\n")
    return result


def work(url: str, folder: RunFolder, points: int, seconds: float, timeout: float) -> None:
    space = grid(points)
    options = SweepOptions(storage=url, worker_timeout_seconds=timeout)

    def say(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    with open_study(folder, space, options, "cpu", say=say) as study:
        study.restore()
        policy = InOrder(space)
        while not isinstance(action := study.decide(policy.next), End):
            if isinstance(action, Wait):
                study.wait()
            else:
                study.tell(action, measure(folder, space, action.task, seconds))
        print(len(study.history().finished), flush=True)


if __name__ == "__main__":
    url, folder, points, seconds, timeout = sys.argv[1:]
    work(url, RunFolder(Path(folder)), int(points), float(seconds), float(timeout))
