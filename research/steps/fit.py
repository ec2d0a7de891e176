"""Constants that explain measured steps, of all GPUs at once.

Least squares on the logarithm of the times. Every constant is also drawn to a prior: what its
source or a fit on kernels alone makes likely, with a relative width. Rows then move only what they
can tell, and the rest stays typical. What is physics of the software or of the processor is one
constant for all GPUs; what is a chip's own is one for each generation. A row that nothing explains
pulls no harder than one that is `_OUTLIER` widths off.
"""

import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from itertools import compress
from types import MappingProxyType
from typing import Any, Final

import numpy as np
from msgspec.structs import replace

from advisor.hardware.calibration import Calibration
from research.kernels.least_squares import Fit
from research.rows.targets import Target, predict
from research.steps.constants import (
    CONSTANTS,
    GENERATIONS,
    ISOLATED,
    Isolated,
    prior_calibration,
)

TIME_SIGMA: Final = 0.04
"""Relative scatter of a published time around a right model: repeats within a source are good to
5 % (results/published/README.md)."""
_LOOSE: Final = {"llm_foundry": 0.10}
"""The same of a source whose software is years older than the others' (versions lie 20 % apart)."""
_OUTLIER: Final = 3.0
_STEP: Final = 0.05
_ROUNDS: Final = 12
_NEAR: Final = 0.9
"""Widths of a prior that a linear step may move a constant by."""
_SETTLED: Final = 0.01

Calibrations = Mapping[str, Calibration]
"""By generation: a100, h100, b200."""
Row = Target | Isolated


def fit(
    targets: Sequence[Target],
    groups: Mapping[str, Callable[[Target], Hashable]] = MappingProxyType({}),
    priors: Calibrations | None = None,
) -> Fit:
    """The constants that explain `targets` best, to three digits: what a file holds. groups: by
    name, which rows a left-out check leaves out together: by one linear step, and by a fit of its
    own where that is a long one. priors: by default those of constants.prior_calibration."""
    base = priors or {name: prior_calibration(name) for name in GENERATIONS}
    rows: tuple[Row, ...] = (*targets, *ISOLATED)
    weights = np.array([*_weights(targets), *(1 / one.sigma for one in ISOLATED)])

    def at(shifts: Any) -> Fit:
        return Fit(constants=CONSTANTS, shifts=tuple(map(float, shifts)), base=base)

    def misses(shifts: Any, of: Sequence[Row] = rows) -> Any:
        made = at(shifts).calibrations
        return np.array([_miss(row, made) for row in of])

    def jacobian(shifts: Any, here: Any, of: Sequence[Row] = rows) -> Any:
        columns = []
        for position in range(len(CONSTANTS)):
            moved = np.array(shifts)
            moved[position] += _STEP
            columns.append((misses(moved, of) - here) / _STEP)
        return np.array(columns).T

    shifts, here = _descended(np.zeros(len(CONSTANTS)), weights, misses, jacobian)
    slopes = jacobian(shifts, here)
    weighed = _weighed(here, weights)
    pull, priors_pull = weighed[:, None] * slopes, np.eye(len(CONSTANTS))
    inverse = np.linalg.inv(pull.T @ pull + priors_pull)

    @cache
    def without(left_out: tuple[bool, ...]) -> Any:
        out = np.array(left_out)
        kept, residual = pull[~out], (weighed * here)[~out]
        normal = kept.T @ kept + priors_pull
        step = -np.linalg.solve(normal, kept.T @ residual + shifts)
        if np.max(np.abs(step)) <= _NEAR:
            return here[out] + slopes[out] @ step
        seen, hidden = (list(compress(rows, some)) for some in (~out, out))
        of_seen = partial(misses, of=seen), partial(jacobian, of=seen)
        return misses(_descended(shifts + step, weights[~out], *of_seen)[0], hidden)

    def unseen(group: Callable[[Target], Hashable]) -> tuple[float, ...]:
        found = np.array(here)
        for name in dict.fromkeys(group(target) for target in targets):
            out = tuple(isinstance(row, Target) and group(row) == name for row in rows)
            found[np.array(out)] = without(out)
        return tuple(map(float, found[: len(targets)]))

    widths = {one.name: math.sqrt(inverse[i, i]) for i, one in enumerate(CONSTANTS)}
    left_out = {name: unseen(group) for name, group in groups.items()}
    return replace(at(shifts), digits=3, widths=widths, left_out=left_out)


def _descended(
    shifts: Any,
    weights: Any,
    misses: Callable[[Any], Any],
    jacobian: Callable[[Any, Any], Any],
) -> tuple[Any, Any]:
    """Gauss and Newton, each step as long as it brings the objective down: where it ends, and the
    misses there."""

    def objective(shifts: Any, here: Any) -> float:
        sizes = (here * weights / _OUTLIER) ** 2
        return float(2 * _OUTLIER**2 * np.sum(np.sqrt(1 + sizes) - 1) + np.sum(shifts**2))

    here = misses(shifts)
    for _ in range(_ROUNDS):
        weighed = _weighed(here, weights)
        pull = weighed[:, None] * jacobian(shifts, here)
        normal = pull.T @ pull + np.eye(len(shifts))
        move = -np.linalg.solve(normal, pull.T @ (weighed * here) + shifts)
        before, length = objective(shifts, here), 1.0
        while length > _SETTLED:
            after = misses(shifts + length * move)
            if objective(shifts + length * move, after) < before:
                break
            length /= 2
        else:
            break
        shifts, here = shifts + length * move, after
        if np.max(np.abs(length * move)) < _SETTLED:
            break
    return shifts, here


def _weighed(here: Any, weights: Any) -> Any:
    """Weights that fall where a row is an outlier."""
    return weights / np.sqrt(1 + (here * weights / _OUTLIER) ** 2) ** 0.5


def errors(targets: Iterable[Target], calibrations: Calibrations) -> Iterator[float]:
    """Predicted over measured, less one, of every target."""
    for target in targets:
        yield math.exp(_miss(target, calibrations)) - 1


def _miss(row: Row, calibrations: Calibrations) -> float:
    if isinstance(row, Isolated):  # what it rests on is the same in all
        return math.log(row.predict(calibrations[GENERATIONS[0]]) / row.seconds)
    calibration = calibrations[row.job.gpu.calibration or ""]
    return math.log(predict(row, calibration) / row.seconds)


_MOST_ROWS: Final = 3
"""As how many rows those of one table, model and GPU weigh at most: they share what a run's
software and cluster were."""


def _weights(targets: Sequence[Target]) -> list[float]:
    """Widths that a miss of one counts: a family weighs as one row, families alike as
    `_MOST_ROWS`."""
    sizes = Counter(target.family for target in targets)
    families = {(_alike(target), target.family) for target in targets}
    kinds = Counter(kind for kind, _ in families)
    return [
        math.sqrt(min(1.0, _MOST_ROWS / kinds[_alike(target)]) / sizes[target.family])
        / _LOOSE.get(target.table, TIME_SIGMA)
        for target in targets
    ]


def _alike(target: Target) -> tuple[str, str, str]:
    return target.table, target.job.model.name, target.job.gpu.name
