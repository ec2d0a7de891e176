"""From a job to a better one by one change after the other: soon done, and nothing proven."""

from typing import Final

from msgspec.structs import replace

from advisor.frameworks.registry import parts_of
from advisor.hardware.calibration import Calibration
from advisor.job.job import Job
from advisor.plan.recompute_plan import Setting
from advisor.request.resolve import Resolution
from advisor.search.changed_options import changed, is_given
from advisor.search.evaluate import Evaluator
from advisor.search.found import Found, Searched
from advisor.search.neighbours import neighbours

_STEPS_DOWN: Final = 8
"""Changes of one thing each that are made at most to find a job that fits (a judgement)."""


def search_near(
    job: Job,
    resolution: Resolution,
    calibration: Calibration,
    asked: tuple[Setting, ...] = (),
) -> Searched:
    """What is found from a job to neighbour after neighbour, of all that may change of a
    resolution: only what fits where anything does."""
    found = Found(calibration, asked)
    found.look_at(Evaluator(job, calibration))
    climb = Climb(resolution, calibration, found, options=True)
    if not found.fits:
        climb.descend(job)
    climb.climb()
    return found.searched(whole=False)


class Climb:
    """Steps between jobs of a resolution; what they find is kept by `found`.

    options: whether options of the job may change as well as its layout and micro batch.
    """

    def __init__(
        self, resolution: Resolution, calibration: Calibration, found: Found, *, options: bool
    ) -> None:
        self._resolution, self._calibration = resolution, calibration
        self._found, self._options = found, options
        self._settings = parts_of(resolution.config.framework).settings

    def descend(self, job: Job) -> None:
        """From a job to its neighbour that may need least, and on, until one fits: only then is
        known how fast the others have to be."""
        smallest = Evaluator(job, self._calibration)
        least = self._found.least_peak(smallest)
        for _ in range(_STEPS_DOWN):
            before = smallest
            for neighbour in neighbours(smallest.job):
                if self._is_open(neighbour.job) and not self._refuses(neighbour.job):
                    evaluator = Evaluator(neighbour.job, self._calibration)
                    peak = self._found.least_peak(evaluator)
                    if peak < least:
                        least, smallest = peak, evaluator
            self._found.look_at(smallest)
            if self._found.fits or smallest is before:
                return

    def climb(self) -> None:
        """From the best so far to its best neighbour, and on: soon a step is known that most
        layouts cannot undercut."""
        while self._found.fits and (best := self._found.best) is not None:
            for neighbour in neighbours(best.job):
                if self._is_open(neighbour.job):
                    evaluator = Evaluator(neighbour.job, self._calibration)
                    if evaluator.at_least_seconds < self._found.first:
                        self._found.look_at(evaluator)
            if self._found.first >= best.step_time_seconds:
                return

    def _refuses(self, job: Job) -> bool:
        return bool(self._settings.check_job(job))

    def _is_open(self, job: Job) -> bool:
        """Whether a job has all that was given."""
        plain = self._resolution
        fixed = plain.layout_fields
        if any(getattr(job.layout, name) != value for name, value in fixed.items()):
            return False
        size = job.config.micro_batch_size
        if size != plain.config.micro_batch_size and not plain.micro_batch_is_free:
            return False
        usual = replace(job, model=plain.model, config=replace(plain.config, micro_batch_size=size))
        return not (is_given(usual, job, plain) if self._options else changed(usual, job))
