"""The policy on a SIMULATED device, against Optuna's TPE without our prior; all 50 seeds and the
figures of docs/sweeps.md are tests/benchmarks/bench_sweep.py's."""

from statistics import mean

import pytest

pytest.importorskip("hydra")
pytest.importorskip("optuna")
pytest.importorskip("scipy")

from tests.harness.sweeps.simulated import (
    ERRORS,
    LAYOUTS,
    ONE_GPU,
    SimulatedDevice,
    expected_of,
    search_with_tpe,
    sweep,
)

SEEDS = range(10)


@pytest.mark.parametrize("error", ["one bias", "as measured", "by group"])
def test_the_best_is_found_in_at_most_half_of_the_trials_of_tpe(error: str) -> None:
    expected, room = expected_of(*ONE_GPU)
    devices = [SimulatedDevice(expected, room, ERRORS[error], seed) for seed in SEEDS]
    swept = [sweep(expected, device) for device in devices]
    theirs = [
        search_with_tpe(expected, SimulatedDevice(expected, room, ERRORS[error], seed), seed, 60)
        for seed in SEEDS
    ]
    ours = [one.trials if one.found is None else one.found for one in swept]
    assert mean(ours) <= 0.5 * mean(theirs)
    assert mean(one.regret for one in swept) <= 0.01, "of the point that led in the end"


def test_the_advisor_s_first_choice_where_the_model_is_off_by_ten_percent_alike() -> None:
    expected, room = expected_of(*LAYOUTS)
    for seed in SEEDS:
        device = SimulatedDevice(expected, room, ERRORS["one bias"], seed)
        assert device.regret(device.legal[0]) == pytest.approx(0.0, abs=1e-9), "reorders none"


def test_a_sweep_of_many_layouts_is_short() -> None:
    expected, room = expected_of(*LAYOUTS)
    device = SimulatedDevice(expected, room, ERRORS["by group"], seed=1)
    swept = sweep(expected, device)
    assert len(device.legal) > 500
    assert swept.trials < 30
    assert swept.regret <= 0.02
