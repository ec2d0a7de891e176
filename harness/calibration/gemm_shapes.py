"""GEMM efficiencies of a measured calibration, by the advisor's own model of GEMMs.

What tiles, waves and traffic take is no part of an efficiency: advisor.time.gemm adds it by shape.
"""

from collections.abc import Sequence
from statistics import median
from typing import Final

from msgspec.structs import replace

from advisor.base.dtypes import Precision
from advisor.hardware.calibration import Calibration
from advisor.hardware.gpu import Gpu
from advisor.time.gemm import GemmRates, matmul_seconds
from advisor.time.machine import gemm_rates
from harness.calibration.bench.cases import Kind, Sample
from harness.calibration.efficiencies import large

_FIELDS: Final = {
    "gemm_efficiency": (Kind.GEMM, Precision.BF16),
    "fp8_gemm_efficiency": (Kind.GEMM_FP8, Precision.FP8_CURRENT),
}
_ROUNDS: Final = 5
"""Times are nearly inverse to an efficiency: each round brings the median within a tenth of what
was left."""


def by_shape(
    calibration: Calibration, gpu: Gpu, samples: Sequence[Sample], kernel_seconds: float = 0.0
) -> dict[str, float]:
    """Efficiencies by field at which half of the large GEMMs of `samples` are predicted to take
    longer than measured, and half shorter; nothing of what was not timed. kernel_seconds: fixed
    cost of a kernel, beside which large ones are large."""
    found = {}
    for field, (kind, precision) in _FIELDS.items():
        of_kind = [sample for sample in samples if sample.case.kind is kind]
        timed = large(of_kind, kernel=kernel_seconds)
        if timed:
            found[field] = _efficiency(calibration, gpu, timed, field, precision)
    return found


def _efficiency(
    calibration: Calibration,
    gpu: Gpu,
    timed: Sequence[Sample],
    field: str,
    precision: Precision,
) -> float:
    alone = replace(calibration, gemm_training_share=1.0, quantized_training_share=1.0)
    value: float = getattr(alone, field)
    for _ in range(_ROUNDS):
        rates = gemm_rates(gpu, replace(alone, **{field: value}), precision)
        value = min(1.0, value * median(_longer(sample, rates) for sample in timed))
    return value


def _longer(sample: Sample, rates: GemmRates) -> float:
    """Predicted over measured."""
    m, n, k = sample.case.sizes
    return matmul_seconds(rates, m, n, k) / sample.seconds
