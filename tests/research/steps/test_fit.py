"""The fit itself: priors hold where times are silent, and give way where they speak."""

import pytest
from msgspec.structs import replace

from advisor.hardware.calibration import Calibration
from research.kernels.least_squares import Fit
from research.rows.dgxc import dgxc_targets
from research.rows.korthikanti import korthikanti_targets
from research.rows.simumax import simumax_targets
from research.rows.targets import Quantity, Target, predict
from research.steps.constants import CONSTANTS, GENERATIONS, prior_calibration
from research.steps.fit import errors, fit
from research.steps.published import shape

PRIORS = {name: prior_calibration(name) for name in GENERATIONS}


@pytest.fixture(autouse=True)
def _steps_alone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing that was measured apart, except where a test is about that."""
    if "measured_apart" not in request.node.name:
        monkeypatch.setattr("research.steps.fit.ISOLATED", ())


def test_what_was_measured_apart_counts_as_a_row() -> None:
    done = fit(pretend(simumax_targets(), PRIORS))
    assert done.shift("grace_slowdown") < 0.0
    assert done.widths["grace_slowdown"] < 1.0


def moved(digits: int | None = None, **shifts: float) -> dict[str, Calibration]:
    widths = tuple(shifts.get(one.name, 0.0) for one in CONSTANTS)
    return Fit(constants=CONSTANTS, shifts=widths, base=PRIORS, digits=digits).calibrations


def pretend(
    targets: tuple[Target, ...], calibrations: dict[str, Calibration]
) -> tuple[Target, ...]:
    """The same jobs, as if `calibrations` were true."""
    return tuple(
        replace(target, seconds=predict(target, calibrations[target.job.gpu.calibration or ""]))
        for target in targets
    )


def test_without_shifts_a_calibration_is_its_priors() -> None:
    for calibration in moved().values():
        for constant in CONSTANTS:
            assert getattr(calibration, constant.field) == pytest.approx(constant.value)


def test_a_shift_is_a_factor_of_every_calibration() -> None:
    for calibration in moved(hidden_fraction=1.0).values():
        assert calibration.hidden_fraction == pytest.approx(0.6 * 2.718281828**0.4)


def test_shares_end_at_one() -> None:
    far = moved(**{one.name: 9.0 for one in CONSTANTS})["b200"]
    assert far.gemm_training_share == far.hidden_fraction == 1.0
    assert far.grace_slowdown > 1.0


def test_rounding_keeps_three_digits() -> None:
    shifted = moved(3, hidden_fraction=-1.0, kernel_seconds=1.0)["b200"]
    assert (shifted.hidden_fraction, shifted.kernel_seconds) == (0.402, 5.4e-6)


def test_times_that_the_priors_explain_move_nothing() -> None:
    done = fit(pretend(simumax_targets(), PRIORS), {"model": shape})
    assert all(shift == pytest.approx(0.0, abs=1e-6) for shift in done.shifts)
    assert done.left_out["model"] == pytest.approx([0.0] * len(simumax_targets()), abs=1e-6)


def test_times_that_speak_of_gemms_move_gemms() -> None:
    truth = moved(gemm_training_share=-1.5)
    done = fit(pretend(simumax_targets(), truth))
    found = done.calibrations["b200"].gemm_training_share
    assert found == pytest.approx(truth["b200"].gemm_training_share, rel=0.05)
    assert done.widths["gemm_training_share"] < 0.5
    assert done.widths["grace_slowdown"] == pytest.approx(1.0, abs=0.01)


def test_a_row_that_nothing_explains_pulls_little() -> None:
    targets = pretend(simumax_targets(), PRIORS)
    first, *others = targets
    odd = (replace(first, seconds=10 * first.seconds), *others)
    shift = fit(odd).shift("gemm_training_share")
    assert abs(shift) < 0.5


def test_a_family_weighs_as_one_row() -> None:
    targets = [one for one in dgxc_targets() if one.job.model.num_moe_experts is None]
    once = tuple({target.family: target for target in targets}.values())
    thrice = tuple(replace(target) for target in once for _ in range(3))
    one, three = fit(once).calibrations["h100"], fit(thrice).calibrations["h100"]
    three_digits = 1.1e-3
    assert one.gemm_training_share == pytest.approx(three.gemm_training_share, abs=three_digits)


def test_left_out_errors_are_those_of_a_fit_without_the_group() -> None:
    """To first order: the slopes are those of the whole fit."""
    targets = korthikanti_targets()
    done = fit(targets, {"table": lambda target: target.group})
    seen = [target for target in targets if target.group != "Table 4"]
    unseen = [target for target in targets if target.group == "Table 4"]
    again = list(errors(unseen, fit(seen).calibrations))
    first_order = [
        miss
        for target, miss in zip(targets, done.left_out["table"], strict=True)
        if target.group == "Table 4"
    ]
    assert first_order == pytest.approx(again, abs=0.02)


def test_the_layer_is_part_of_the_step() -> None:
    layer, step = (
        next(t for t in korthikanti_targets() if t.quantity is quantity and "full" in t.name)
        for quantity in (Quantity.LAYER, Quantity.STEP)
    )
    one, whole = predict(layer, PRIORS["a100"]), predict(step, PRIORS["a100"])
    assert 48 * one < whole < 56 * one
