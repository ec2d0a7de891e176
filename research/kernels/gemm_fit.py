"""Constants of advisor.time.gemm, fitted on kernels.

Run as `python -m research.kernels.gemm_fit`.

Three or four constants a family of GPUs (peak at full clock by width, what the power limit leaves,
what grouped kernels reach) and two that all share. What whole training steps reach below these is
no part of it (Calibration.gemm_training_share).
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

import numpy as np
from msgspec.structs import replace
from scipy.optimize import least_squares

from advisor.base.dtypes import Precision
from advisor.base.grouping import grouped
from advisor.hardware.calibration import Calibration, load_calibration
from advisor.hardware.catalogue import load_gpu
from advisor.time.gemm import (
    forward_gemm_seconds,
    input_gradient_seconds,
    weight_gradient_seconds,
)
from advisor.time.machine import gemm_rates
from research.kernels.gemm_rows import GemmRow, measured_rows, published_rows
from research.kernels.least_squares import Constant, Errors, Fit, splits

_PASSES: Final = {
    "forward": (forward_gemm_seconds,),
    "input_gradient": (input_gradient_seconds,),
    "weight_gradient": (weight_gradient_seconds,),
    "all": (forward_gemm_seconds, input_gradient_seconds, weight_gradient_seconds),
}
GPUS: Final = {"a100": "A100-SXM-80GB", "h100": "H100-SXM-80GB", "b200": "B200-SXM-180GB"}
FAMILIES: Final = tuple(GPUS)
_SHARED: Final = (
    Constant(field="gemm_tile_seconds", value=1.3e-6, sigma=1.0, unit="s"),
    Constant(field="gemm_bandwidth_efficiency", value=0.9, sigma=1.0),
)
_START: Final = {
    "gemm_efficiency": 0.85,
    "fp8_gemm_efficiency": 0.8,
    "gemm_sustained_share": 0.7,  # from above, boards of more power than told hide it
    "grouped_gemm_share": 0.8,
}
_OF_FAMILY: Final = {
    "a100": ("gemm_efficiency", "gemm_sustained_share"),
    "h100": ("gemm_efficiency", "fp8_gemm_efficiency", "gemm_sustained_share"),
    "b200": tuple(_START),
}
_KERNEL_SECONDS: Final = 4e-6
"""Not fitted here: Calibration.kernel_seconds."""
_ROBUST: Final = 0.02
_LIBRARY: Final = "pytorch/ao"
"""torch._grouped_mm in bf16 on Blackwell is half as quick as a dense GEMM with one expert already:
its kernel, not the experts. Kept in the table, reported, and not fitted on."""


def rows() -> tuple[GemmRow, ...]:
    """All rows: published and measured."""
    return (*published_rows(), *measured_rows())


def is_fitted(row: GemmRow) -> bool:
    """Whether the constants are fitted on it (see _LIBRARY); none here is of 4 bits, whose speed is
    told by whole steps (Calibration.fp4_speed_exponent)."""
    if row.precision is Precision.NVFP4:
        return False
    return row.precision.is_quantized or not row.source.startswith(_LIBRARY)


def fit(rows: Sequence[GemmRow]) -> Fit:
    """Constants that bring the logarithms of times closest; every source weighs as the root of its
    rows, and outliers little."""
    families = [name for name in FAMILIES if any(row.family == name for row in rows)]
    moved = (
        *_SHARED,
        *(
            Constant(field=field, value=_START[field], sigma=1.0, family=family)
            for family in families
            for field in _OF_FAMILY[family]
        ),
    )
    base = {name: alone(load_calibration(load_gpu(GPUS[name]))) for name in families}
    counts = Counter(row.group for row in rows)
    weights = np.array([counts[row.group] ** -0.35 for row in rows])
    measured = np.log([row.seconds for row in rows])

    def at(scaled: np.ndarray) -> Fit:
        return Fit(constants=moved, shifts=tuple(map(float, np.log(scaled))), base=base)

    def residuals(scaled: np.ndarray) -> np.ndarray:
        calibrations = at(scaled).calibrations
        predicted = np.log([seconds(row, calibrations[row.family]) for row in rows])
        return np.asarray(weights * (predicted - measured))

    most = [(1e-5 if one.unit == "s" else 1.0) / one.value for one in moved]
    found = least_squares(
        residuals,
        np.ones(len(moved)),
        bounds=(0.1, most),
        loss="soft_l1",
        f_scale=_ROBUST,
        diff_step=1e-3,
        max_nfev=20,
    )
    return at(found.x)


def alone(calibration: Calibration) -> Calibration:
    """What it says of kernels alone, not of those within a step."""
    return replace(
        calibration,
        kernel_seconds=_KERNEL_SECONDS,
        gemm_training_share=1.0,
    )


def seconds(row: GemmRow, calibration: Calibration) -> float:
    """Predicted seconds of a row."""
    rates = gemm_rates(row.gpu, calibration, row.precision)
    if not row.sustained:
        rates = replace(rates, sustained_flops=rates.flops)
    return sum(run(gemm, rates) for gemm in row.gemms for run in _PASSES[row.passes])


def constants(found: Fit, on: Sequence[GemmRow]) -> Iterator[tuple[str, str, float, int]]:
    """Family, field and value of every constant as they stand in configs/calibration, and the
    number of rows that it is fitted on."""
    for family in found.base:
        for field, value in found.values(family).items():
            yield family, field, value, sum(_is_of(row, family, field) for row in on)


def _is_of(row: GemmRow, family: str, field: str) -> bool:
    """Whether a constant was fitted on the row."""
    if any(field == one.field for one in _SHARED):
        return True
    if row.family != family:
        return False
    return {
        "gemm_efficiency": not row.precision.is_quantized,
        "fp8_gemm_efficiency": row.precision.is_fp8,
        "gemm_sustained_share": row.sustained,
        "grouped_gemm_share": row.grouped,
    }[field]


def errors(calibrations: Mapping[str, Calibration], of: Iterable[GemmRow]) -> dict[str, Errors]:
    """By source, GPU and width."""
    found = grouped(
        (row.group, seconds(row, calibrations[row.family]) / row.seconds - 1) for row in of
    )
    return {group: Errors.of(each) for group, each in found.items()}


def left_out_errors(of: Sequence[GemmRow]) -> dict[str, Errors]:
    """Errors of each source's rows by a fit that saw none of that source; none where no other
    source has that width on that family."""
    found: dict[str, Errors] = {}
    for _, seen, own in splits(of, lambda row: row.source.split(" ")[0]):
        known = {_kind(row) for row in seen}
        found |= errors(fit(seen).calibrations, (row for row in own if _kind(row) in known))
    return found


def _kind(row: GemmRow) -> tuple[str, bool, bool]:
    return row.family, row.precision.is_quantized, row.precision.is_fp8


def main() -> None:
    """Fit, print the constants, and the errors of the fit and of sources left out of it."""
    every = rows()
    on = [row for row in every if is_fitted(row)]
    found = fit(on)
    for family, field, value, count in constants(found, on):
        print(f"{family} {field} {value:.4g} ({count} rows)")
    left_out = left_out_errors(on)
    for group, error in errors(found.calibrations, every).items():
        other = left_out.get(group)
        unseen = f"left out {other.mean:5.1%} bias {other.bias:6.1%}" if other else "not fitted on"
        print(
            f"{group:62} {error.count:4} mean {error.mean:5.1%} bias {error.bias:6.1%} "
            f"worst {error.worst:6.1%}   {unseen}"
        )


if __name__ == "__main__":
    main()
