"""Small spaces of the tiny model, and outcomes without running anything."""

from collections.abc import Callable

import pytest

pytest.importorskip("hydra")
pytest.importorskip("optuna")

from harness.planner.device import Machine
from harness.planner.launcher_options import SweepOptions
from harness.planner.run_request import compose_sweep
from harness.sweeps.history import Outcome
from harness.sweeps.space import Point, Space, make_space
from harness.trial.result import TrialStatus
from harness.trial.trial import Device

MakeSpace = Callable[..., tuple[Space, SweepOptions]]


@pytest.fixture
def space_of() -> MakeSpace:
    """The space and the options of overrides, on the CPU."""

    def make(*overrides: str) -> tuple[Space, SweepOptions]:
        config, options = compose_sweep(["experiment=tiny_cpu", *overrides])
        return make_space(config, Machine(device=Device.CPU), options), options

    return make


def measured(point: Point, seconds: float = 0.01, num_bytes: int = 1000) -> Outcome:
    return Outcome(
        name=point.label,
        status=TrialStatus.OK,
        step_seconds=seconds,
        peak_bytes=num_bytes,
        steps=(seconds,) * 5,
        wall_seconds=60.0,
    )
