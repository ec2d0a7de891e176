"""The fit itself: priors hold where times are silent, and give way where they speak."""

from pathlib import Path

import pytest
from msgspec.structs import replace

pytest.importorskip("scipy", reason="refitting needs scipy (extra fit)")

from advisor.hardware.calibration import EFFICIENCIES, Calibration
from harness.calibration.fit import PRIORS, calibration_at, fit, left_out, rounded
from harness.calibration.published import SUBJECTS, Report, report, yaml_text
from harness.calibration.rows.dgxc import dgxc_targets
from harness.calibration.rows.korthikanti import korthikanti_targets
from harness.calibration.rows.simumax import simumax_targets
from harness.calibration.targets import Quantity, Target, predict, relative_error

TYPICAL = calibration_at("typical", [0.0] * len(PRIORS))


def _at(**shifts: float) -> Calibration:
    return calibration_at("moved", [shifts.get(field, 0.0) for field in PRIORS])


def _pretend(targets: tuple[Target, ...], calibration: Calibration) -> tuple[Target, ...]:
    """The same jobs, as if `calibration` were true."""
    return tuple(replace(target, seconds=predict(target, calibration)) for target in targets)


def test_without_shifts_a_calibration_is_its_priors() -> None:
    for field, prior in PRIORS.items():
        expected = prior.value * (0.65 if field == "fp8_gemm_efficiency" else 1.0)
        assert getattr(TYPICAL, field) == pytest.approx(expected)


def test_a_shift_is_a_factor_and_fp8_moves_with_16_bit() -> None:
    moved = _at(gemm_efficiency=-1.0)
    ratio = moved.gemm_efficiency / TYPICAL.gemm_efficiency
    assert ratio == pytest.approx(2.718281828**-0.2)
    assert moved.fp8_gemm_efficiency / TYPICAL.fp8_gemm_efficiency == pytest.approx(ratio)
    assert moved.bandwidth_efficiency == TYPICAL.bandwidth_efficiency


def test_efficiencies_end_at_one() -> None:
    moved = calibration_at("far", [9.0] * len(PRIORS))
    assert [getattr(moved, field) for field in EFFICIENCIES] == [1.0] * len(EFFICIENCIES)
    assert moved.step_seconds > 1.0


def test_rounding_keeps_three_digits() -> None:
    third = replace(TYPICAL, gemm_efficiency=1 / 3, kernel_seconds=1.23456e-6)
    assert rounded(third).gemm_efficiency == 0.333
    assert rounded(third).kernel_seconds == 1.23e-6


def test_times_that_the_priors_explain_move_nothing() -> None:
    targets = _pretend(simumax_targets(), TYPICAL)
    fitted = fit("b200", targets).calibration
    for field in PRIORS:
        assert getattr(fitted, field) == pytest.approx(getattr(TYPICAL, field))


def test_times_that_speak_of_gemms_move_gemms() -> None:
    truth = _at(gemm_efficiency=-1.5)
    done = fit("b200", _pretend(simumax_targets(), truth))
    assert done.calibration.gemm_efficiency == pytest.approx(truth.gemm_efficiency, rel=0.05)
    assert done.widths["gemm_efficiency"] < 0.3
    assert done.widths["internode_efficiency"] == pytest.approx(1.0, abs=0.01)
    assert done.widths["fp8_gemm_efficiency"] == pytest.approx(1.0, abs=0.01)


def test_a_family_weighs_as_one_row() -> None:
    targets = [one for one in dgxc_targets() if one.job.model.num_moe_experts is None]
    once = tuple({target.family: target for target in targets}.values())
    thrice = tuple(replace(target) for target in once for _ in range(3))
    one, three = fit("h100", once).calibration, fit("h100", thrice).calibration
    assert one.gemm_efficiency == pytest.approx(three.gemm_efficiency, rel=1e-4)


def test_left_out_errors_are_those_of_a_fit_without_the_group() -> None:
    targets = korthikanti_targets()
    errors = dict(left_out(targets))
    assert set(errors) == set(targets)
    seen = [target for target in targets if target.group != "Table 4"]
    calibration = fit("left out", seen).calibration
    for target in targets:
        if target.group == "Table 4":
            assert errors[target] == pytest.approx(relative_error(target, calibration))


def test_the_layer_is_part_of_the_step() -> None:
    layer, step = (
        next(t for t in korthikanti_targets() if t.quantity is quantity and "full" in t.name)
        for quantity in (Quantity.LAYER, Quantity.STEP)
    )
    assert 48 * predict(layer, TYPICAL) < predict(step, TYPICAL) < 54 * predict(layer, TYPICAL)


@pytest.fixture(scope="module")
def a100_report() -> Report:
    return report(SUBJECTS[0])


def test_a_file_holds_the_calibration_and_says_where_it_comes_from(
    a100_report: Report, tmp_path: Path
) -> None:
    import yaml

    text = yaml_text(a100_report)
    values = yaml.safe_load(text)
    for field in PRIORS:
        assert values[field] == getattr(a100_report.calibration, field)
    assert values["fitted_on"] == list(a100_report.calibration.fitted_on)
    assert "prior 0.65 ±20%" in text
    assert "/" not in values["name"]


def test_the_band_is_no_narrower_than_software_versions_differ(a100_report: Report) -> None:
    assert max(map(abs, a100_report.left_out_errors)) < 0.05
    assert a100_report.step_time_error == 0.10


def test_the_band_is_the_quantile_of_left_out_errors(a100_report: Report) -> None:
    errors = tuple(0.01 * n for n in range(1, 21))
    wide = Report(a100_report.subject, a100_report.targets, a100_report.fit, errors, errors)
    assert wide.step_time_error == pytest.approx(0.18)
