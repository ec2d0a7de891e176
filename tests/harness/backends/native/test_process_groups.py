"""Two gloo processes have the losses and gradients of one, and keep what is predicted."""

import json
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

pytest.importorskip("torch")

from ranks import CASES, PIPELINE, Outcome, exact, run_all

from advisor.job.layout import ParallelLayout
from harness.backends.native.predict import predict_layer
from harness.trial.trial import Workload
from tests.harness.drive import two_ranks

Ranks = list[dict[str, dict[str, Any]]]


@pytest.fixture(scope="module")
def ranks() -> Ranks:
    """What both processes saw, all cases in one start of the second."""
    first, second = two_ranks(str(Path(__file__).with_name("ranks.py")), first=run_all)
    outcomes = [first, json.loads(second)]
    assert [one.keys() for one in outcomes] == [CASES.keys()] * 2
    return outcomes


@lru_cache(maxsize=16)
def _exact(workload: Workload) -> Outcome:
    return exact(workload)


def _alone(workload: Workload) -> Outcome:
    return _exact(replace(workload, layout=ParallelLayout(), recompute="none"))


@pytest.mark.parametrize("name", CASES)
def test_losses_are_those_of_one_process(ranks: Ranks, name: str) -> None:
    expected = _alone(CASES[name]).losses
    for rank in ranks:
        assert rank[name]["losses"] == pytest.approx(expected, abs=2e-6)  # fp32 sums in parts


@pytest.mark.parametrize("name", CASES)
def test_gradients_are_those_of_one_process(ranks: Ranks, name: str) -> None:
    expected = _alone(CASES[name]).gradients
    seen: dict[str, float] = {}
    for rank in ranks:
        for key, value in rank[name]["gradients"].items():
            if key in rank[name]["cut"]:
                seen[key] = seen.get(key, 0.0) + value
            else:
                seen.setdefault(key, value)
                assert value == pytest.approx(seen[key], rel=1e-6), f"{key} differs between ranks"
    # fp32 sums in parts: squares of norms agree to about 1e-5
    assert seen == {key: pytest.approx(value, rel=1e-4) for key, value in expected.items()}


@pytest.mark.parametrize("name", CASES)
def test_counts_are_predicted(ranks: Ranks, name: str) -> None:
    for rank in ranks:
        saved, replayed = (
            rank[name][key] for key in ("saved_bytes_per_layer", "replayed_flops_per_layer")
        )
        assert saved == predict_layer(CASES[name])[0]
        assert replayed == predict_layer(CASES[name])[1]


def test_phases_of_a_step(ranks: Ranks) -> None:
    forward, backward, end = "forward", "backward", "optimizer"
    name = next(name for name, one in CASES.items() if one.layout == PIPELINE)
    first, last = (rank[name]["phases"] for rank in ranks)
    assert first == [forward, forward, backward, backward, end]
    assert last == [forward, backward, forward, backward, end]
