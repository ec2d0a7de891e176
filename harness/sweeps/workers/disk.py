"""Results of a sweep that lie in the folder of its run: what was measured here is never lost."""

from collections.abc import Iterator

from msgspec.structs import replace

from harness.sweeps.history import Task
from harness.sweeps.space import Space
from harness.trial.result import TrialResult
from harness.trial.run_plan import same_question
from harness.trial.store import RunFolder, TrialFolder
from harness.trial.trial import Trial


def trial_of(space: Space, task: Task) -> Trial:
    """The trial that a task is."""
    return replace(space.planned[task.point].trial, repeat=task.repeat)


def result_of(folder: RunFolder, space: Space, task: Task) -> TrialResult | None:
    """Its result, where there is one that answers what is asked now."""
    trial = trial_of(space, task)
    return _answer(folder.trial(trial.name), trial)


def results_in(folder: RunFolder, space: Space) -> dict[Task, TrialResult]:
    """Those of all tasks of the space that have one, the earliest first."""
    place = {point: number for number, point in enumerate(space.planned)}
    found = sorted(_found(folder, space), key=lambda one: (one[1].started_at, place[one[0].point]))
    return dict(found)


def _found(folder: RunFolder, space: Space) -> Iterator[tuple[Task, TrialResult]]:
    for found in folder.trials():
        trial = found.trial()
        point = None if trial is None else space.point_of(trial.workload)
        if trial is not None and point is not None:
            task = Task(point, trial.repeat)
            result = _answer(found, trial_of(space, task))
            if result is not None:
                yield task, result


def _answer(folder: TrialFolder, asked: Trial) -> TrialResult | None:
    earlier, result = folder.trial(), folder.result()
    if earlier is None or result is None or not same_question(asked, earlier, result):
        return None
    return result
