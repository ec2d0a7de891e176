"""What decides that two results speak of the same thing."""

from typing import Any

import pytest

from harness.base.collections import flatten
from harness.judge.identity import (
    MeasuredPlace,
    compared,
    differences,
    gpu_type,
    place_of,
    unrecorded,
    workload_label,
)
from harness.trial.result import TrialResult
from harness.trial.trial import world_size
from tests.harness.conftest import RAN

WORKLOAD = {
    "model": {"name": "toy"},
    "layout": {"tensor_model_parallel_size": 2, "data_parallel_size": 4},
    "recompute": "none",
    "device": "cuda",
}
FULL = {"software": {"torch": "2.9", "harness": "1"}, "gpus": [{"torch_name": "NVIDIA H200"}]}


def test_flat_names_labels_and_sizes() -> None:
    assert flatten({"a": {"b": [1, {"c": None}]}, "d": {}}) == {"a.b[0]": 1, "a.b[1].c": None}
    assert workload_label(WORKLOAD) == "toy/tp2pp1/none"
    assert workload_label({"model": {"name": "x"}}) == "x/tp1pp1"
    assert world_size(WORKLOAD) == 8


@pytest.mark.parametrize(
    ("name", "full"),
    [("NVIDIA H100 80GB HBM3", "H100-SXM-80GB"), ("H100", "H100-SXM-80GB"), ("TPU", "TPU")],
)
def test_gpus_have_one_name(name: str, full: str) -> None:
    assert gpu_type(name) == full


def result(environment: dict[str, Any], device: str = "cuda", *variables: str) -> TrialResult:
    trial = {"workload": WORKLOAD | {"device": device}, "variables": list(variables)}
    return TrialResult(**RAN | {"trial": trial, "environment": environment})


def test_places() -> None:
    assert place_of(result(FULL)).gpus == "8xH200-SXM-141GB"
    assert place_of(result({})).gpus == "8x?"
    assert place_of(result(FULL, "cpu")).gpus == "cpu"


def test_a_process_without_a_fingerprint_still_had_its_variables() -> None:
    allocator = "PYTORCH_CUDA_ALLOC_CONF=max_split_size_mb:64,backend=native"
    died = place_of(result({}, "cuda", allocator))
    name = "variables.PYTORCH_CUDA_ALLOC_CONF"
    assert died.environment == {name: "max_split_size_mb:64,backend=native"}
    other = place_of(result({}, "cuda", "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"))
    assert [one.name for one in differences(died, other)] == [name]
    seen = place_of(result(FULL | {"variables": {"NCCL_ALGO": "Ring"}}, "cuda", allocator))
    assert name not in seen.environment, "the fingerprint knows better than the plan"


def test_what_is_compared() -> None:
    named = "software.torch gpus[0].driver variables.NCCL_ALGO"
    others = "software.python software.harness git_commit gpus[0].sm_clock_mhz host.cpu"
    flat = dict.fromkeys(f"{others} host.name_hash {named}".split(), "1")
    assert set(compared(flat)) == set(named.split())


def test_a_complete_golden_also_misses_what_was_not_set() -> None:
    golden = MeasuredPlace(gpus="cpu", environment={"software.torch": "2"})
    new = MeasuredPlace(
        gpus="cpu", environment={"software.torch": "2", "variables.NCCL_ALGO": "Ring"}
    )
    assert [str(one) for one in differences(golden, new)] == ["variables.NCCL_ALGO  (none) -> Ring"]
    assert unrecorded(golden, new) == ()


def test_a_published_golden_is_silent_and_not_different() -> None:
    golden = MeasuredPlace(gpus="8xH200-SXM-141GB", environment={})
    new = place_of(result(FULL))
    assert differences(golden, new) == ()
    assert unrecorded(golden, new) == ("torch",)
    assert differences(MeasuredPlace(gpus="8xB200", environment={}), new)[0].name == "gpus"


def test_numbers_of_another_frameworks_log_are_another_environment() -> None:
    golden, new = (
        MeasuredPlace(gpus="8xH200", environment={"source.framework": name, "source.log": name})
        for name in ("megatron_lm", "torchtitan")
    )
    (found,) = differences(golden, new)
    assert str(found) == "source.framework  megatron_lm -> torchtitan"
