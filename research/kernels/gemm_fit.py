"""Constants of advisor.time.gemm, fitted on kernels.

Run as `python -m research.kernels.gemm_fit`.

Three or four constants a family of GPUs (peak at full clock by width, what the power limit leaves,
what grouped kernels reach) and two that all share. What whole training steps reach below these is
no part of it (Calibration.gemm_training_share).
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from statistics import fmean
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from scipy.optimize import least_squares

from advisor.hardware.calibration import Calibration, load_calibration
from advisor.hardware.catalogue import load_gpu
from advisor.time.gemm import (
    forward_gemm_seconds,
    input_gradient_seconds,
    weight_gradient_seconds,
)
from advisor.time.machine import gemm_rates
from research.kernels.gemm_rows import GemmRow, measured_rows, published_rows

_PASSES: Final = {
    "forward": (forward_gemm_seconds,),
    "input_gradient": (input_gradient_seconds,),
    "weight_gradient": (weight_gradient_seconds,),
    "all": (forward_gemm_seconds, input_gradient_seconds, weight_gradient_seconds),
}
_GPUS: Final = {"a100": "A100-SXM-80GB", "h100": "H100-SXM-80GB", "b200": "B200-SXM-180GB"}
FAMILIES: Final = tuple(_GPUS)
_SHARED: Final = ("gemm_tile_seconds", "gemm_bandwidth_efficiency")
_OF_FAMILY: Final = {
    "a100": ("gemm_efficiency", "gemm_sustained_share"),
    "h100": ("gemm_efficiency", "fp8_gemm_efficiency", "gemm_sustained_share"),
    "b200": (
        "gemm_efficiency",
        "fp8_gemm_efficiency",
        "fp4_gemm_efficiency",
        "gemm_sustained_share",
        "grouped_gemm_share",
    ),
}
_START: Final = {
    "gemm_efficiency": 0.85,
    "fp8_gemm_efficiency": 0.8,
    "fp4_gemm_efficiency": 0.7,
    "gemm_sustained_share": 0.87,
    "grouped_gemm_share": 0.8,
    "gemm_tile_seconds": 1.3e-6,
    "gemm_bandwidth_efficiency": 0.9,
}
_UNITS: Final = {"gemm_tile_seconds": "s"}
_KERNEL_SECONDS: Final = 4e-6
"""Not fitted here: Calibration.kernel_seconds."""
_ROBUST: Final = 0.02
_LIBRARY: Final = "pytorch/ao"
"""torch._grouped_mm in bf16 on Blackwell is half as quick as a dense GEMM with one expert already:
its kernel, not the experts. Kept in the table, reported, and not fitted on."""


class Constant(Struct, frozen=True, kw_only=True):
    """A fitted constant, and the number of rows that tell of it."""

    name: str
    value: float
    unit: str
    rows: int


class Errors(Struct, frozen=True, kw_only=True):
    """Mean of the absolute relative errors, bias and the worst, of a group of rows."""

    count: int
    mean: float
    bias: float
    worst: float


class Fit(Struct, frozen=True, kw_only=True):
    """Calibrations by family: the present ones, with other GEMM constants."""

    calibrations: dict[str, Calibration]

    def seconds(self, row: GemmRow) -> float:
        """Predicted seconds of a row."""
        calibration = self.calibrations[row.family]
        rates = gemm_rates(row.gpu, calibration, row.precision)
        if not row.sustained:
            rates = replace(rates, sustained_flops=rates.flops)
        return sum(run(gemm, rates) for gemm in row.gemms for run in _PASSES[row.passes])


def rows() -> tuple[GemmRow, ...]:
    """All rows: published and measured."""
    return (*published_rows(), *measured_rows())


def is_fitted(row: GemmRow) -> bool:
    """Whether the constants are fitted on it (see _LIBRARY)."""
    return row.precision.is_quantized or not row.source.startswith(_LIBRARY)


def fit(fitted: Sequence[GemmRow]) -> Fit:
    """Constants that bring the logarithms of times closest; every source weighs as the root of its
    rows, and outliers little."""
    families = [name for name in FAMILIES if any(row.family == name for row in fitted)]
    keys = [("", name) for name in _SHARED]
    keys += [(family, name) for family in families for name in _OF_FAMILY[family]]
    present = {name: load_calibration(load_gpu(_GPUS[name])) for name in families}
    start = np.array([_START[name] for _, name in keys])
    counts = Counter(row.group for row in fitted)
    weights = np.array([counts[row.group] ** -0.35 for row in fitted])
    measured = np.log([row.seconds for row in fitted])

    def residuals(scaled: np.ndarray) -> np.ndarray:
        tried = _fit_of(dict(zip(keys, scaled * start, strict=True)), present)
        predicted = np.log([tried.seconds(row) for row in fitted])
        return np.asarray(weights * (predicted - measured))

    most = np.array([1e-5 if name.endswith("seconds") else 1.0 for _, name in keys])
    found = least_squares(
        residuals,
        np.ones(len(keys)),
        bounds=(0.1, most / start),
        loss="soft_l1",
        f_scale=_ROBUST,
        diff_step=1e-3,
        max_nfev=20,
    )
    return _fit_of(dict(zip(keys, found.x * start, strict=True)), present)


def _fit_of(values: dict[tuple[str, str], float], present: dict[str, Calibration]) -> Fit:
    shared = {name: values["", name] for name in _SHARED}
    calibrations = {
        family: replace(
            calibration,
            kernel_seconds=_KERNEL_SECONDS,
            gemm_training_share=1.0,
            quantized_training_share=1.0,
            **shared,
            **{name: values[family, name] for name in _OF_FAMILY[family]},
        )
        for family, calibration in present.items()
    }
    return Fit(calibrations=calibrations)


def constants(fitted: Fit, on: Sequence[GemmRow]) -> dict[str, tuple[Constant, ...]]:
    """The constants of every family, as they stand in configs/calibration."""
    return {
        family: tuple(
            Constant(
                name=name,
                value=getattr(calibration, name),
                unit=_UNITS.get(name, "1"),
                rows=sum(_tells(row, family, name) for row in on),
            )
            for name in (*_OF_FAMILY[family], *_SHARED)
        )
        for family, calibration in fitted.calibrations.items()
    }


def _tells(row: GemmRow, family: str, name: str) -> bool:
    """Whether a constant was fitted on the row."""
    if name in _SHARED:
        return True
    if row.family != family:
        return False
    return {
        "gemm_efficiency": not row.precision.is_quantized,
        "fp8_gemm_efficiency": row.precision.is_fp8,
        "fp4_gemm_efficiency": row.precision.is_quantized and not row.precision.is_fp8,
        "gemm_sustained_share": row.sustained,
        "grouped_gemm_share": row.grouped,
    }[name]


def errors(fitted: Fit, of: Iterable[GemmRow]) -> dict[str, Errors]:
    """Errors by source, GPU and width, percent."""
    found: dict[str, list[float]] = defaultdict(list)
    for row in of:
        found[row.group].append(100 * (fitted.seconds(row) / row.seconds - 1))
    return {
        group: Errors(
            count=len(each),
            mean=fmean(map(abs, each)),
            bias=fmean(each),
            worst=max(each, key=abs),
        )
        for group, each in found.items()
    }


def left_out_errors(of: Sequence[GemmRow]) -> dict[str, Errors]:
    """Errors of each source's rows by a fit that saw none of that source; none where no other
    source has that width on that family."""
    found: dict[str, Errors] = {}
    for source in dict.fromkeys(_origin(row) for row in of):
        kept = [row for row in of if _origin(row) != source]
        left = [row for row in of if _origin(row) == source]
        known = {_kind(row) for row in kept}
        found.update(errors(fit(kept), [row for row in left if _kind(row) in known]))
    return found


def _kind(row: GemmRow) -> tuple[str, bool, bool]:
    return row.family, row.precision.is_quantized, row.precision.is_fp8


def _origin(row: GemmRow) -> str:
    return row.source.split(" ")[0]


def main() -> None:
    """Fit, print the constants, and the errors of the fit and of sources left out of it."""
    every = rows()
    fitted_rows = [row for row in every if is_fitted(row)]
    fitted = fit(fitted_rows)
    for family, found in constants(fitted, fitted_rows).items():
        for constant in found:
            print(
                f"{family} {constant.name} {constant.value:.4g} {constant.unit} "
                f"({constant.rows} rows)"
            )
    left_out = left_out_errors(fitted_rows)
    for group, error in errors(fitted, every).items():
        other = left_out.get(group)
        unseen = f"left out {other.mean:5.1f} bias {other.bias:6.1f}" if other else "not fitted on"
        print(
            f"{group:62} {error.count:4} mean {error.mean:5.1f} bias {error.bias:6.1f} "
            f"worst {error.worst:6.1f} %   {unseen}"
        )


if __name__ == "__main__":
    main()
