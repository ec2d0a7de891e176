"""`--format json`: figures and parts, and that it is strict JSON; its keys are the schema's."""

import json
import sys
from types import ModuleType
from typing import Any

import pytest
from msgspec.structs import replace

from advisor.answer.answer import Answer
from advisor.base.units import GIB
from advisor.models.layer_kind import FeedForward, LayerKind, Mixer
from advisor.report.plain_advice import plain_advice


def loaded(advice: Answer, **options: Any) -> dict[str, Any]:
    """The report read back; constants that are not JSON (NaN, Infinity) are refused."""

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    report: dict[str, Any] = json.loads(
        plain_advice(advice, **options).to_json(), parse_constant=refuse
    )
    return report


@pytest.fixture(params=["tight", "roomy", "hopeless", "layouts"])
def report(request: pytest.FixtureRequest) -> dict[str, Any]:
    return loaded(request.getfixturevalue(request.param))


def test_the_jobs_own_flags_are_of_the_best(report: dict[str, Any]) -> None:
    assert report["job_flags"].keys() == report["candidates"][0]["flags"].keys()
    assert "--tensor-model-parallel-size 4 " in report["job_flags"]["megatron_lm"]


def test_totals_equal_their_parts(report: dict[str, Any]) -> None:
    for candidate in report["candidates"]:
        assert sum(candidate["time_seconds"].values()) == candidate["step_time_seconds"]
        peaks = {stage["stage"]: stage["peak_reserved_bytes"] for stage in candidate["stages"]}
        assert peaks[candidate["peak_stage"]] == candidate["peak_reserved_bytes"]
        assert max(peaks.values()) == candidate["peak_reserved_bytes"]
        for stage in candidate["stages"]:
            assert sum(stage["memory_bytes"].values()) == stage["peak_reserved_bytes"]


def test_values(tight: Answer) -> None:
    report = loaded(tight)
    job, best = report["job"], report["candidates"][0]
    assert job["model"]["num_parameters"] == 70_553_706_496
    assert job["gpus"]["type"] == "H100-SXM-80GB"
    assert (job["gpus"]["count"], job["gpus"]["memory_bytes"]) == (32, 80 * GIB)
    assert (job["precision"], job["framework"], job["seq_length"]) == ("bf16", "megatron_lm", 4096)
    assert report["calibration"]["provenance"] == "published"
    assert {name: value for name, value in best["recompute"].items() if value} == {
        **{"spec": "selective:mlp", "granularity": "selective", "offload_fraction": 1.0},
        **{"modules": ["mlp"], "effective_modules": ["mlp"]},
    }
    assert best["peak_reserved_bytes"] == 66 * GIB
    assert best["peak_allocated_bytes"] == 63 * GIB
    assert best["step_time_seconds"] == 9.3
    assert best["recompute_overhead"] == pytest.approx(0.1625)
    assert best["flags"]["megatron_lm"].endswith("--recompute-modules mlp")
    assert report["candidates"][4]["note"].startswith("buys nothing")


def test_what_a_layer_keeps_follows_from_its_kind(make_advice, make_evaluation) -> None:
    """A hybrid has layers of a mixer alone, and none that is dense."""
    mamba = LayerKind(mixer=Mixer.MAMBA, feed_forward=FeedForward.NONE)
    experts = LayerKind(mixer=Mixer.NONE, feed_forward=FeedForward.MOE)
    unrotated = LayerKind(mixer=Mixer.NONE, feed_forward=FeedForward.MOE, rotary=False)
    saved = {mamba: 3, experts: 5, unrotated: 7}
    one = make_evaluation("none", 10, saved=saved)
    (candidate,) = json.loads(plain_advice(make_advice(one)).to_json())["candidates"]
    assert candidate["saved_bytes_per_layer"] == {"dense": None, "moe": 5, "mamba": 3}


def test_rates_are_of_the_whole_job(tight: Answer) -> None:
    """32 sequences of 4,096 tokens in 9.3 s on 32 GPUs."""
    best = loaded(tight, price_per_gpu_hour=2.0)["candidates"][0]
    assert best["tokens_per_second"] == pytest.approx(32 * 4096 / 9.3)
    hours = 1e12 * 9.3 / 4096 / 3600
    assert best["gpu_hours_per_trillion_tokens"] == pytest.approx(hours)
    assert best["price_per_trillion_tokens"] == pytest.approx(2 * hours)


def test_the_front_alone(tight: Answer) -> None:
    ranks = [one["rank"] for one in loaded(tight, front=True)["candidates"]]
    assert ranks == [1, 3, 4]
    assert [one["rank"] for one in loaded(tight, front=True, top=2)["candidates"]] == [1, 3]


def test_what_json_cannot_say_is_null(make_advice, make_evaluation) -> None:
    odd = {"fit_probability": float("nan"), "step_time_high_seconds": float("inf")}
    candidate = loaded(make_advice(replace(make_evaluation("none", 10), **odd)))["candidates"][0]
    assert [candidate[name] for name in odd] == [None, None]


def test_top_and_an_answer_without_candidates(tight: Answer) -> None:
    assert len(loaded(tight)["candidates"]) == 5
    assert len(loaded(tight, top=2)["candidates"]) == 2
    empty = loaded(replace(tight, candidates=()))
    assert empty["candidates"] == []
    assert empty["job"]["model_flops_per_step"] is None
    assert empty["fits"] is False


def test_explain(tight: Answer, explained: tuple, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = ModuleType("advisor.search.explain")
    lines.memory_lines = lambda evaluation: explained[1]
    lines.time_lines = lambda evaluation: explained[2]
    monkeypatch.setitem(sys.modules, "advisor.search.explain", lines)
    assert loaded(tight)["explain"] is None
    explain = loaded(tight, explained=1)["explain"]
    assert explain["rank"] == 1
    assert sum(line["num_bytes"] for line in explain["memory"]) == 66 * GIB
    assert sum(line["seconds"] for line in explain["time"]) == pytest.approx(9.3)
