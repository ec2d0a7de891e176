"""Probes of rates: every figure that is predicted is measured under the same name."""

import time
from types import SimpleNamespace

import pytest

from harness.calibration.bench.kernel_runs import Inputs
from harness.trial.trial import Device
from research.kernels import timings as kernels
from research.kernels.timings import Timings
from research.probes import engine_rates, expert_rates, rates


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> Timings:
    """Timings that run each call once, on a CPU, and say that it took a second."""

    def time_call(call, *_: object, **__: object) -> SimpleNamespace:
        call(0)
        return SimpleNamespace(seconds=1.0, spread=0.0)

    monkeypatch.setattr(kernels, "time_call", time_call)
    monkeypatch.setattr(kernels, "time_sustained", lambda *a, **b: (time_call(*a), {}))
    monkeypatch.setattr(kernels, "as_dict", dict)
    monkeypatch.setattr(kernels, "_MOST_SETS", 1)
    ends = time.monotonic() + 100
    return Timings(device=Device.CPU, inputs=Inputs(Device.CPU), ends=ends, found={})


def seconds(figures) -> set[str]:
    return {name for name in figures if name.endswith("_seconds")}


def test_gemms_are_named_alike(recorded: Timings) -> None:
    rates._gemms(recorded, tiny=True)
    rates._grouped(recorded, tiny=True)
    predicted = rates._predict_gemms(tiny=True) | rates._predict_grouped(tiny=True)
    assert seconds(predicted) <= seconds(recorded.found)
    assert "fp8_held_16384x16384x16384" in rates._predict_gemms(tiny=False)["published_tflops"]
    assert seconds(engine_rates._predict_dense(tiny=True))
    assert seconds(engine_rates._predict_grouped(tiny=True))


def test_tokens_reach_their_experts(recorded: Timings) -> None:
    """By torch's kernels; the fused ones need Transformer Engine, and say so."""
    pytest.importorskip("megatron.core")
    expert_rates._tokens(recorded, tiny=True)
    predicted = seconds(expert_rates._predict(tiny=True))
    assert {n for n in predicted if "unfused" in n and "busy" not in n} <= seconds(recorded.found)
    assert all(".fused." in name for name in recorded.found.get("errors", {}))


def test_what_fails_takes_nothing_with_it(recorded: Timings) -> None:
    def fail() -> None:
        raise RuntimeError("no kernel")

    recorded.time("bad", lambda: (), fail, 1)
    recorded.time("good", lambda: (), lambda: None, 1)
    assert recorded.found["errors"] == {"bad": "RuntimeError: no kernel"}
    assert recorded.found["good_seconds"] == 1.0
