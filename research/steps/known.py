"""Classes of jobs whose published runs all lie on one side of what is predicted for them."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from math import ceil, floor
from statistics import fmean
from typing import Final

from advisor.hardware.calibration import JobClass, KnownError
from advisor.search.step_time_band import job_class
from research.rows.targets import Quantity, Target

LEAST_ROWS: Final = 3
LEAST_ERROR: Final = 0.10
"""Of the mean of a class. With the number of rows a judgement: smaller errors are the band's."""


def tells(target: Target) -> bool:
    """Whether a row says something of other runs like it: a step that may be fitted on, or that is
    not for the reason alone that nobody knows what bounds it."""
    return target.quantity is Quantity.STEP and (target.unexplained or not target.judged_only)


def known_errors(targets: Sequence[Target], errors: Iterable[float]) -> Iterator[KnownError]:
    """Of every class of LEAST_ROWS or more rows with errors of one sign and of LEAST_ERROR in the
    mean, in the order of their words. errors: predicted over measured, less one, of each target."""
    classes: dict[JobClass, list[float]] = defaultdict(list)
    for target, error in zip(targets, errors, strict=True):
        if tells(target):
            classes[job_class(target.job)].append(error)
    for of in sorted(classes, key=lambda of: of.description):
        found = classes[of]
        mean, low, high = fmean(found), min(found), max(found)
        if len(found) >= LEAST_ROWS and low * high > 0 and abs(mean) >= LEAST_ERROR:
            low, high = floor(1000 * low) / 1000, ceil(1000 * high) / 1000
            yield KnownError(of=of, rows=len(found), mean=round(mean, 3), low=low, high=high)
