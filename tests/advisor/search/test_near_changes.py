"""Jobs that differ in one thing: which there are, and that they are as they are named."""

from typing import Any

import pytest
from msgspec.structs import replace

from advisor.frameworks.part_types import SEARCHED
from advisor.job.job import Job
from advisor.models.options import CpCommType
from advisor.request.request import Request
from advisor.request.resolve import resolve
from advisor.search.near_changes import neighbours
from tests.advisor.jobs import parallel
from tests.advisor.search.small_jobs import small

DEGREES = {
    "TP": "tensor_model_parallel_size",
    "CP": "context_parallel_size",
    "PP": "pipeline_model_parallel_size",
    "VPP": "virtual_pipeline_model_parallel_size",
    "EP": "expert_model_parallel_size",
    "DP": "data_parallel_size",
}


def job_of(pp: int = 2, vpp: int = 2, size: int = 2, layers: int = 8, **changes: Any) -> Job:
    """Mixtral on TP 2, CP 2, EP 2 and PP 2 of 16 GPUs: DP 2, four microbatches of 2 sequences."""
    found = small(
        "mixtral_8x7b",
        "16xH100",
        layers=layers,
        global_batch_size=16,
        micro_batch_size=size,
        **parallel(tp=2, cp=2, pp=pp, vpp=vpp, ep=2),
        framework="megatron_lm",
    )
    assert found.layout is not None
    return found.job(replace(found.layout, **changes))


def changed_degrees(job: Job) -> dict[str, dict[str, int]]:
    """Words of each neighbour with another layout -> the degrees that differ."""
    found = {}
    for one in neighbours(job):
        pairs = {name: getattr(one.job.layout, field) for name, field in DEGREES.items()}
        found[one.words] = {
            name: value
            for name, value in pairs.items()
            if value != getattr(job.layout, DEGREES[name])
        }
    return {words: apart for words, apart in found.items() if apart}


def test_degrees_are_doubled_and_halved_against_data_parallelism() -> None:
    assert changed_degrees(job_of(layers=16)) == {
        "VPP 1 instead of 2": {"VPP": 1},
        "VPP 4 instead of 2": {"VPP": 4},
        "VPP 8 instead of 2": {"VPP": 8},
        "TP 4 and DP 1": {"TP": 4, "DP": 1},
        "CP 4 and DP 1": {"CP": 4, "DP": 1},
        "PP 4 and DP 1": {"PP": 4, "VPP": 1, "DP": 1},
        "TP 1 and DP 4": {"TP": 1, "DP": 4},
        "CP 1 and DP 4": {"CP": 1, "DP": 4},
        "PP 1 and DP 4": {"PP": 1, "VPP": 1, "DP": 4},
        "PP 1, DP 4 and EP 4": {"PP": 1, "VPP": 1, "DP": 4, "EP": 4},
        "EP 4 instead of 2": {"EP": 4},
        "EP 8 instead of 2": {"EP": 8},
    }


def test_no_data_parallelism_is_given_up_where_there_is_none() -> None:
    """Four stages: DP 1. Nothing grows at its cost, and VPP stops where chunks have one layer."""
    found = changed_degrees(job_of(pp=4, vpp=2, size=1))
    assert set(found) == {
        "VPP 1 instead of 2",
        "TP 1 and DP 2",
        "CP 1 and DP 2",
        "PP 2 and DP 2",
        "PP 2, DP 2 and EP 4",
        "EP 4 instead of 2",
    }
    assert found["PP 2 and DP 2"] == {"PP": 2, "VPP": 1, "DP": 2}


def test_tensor_parallelism_stays_within_nvlink() -> None:
    job = job_of()
    small_node = replace(job, gpu=replace(job.gpu, nvlink_domain_size=2))
    assert "TP 4 and DP 1" not in changed_degrees(small_node)
    assert "TP 4 and DP 1" in changed_degrees(
        replace(job, gpu=replace(job.gpu, nvlink_domain_size=4))
    )


def test_sequence_parallelism_comes_and_goes_with_tensor_parallelism() -> None:
    job = job_of()
    cut = {one.words: one.job.layout.sequence_parallel for one in neighbours(job)}
    assert (cut["TP 4 and DP 1"], cut["TP 1 and DP 4"], cut["CP 1 and DP 4"]) == (True, False, True)
    assert "layout.sequence_parallel=true" not in cut


@pytest.mark.parametrize(
    ("size", "others"), [(1, {2}), (2, {1, 4}), (8, {4})], ids=["one", "two", "all of it"]
)
def test_micro_batches_half_and_twice_as_large(size: int, others: set[int]) -> None:
    """Of 8 sequences of a replica: 8 in one microbatch cannot be more."""
    job = job_of(pp=2, vpp=1, size=size)
    found = {one.job.config.micro_batch_size: one.words for one in neighbours(job)}
    assert set(found) - {size} == others
    for other in others:
        assert found[other] == f"micro batch {other} instead of {size}"


def test_other_ways_across_context_parallel_ranks_where_there_are_some() -> None:
    kinds = {one.job.layout.cp_comm_type for one in neighbours(job_of())}
    assert kinds == {CpCommType.P2P, CpCommType.ALL_GATHER, CpCommType.A2A}
    alone = {
        one.job.layout.cp_comm_type
        for one in neighbours(job_of(context_parallel_size=1, data_parallel_size=4))
    }
    assert alone == {CpCommType.P2P}


def test_layers_of_transformers_may_run_on_ligers_kernels() -> None:
    """With a package that a job may not have: a remedy, no change that a search makes."""
    job = resolve(Request(model="llama3_8b", gpus="8xH100", framework="huggingface"))
    job = job.job(job.layout)
    (fused,) = (one for one in neighbours(job) if one.job.config.use_liger_kernel)
    assert "package liger-kernel" in fused.words
    assert not any("liger" in one.words for one in neighbours(job, SEARCHED))
