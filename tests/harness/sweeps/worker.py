"""A worker of a sweep whose trials measure nothing: ``worker.py URL RUNS NAME POINTS MILLISECONDS``.

Storage, claims, results on disk and what kills them are real. Every measurement is one line of
RUNS/measured, written at its end.
"""

import os
import sys
import time
from pathlib import Path

from harness.planner.sweep_options import SweepOptions
from harness.sweeps.disk import trial_of
from harness.sweeps.history import History, Task
from harness.sweeps.opening import open_study
from harness.sweeps.policy import Action, End, Ending, Measure, Wait
from harness.sweeps.space import Space
from harness.sweeps.study import Claim
from harness.trial.codec import decode_result, encode
from harness.trial.result import MemoryPeak, StepTimes, TrialResult, TrialStatus
from harness.trial.store import RunFolder
from tests.harness.sweeps.grid import grid


class InOrder:
    """Every point once, in the order of the space."""

    def __init__(self, space: Space) -> None:
        self._tasks = [Task(point) for point in space.planned]

    def next(self, history: History) -> Action:
        done = {Task(point, 0) for point in history.finished}
        left = [task for task in self._tasks if task not in done]
        free = [task for task in left if task not in history.running]
        if free:
            return Measure(task=free[0])
        return Wait() if left else End(why=Ending.EXHAUSTED, words="All are measured.")


def measure(folder: RunFolder, space: Space, claim: Claim, seconds: float) -> TrialResult:
    trial = trial_of(space, claim.task)
    time.sleep(seconds)
    number = list(space.planned).index(claim.task.point)
    result = TrialResult(
        name=trial.name,
        status=TrialStatus.OK,
        trial={},
        environment={},
        started_at="2026-01-01T00:00:00+00:00",
        wall_seconds=seconds,
        times=StepTimes(seconds=(0.01 + number * 1e-5,), warmup_seconds=(), clock="host"),
        memory=(MemoryPeak(rank=0, stage=0, allocated=1000 + number),),
    )
    where = folder.trial(trial.name)
    where.create(trial)
    where.write_result(result)
    with open(folder.path.parent.parent / "measured", "a") as log:
        log.write(f"{trial.name} {os.getpid()}\n")
    return result


def main(url: str, runs: str, points: int, seconds: float, timeout: float) -> None:
    space = grid(points)
    folder = RunFolder(Path(runs) / "x")
    options = SweepOptions(storage="" if url == "journal" else url, worker_timeout_seconds=timeout)
    say = lambda text: print(text, file=sys.stderr, flush=True)
    with open_study(folder, space, options, "cpu", say=say) as study:
        print("open", flush=True)
        study.restore()
        policy = InOrder(space)
        while not isinstance(action := study.decide(policy.next), End):
            if isinstance(action, Wait):
                study.wait()
            else:
                study.tell(action, measure(folder, space, action, seconds))
        print(len(study.history().finished), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4]), float(sys.argv[5]))
