"""Calibration files: what they must hold, and which GPU gets which."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from advisor.base.configuration import ConfigGroup, config_names
from advisor.base.documents import read_yaml
from advisor.base.errors import UserError
from advisor.hardware.calibration import (
    EFFICIENCIES,
    NON_NEGATIVE,
    POSITIVE,
    SHARED_EFFICIENCIES,
    Calibration,
    OwnErrors,
    Provenance,
    load_calibration,
    read_calibration,
)
from advisor.hardware.catalogue import gpu_names, load_gpu


@pytest.fixture
def h100() -> Calibration:
    return load_calibration(load_gpu("H100"))


@pytest.mark.parametrize("name", gpu_names())
def test_every_gpu_has_a_calibration(name: str) -> None:
    gpu = load_gpu(name)
    assert load_calibration(gpu).name == (gpu.calibration or "datasheet")


def test_the_files_are_those_that_gpus_name() -> None:
    unfitted = ("datasheet", "datasheet_amd", "datasheet_pcie")
    assert config_names(ConfigGroup.CALIBRATION) == ("a100", "b200", *unfitted, "h100")


UNFITTED = {"L40S": 30} | dict.fromkeys(
    ("A10", "L4", "RTX4090", "RTX-PRO-6000", "MI300X", "MI355X"), 50
)


@pytest.mark.parametrize("gpu", UNFITTED)
def test_a_gpu_without_rows_says_that_it_is_uncalibrated(gpu: str) -> None:
    """The band is widest for GPUs that PCIe joins, and AMD's, with whose libraries nothing was
    fitted."""
    loaded = load_gpu(gpu)
    calibration = load_calibration(replace(loaded, calibration=None) if gpu == "L40S" else loaded)
    assert calibration.provenance is Provenance.DATASHEET
    assert calibration.fitted_on == ()
    assert calibration.summary() == f"uncalibrated, step time ±{UNFITTED[gpu]} %"


def test_constants_of_earlier_releases_are_read_into_those_of_this_one() -> None:
    path = Path(__file__).parents[3] / "results/measured/h200/calibrated/calibration/h200.yaml"
    values = read_yaml(path)
    assert (values["fp8_gemm_efficiency"], values["quantized_training_share"]) == (0.693, 0.977)
    assert read_calibration(values, path).fp8_gemm_efficiency == pytest.approx(0.693 * 0.977)


@pytest.mark.parametrize("gpu", ["A100", "H100", "B200"])
def test_a_fitted_one_names_its_rows_and_its_errors(gpu: str) -> None:
    calibration = load_calibration(load_gpu(gpu))
    assert calibration.provenance is Provenance.PUBLISHED
    assert calibration.fitted_on
    assert "worst" in calibration.fit_error
    assert "worst" in calibration.left_out_error
    assert calibration.summary().startswith("step time ±")
    assert calibration.summary(0.2) == "step time ±20 %"
    assert calibration.summary(0.6) == "step time -38 % to +60 %"
    unfitted = load_calibration(replace(load_gpu("H100"), calibration=None))
    assert calibration.step_time_error < unfitted.step_time_error


def test_a_class_of_jobs_has_a_band_of_its_own(h100: Calibration) -> None:
    none = replace(h100, own_errors=())
    known = replace(none, experts_step_time_error=0.3, eager_step_time_error=0.2)
    assert known.error_of("H100", experts=False, eager=False) == known.step_time_error
    assert known.error_of("H100", experts=True, eager=False) == 0.3
    assert known.error_of("H100", experts=False, eager=True) == 0.2
    assert known.error_of("H100", experts=True, eager=True) == 0.3
    alike = replace(none, experts_step_time_error=0.0, eager_step_time_error=0.0)
    assert alike.error_of("H100", experts=True, eager=True) == h100.step_time_error


def test_a_gpu_with_runs_of_its_own_has_its_own_band(h100: Calibration) -> None:
    own = OwnErrors(gpu="H100", step_time_error=0.05, experts_step_time_error=0.15)
    known = replace(h100, own_errors=(own,), step_time_error=0.2, eager_step_time_error=0.3)
    assert known.error_of("H100", experts=False, eager=False) == 0.05
    assert known.error_of("H100", experts=True, eager=False) == 0.15
    assert known.error_of("H100", experts=False, eager=True) == 0.3, "none of eager layers"
    assert known.error_of("H200", experts=False, eager=False) == 0.2
    assert known.has_runs_of("H100", experts=True, eager=False)
    assert not known.has_runs_of("H100", experts=False, eager=True)
    assert not known.has_runs_of("H200", experts=False, eager=False)
    assert replace(known, own_errors=()).has_runs_of("H200", experts=False, eager=False)


@pytest.mark.parametrize("field", [*EFFICIENCIES, *SHARED_EFFICIENCIES])
@pytest.mark.parametrize("value", [0.0, -0.1, 1.01])
def test_efficiencies_lie_between_0_and_1(h100: Calibration, field: str, value: float) -> None:
    with pytest.raises(UserError) as error:
        replace(h100, **{field: value})
    assert error.value.field == f"calibration.{field}"


@pytest.mark.parametrize("field", POSITIVE)
def test_rates_are_positive(h100: Calibration, field: str) -> None:
    with pytest.raises(UserError):
        replace(h100, **{field: 0.0})


@pytest.mark.parametrize("field", NON_NEGATIVE)
def test_times_are_not_negative(h100: Calibration, field: str) -> None:
    assert getattr(replace(h100, **{field: 0.0}), field) == 0.0
    with pytest.raises(UserError):
        replace(h100, **{field: -1e-9})
