"""Efficiencies that explain measured times, held near what is typical where the times are silent.

Least squares on the logarithm of the times. Every constant is also drawn to a prior: a value that
datasheets and public benchmarks make likely, with a relative width. Few rows then move only what
they can tell, and the rest stays typical.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from advisor.base.errors import require
from advisor.base.units import significant
from advisor.hardware.calibration import Calibration, Provenance
from harness.calibration.targets import Target, predict, relative_error

TIME_SIGMA = 0.04
"""Relative scatter of a published time beside a right model: repeats within a source are good to
5 % (results/published/README.md)."""


class Prior(Struct, frozen=True):
    """A typical value, the relative width around it, and why."""

    value: float
    sigma: float
    reason: str


PRIORS = {
    "gemm_efficiency": Prior(
        0.65, 0.2, "best GEMMs reach 0.78 to 0.87 (ml-engineering), training shapes less"
    ),
    "fp8_gemm_efficiency": Prior(
        0.9, 0.1, "relative to gemm_efficiency: best GEMMs, H100 0.88, H200 0.91, B200 0.98"
    ),
    "attention_forward_efficiency": Prior(
        0.55, 0.15, "causal, head dimension 128, 4k to 8k (arXiv 2307.08691, 2407.08608)"
    ),
    "attention_backward_efficiency": Prior(0.45, 0.15, "same sources; backward is slower"),
    "bandwidth_efficiency": Prior(0.8, 0.1, "streaming kernels"),
    "nvlink_efficiency": Prior(0.75, 0.15, "bus bandwidth of nccl-tests, 50 to 200 MB"),
    "internode_efficiency": Prior(0.8, 0.15, "bus bandwidth of nccl-tests on InfiniBand"),
    "hidden_fraction": Prior(0.6, 0.4, "between useless and perfect overlap"),
    "kernel_seconds": Prior(4e-6, 0.3, "launch latency and tail of one kernel"),
    "collective_seconds": Prior(2e-5, 0.4, "latency of a NCCL collective within a node"),
    "step_seconds": Prior(1e-2, 0.7, "launches of the optimizer, loss reduction, data"),
}


class Fit(Struct, frozen=True):
    """A fitted calibration; `widths` tells how much of each prior's width is left (1: the rows
    say nothing about that constant)."""

    calibration: Calibration
    widths: dict[str, float]


def fit(name: str, targets: Sequence[Target]) -> Fit:
    """The calibration `name` that explains `targets` best; UserError without scipy."""
    optimize = require("scipy.optimize", "harness.calibration.published", "fit")
    import numpy as np

    weights = _weights(targets)

    def residuals(shifts: Sequence[float]) -> list[float]:
        calibration = calibration_at(name, list(map(float, shifts)))
        misses = [
            weight * math.log(predict(target, calibration) / target.seconds) / TIME_SIGMA
            for target, weight in zip(targets, weights, strict=True)
        ]
        return [*misses, *shifts]

    solution = optimize.least_squares(residuals, [0.0] * len(PRIORS))
    covariance = np.linalg.inv(solution.jac.T @ solution.jac)
    widths = {field: math.sqrt(covariance[i, i]) for i, field in enumerate(PRIORS)}
    return Fit(calibration_at(name, solution.x.tolist()), widths)


def calibration_at(name: str, shifts: Sequence[float]) -> Calibration:
    """The calibration that lies so many widths off its priors, as factors exp(width x shift)."""
    values: dict[str, Any] = {
        field: prior.value * math.exp(prior.sigma * shift)
        for (field, prior), shift in zip(PRIORS.items(), shifts, strict=True)
    }
    values["fp8_gemm_efficiency"] *= values["gemm_efficiency"]
    for field in values:
        if not field.endswith("_seconds"):
            values[field] = min(1.0, values[field])
    return Calibration(name=name, provenance=Provenance.PUBLISHED, step_time_error=0.0, **values)


def rounded(calibration: Calibration) -> Calibration:
    """Three digits of every fitted constant: what a file holds."""
    digits: dict[str, Any] = {
        field: significant(getattr(calibration, field), 3) for field in PRIORS
    }
    return replace(calibration, **digits)


def left_out(
    targets: Sequence[Target], group: Callable[[Target], str] = lambda target: target.group
) -> Iterator[tuple[Target, float]]:
    """Every target with its relative error under a fit that has not seen its group."""
    for name in dict.fromkeys(group(target) for target in targets):
        seen = [target for target in targets if group(target) != name]
        calibration = fit("left out", seen).calibration
        for target in targets:
            if group(target) == name:
                yield target, relative_error(target, calibration)


def _weights(targets: Sequence[Target]) -> list[float]:
    """Square roots of the weights: one in all for a family."""
    sizes = Counter(target.family for target in targets)
    return [1 / math.sqrt(sizes[target.family]) for target in targets]
