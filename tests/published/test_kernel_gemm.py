"""GEMMs by shape against published and measured kernels.

Bars: what the fit reached when it was written, a fifth added. Two tests refit, and need scipy.
"""

from collections import Counter
from statistics import fmean

import pytest

from advisor.base.dtypes import Precision
from advisor.hardware.calibration import Calibration, load_calibration
from advisor.time.machine import gemm_rates, machine
from advisor.time.roofline import cast_seconds
from research.kernels.gemm_fit import (
    FAMILIES,
    alone,
    constants,
    errors,
    fit,
    is_fitted,
    left_out_errors,
    rows,
)
from research.kernels.gemm_rows import GemmRow, measured_rows, published_rows


@pytest.fixture(scope="module")
def every() -> tuple[GemmRow, ...]:
    return rows()


@pytest.fixture(scope="module")
def stored(every: tuple[GemmRow, ...]) -> dict[str, Calibration]:
    """configs/calibration, without what whole training steps fall short of kernels."""
    calibrations: dict[str, Calibration] = {}
    for row in every:
        calibration = load_calibration(row.gpu)
        if calibration.name in FAMILIES:
            calibrations[row.family] = alone(calibration)
    return calibrations


def test_rows_are_read() -> None:
    published = published_rows()
    assert len(published) == 382
    families = Counter(row.family for row in published)
    assert families == {"a100": 12, "h100": 139, "b200": 231}
    assert sum(row.grouped for row in published) == 26
    assert len(measured_rows()) == 361
    assert all(1e-6 < row.seconds < 0.2 for row in rows())


def test_no_published_rate_exceeds_the_peak() -> None:
    for row in published_rows():
        passes = 3 if row.passes == "all" else 1
        flops = passes * sum(gemm.flops for gemm in row.gemms)
        assert flops / row.seconds < row.gpu.peak_flops(row.precision)


def test_a_row_in_full() -> None:
    (row,) = (r for r in published_rows() if r.grouped and r.passes == "weight_gradient")
    (gemm,) = row.gemms
    assert (gemm.m, gemm.n, gemm.k, gemm.groups) == (131072, 2048, 7168, 8)
    assert row.seconds == pytest.approx(2103.3e-6)
    assert (row.gpu.name, row.precision, row.sustained) == ("B200-SXM-180GB", Precision.MXFP8, True)


def test_stored_constants_are_those_of_the_fit(every, stored) -> None:
    fitted_on = [row for row in every if is_fitted(row)]
    for family, field, value, _ in constants(fit(fitted_on), fitted_on):
        kept = getattr(stored[family], field)
        assert value == pytest.approx(kept, rel=0.02), (family, field)


def test_kernels_are_predicted(every: tuple[GemmRow, ...], stored: dict[str, Calibration]) -> None:
    """Mean over the rows of each family."""
    for family, bar in (("a100", 0.08), ("h100", 0.09), ("b200", 0.08)):
        of = [row for row in every if row.family == family and is_fitted(row)]
        found = errors(stored, of).values()
        assert sum(e.mean * e.count for e in found) / len(of) < bar, family
        assert abs(sum(e.bias * e.count for e in found) / len(of)) < 0.045, family


def test_sources_left_out_are_predicted(every: tuple[GemmRow, ...]) -> None:
    found = left_out_errors([row for row in every if is_fitted(row)])
    dense = [e for group, e in found.items() if "grouped" not in group]
    assert fmean(e.mean for e in dense) < 0.12
    assert sum(e.mean * e.count for e in dense) / sum(e.count for e in dense) < 0.1
    grouped = [e for group, e in found.items() if "grouped" in group]
    assert fmean(e.mean for e in grouped) < 0.13


def test_casts_take_what_transformer_engine_measured() -> None:
    """The forward of a block with its casts less that without, B300, within a quarter. Delayed
    scaling is no row to judge by: there the GEMMs alone took longer than with the casts."""
    alone = {
        row.precision: row.seconds
        for row in published_rows()
        if len(row.gemms) > 1 and row.passes == "forward"
    }
    for row in published_rows("casts"):
        if row.precision is Precision.FP8_DELAYED:
            continue
        rates = machine(row.gpu, load_calibration(row.gpu), row.precision)
        elements = sum(gemm.m * gemm.k + gemm.n * gemm.k for gemm in row.gemms)
        predicted = cast_seconds(elements, 2 * len(row.gemms), rates)
        assert predicted == pytest.approx(row.seconds - alone[row.precision], rel=0.25)
    assert gemm_rates(row.gpu, load_calibration(row.gpu), Precision.NVFP4).operand_bytes < 1
