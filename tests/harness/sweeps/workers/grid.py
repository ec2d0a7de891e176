"""A space of as many points as wanted, without a job."""

from types import SimpleNamespace

from msgspec.structs import replace

from harness.sweeps.space import Point, Space
from harness.trial.trial import PlannedSetting
from tests.harness.conftest import PREDICTION, TRIAL, WORKLOAD

_SETTINGS = 25


def grid(points: int) -> Space:
    """Points of so many micro batches and settings, ranked in their order."""
    planned = {}
    for number in range(points):
        size, setting = 1 + number // _SETTINGS, f"full:block:{number % _SETTINGS + 1}"
        workload = replace(WORKLOAD, micro_batch_size=size, recompute=setting)
        point = Point(layout="dp1", micro_batch_size=size, recompute=setting)
        trial = replace(TRIAL, workload=workload, prediction=PREDICTION)
        planned[point] = PlannedSetting(trial=trial, rank=number + 1, label=point.label)
    config = SimpleNamespace(memory_budget_bytes=None)
    return Space(planned, SimpleNamespace(job=SimpleNamespace(config=config)))
