"""Metrics as shown, and what the steps of a result become."""

from statistics import median
from typing import Any

import pytest
from msgspec.structs import replace

from harness.judge.metrics import (
    ALLOCATED,
    ENERGY,
    METRICS,
    STEP_TIME,
    TFLOPS,
    TOKENS,
    find_metric,
    series_of,
)
from harness.judge.stats import Noise
from harness.report.facts import numbers_of
from harness.trial.result import GpuLoad
from harness.trial.trial import Device


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        (TFLOPS, 612.44, "612.4"),
        (TFLOPS, 0.0281, "0.0281"),
        (STEP_TIME, 0.21834, "0.2183 s"),
        (ALLOCATED, 3 * 2**30, "3.00 GiB"),
        (f"{ALLOCATED}.stage3", 3 * 2**20, "3.00 MiB"),
    ],
)
def test_values_have_units(name: str, value: float, shown: str) -> None:
    metric = find_metric(name)
    assert metric.name == name
    assert metric.show(value) == shown


def test_what_is_assumed_of_noise() -> None:
    assert METRICS[STEP_TIME].assumed_noise(Device.CUDA) == Noise(process=0.01, session=0.02)
    assert METRICS[STEP_TIME].assumed_noise(Device.CPU) == Noise(process=0.05, session=0.02)
    assert METRICS[ALLOCATED].assumed_noise(Device.CPU) == Noise(process=0.001)
    assert find_metric("loss") is None


def test_steps_are_counted_with_the_warm_up(make_result: Any) -> None:
    series = series_of(make_result(warmup=3))
    assert list(series[STEP_TIME].values) == [4, 5, 6, 7]
    assert series[ALLOCATED].values == {7: 10 * 2**30}  # the fullest rank
    assert "peak_active_bytes" not in series


def test_without_flops_there_is_no_throughput(make_result: Any) -> None:
    result = replace(make_result(), flops=None, times=None)
    assert TFLOPS not in series_of(result)
    assert list(series_of(result)[ALLOCATED].values) == [1]


def test_energy_is_power_over_the_rate_of_tokens(make_result: Any) -> None:
    """By the watts that were read while the steps ran; without them there is none."""
    result = replace(make_result(warmup=3), load=GpuLoad(power_watts=600.0))
    series = series_of(result)
    assert list(series[ENERGY].values) == list(series[TOKENS].values) == [4, 5, 6, 7]
    for joules, rate in zip(series[ENERGY].finite, series[TOKENS].finite, strict=True):
        assert joules * rate == pytest.approx(600.0, rel=1e-6)
    assert numbers_of(result, None).joules_per_token == pytest.approx(
        median(series[ENERGY].finite), rel=1e-6
    )
    for load in (None, GpuLoad()):
        assert ENERGY not in series_of(replace(result, load=load))
        assert numbers_of(replace(result, load=load), None).joules_per_token is None
    metric = find_metric(ENERGY)
    assert (metric.timing, metric.show(0.0421)) == (True, "0.0421")
