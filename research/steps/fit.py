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
from typing import Any, Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from advisor.base.units import significant
from advisor.hardware.calibration import Calibration
from research.rows.targets import Target, predict
from research.steps.constants import CONSTANTS, GENERATIONS, Constant, prior_calibration

TIME_SIGMA: Final = 0.04
"""Relative scatter of a published time around a right model: repeats within a source are good to
5 % (results/published/README.md)."""
_LOOSE: Final = {"llm_foundry": 0.10, "simumax_b200": 0.06}
"""The same of a source whose software is years older than the others' (versions lie 20 % apart), or
that times the second and third step of a run without any overlap."""
_OUTLIER: Final = 3.0
_STEP: Final = 0.05
_ROUNDS: Final = 12
_SETTLED: Final = 0.01

Calibrations = Mapping[str, Calibration]
"""By generation: a100, h100, b200."""


class Knob(Struct, frozen=True):
    """One number that the fit moves: a constant of every generation, or of one."""

    constant: Constant
    generation: str = ""

    @property
    def name(self) -> str:
        """What a table calls it."""
        return f"{self.constant.field} {self.generation}".strip()

    def moves(self, target: Target) -> bool:
        """Whether it may change what is predicted for `target`."""
        return not self.generation or self.generation == target.job.gpu.calibration


def knobs(targets: Iterable[Target]) -> tuple[Knob, ...]:
    """All numbers that `targets` may move."""
    seen = {target.job.gpu.calibration for target in targets}
    return tuple(
        knob
        for constant in CONSTANTS
        for knob in (
            (Knob(constant),)
            if constant.shared
            else tuple(Knob(constant, name) for name in GENERATIONS if name in seen)
        )
    )


class Fit(Struct, frozen=True):
    """Fitted calibrations. shifts: of every knob, in widths of its prior; widths: how much of each
    prior's width is left (1: the rows say nothing about it). left_out: of every target the
    logarithmic error under a fit that has not seen its group."""

    calibrations: Calibrations
    shifts: dict[str, float]
    widths: dict[str, float]
    left_out: tuple[float, ...]


def fit(
    targets: Sequence[Target],
    group: Callable[[Target], Hashable] = lambda target: target.group,
    priors: Calibrations | None = None,
) -> Fit:
    """The calibrations that explain `targets` best. group: rows that the
    left-out check leaves out together. priors: by default those of constants.prior_calibration."""
    moved = knobs(targets)
    start = priors or {name: prior_calibration(name) for name in GENERATIONS}
    weights = np.array(_weights(targets))

    def misses(shifts: Any) -> Any:
        made = calibrations_at(start, moved, [float(shift) for shift in shifts])
        return np.array([_miss(target, made) for target in targets])

    def jacobian(shifts: Any, here: Any) -> Any:
        columns = []
        for position, knob in enumerate(moved):
            there = np.array(shifts)
            there[position] += _STEP
            made = calibrations_at(start, moved, [float(shift) for shift in there])
            column = [
                (_miss(target, made) - miss) / _STEP if knob.moves(target) else 0.0
                for target, miss in zip(targets, here, strict=True)
            ]
            columns.append(column)
        return np.array(columns).T

    def weighed(here: Any) -> Any:
        return weights / np.sqrt(1 + (here * weights / _OUTLIER) ** 2) ** 0.5

    def objective(shifts: Any, here: Any) -> float:
        sizes = (here * weights / _OUTLIER) ** 2
        return float(2 * _OUTLIER**2 * np.sum(np.sqrt(1 + sizes) - 1) + np.sum(shifts**2))

    shifts = np.zeros(len(moved))
    here = misses(shifts)
    for _ in range(_ROUNDS):
        slopes = jacobian(shifts, here)
        pull = weighed(here)[:, None] * slopes
        normal = pull.T @ pull + np.eye(len(moved))
        move = -np.linalg.solve(normal, pull.T @ (weighed(here) * here) + shifts)
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
    slopes = jacobian(shifts, here)
    pull = weighed(here)[:, None] * slopes
    inverse = np.linalg.inv(pull.T @ pull + np.eye(len(moved)))
    unseen = np.array(here)
    for name in dict.fromkeys(group(target) for target in targets):
        out = np.array([group(target) == name for target in targets])
        kept = pull[~out]
        residual = (weighed(here) * here)[~out]
        normal = kept.T @ kept + np.eye(len(moved))
        unseen[out] = here[out] - slopes[out] @ np.linalg.solve(normal, kept.T @ residual + shifts)
    return Fit(
        {
            name: rounded(one)
            for name, one in calibrations_at(start, moved, shifts.tolist()).items()
        },
        {knob.name: float(shift) for knob, shift in zip(moved, shifts, strict=True)},
        {knob.name: math.sqrt(inverse[i, i]) for i, knob in enumerate(moved)},
        tuple(float(miss) for miss in unseen),
    )


def calibrations_at(
    priors: Calibrations, moved: Sequence[Knob], shifts: Sequence[float]
) -> dict[str, Calibration]:
    """The calibrations that lie so many widths off their priors, as factors exp(width x shift)."""
    made = {}
    for generation, prior in priors.items():
        values: dict[str, Any] = {}
        for knob, shift in zip(moved, shifts, strict=True):
            if knob.generation in ("", generation):
                field, factor = knob.constant.field, math.exp(knob.constant.sigma * shift)
                value = getattr(prior, field) * factor
                bounded = field.endswith(_FRACTIONS) and not field.startswith("quantized")
                values[field] = min(1.0, value) if bounded else value
        made[generation] = replace(prior, **values)
    return made


_FRACTIONS: Final = ("_efficiency", "_fraction", "_share")


def rounded(calibration: Calibration) -> Calibration:
    """Three digits of every fitted constant: what a file holds."""
    digits: dict[str, Any] = {
        constant.field: significant(getattr(calibration, constant.field), 3)
        for constant in CONSTANTS
    }
    return replace(calibration, **digits)


def errors(targets: Iterable[Target], calibrations: Calibrations) -> Iterator[float]:
    """Predicted over measured, less one, of every target."""
    for target in targets:
        yield math.exp(_miss(target, calibrations)) - 1


def _miss(target: Target, calibrations: Calibrations) -> float:
    calibration = calibrations[target.job.gpu.calibration or ""]
    return math.log(predict(target, calibration) / target.seconds)


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
