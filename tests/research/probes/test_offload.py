"""The probe of offload: what it counts on a CPU, where real Megatron Core moves what it moves."""

import pytest

from harness.trial.trial import Device
from research.probes import offload
from research.probes.offload import OffloadJob, measured, predicted

JOBS = {job.name: job for job in (*offload._JOBS, *offload._TINY_JOBS)}


def both(job: OffloadJob) -> tuple[dict, dict]:
    return dict(predicted(job, Device.CPU)), dict(measured(job, Device.CPU))


@pytest.mark.parametrize("job", offload._JOBS, ids=lambda job: job.name)
def test_each_case_is_predicted(job: OffloadJob) -> None:
    found = predicted(job, Device.CUDA)
    assert found["step_seconds"] >= found["without"]["step_seconds"]
    assert found["host_bytes"] < 100 * 2**30
    assert found["allocated_bytes"] < 100 * 2**30
    if job.optimizer:
        assert found["host_bytes"] > 0 < found["saved_optimizer_bytes"]


@pytest.mark.slow
@pytest.mark.oracle
def test_a_whole_optimizer_is_on_the_host() -> None:
    said, found = both(JOBS["optimizer_all_overlap"])
    for name in ("host_bytes", "optimizer_bytes", "saved_optimizer_bytes"):
        assert found[name] == said[name]
    assert found["host_bytes"] == 16 * found["host_elements"]


@pytest.mark.slow
@pytest.mark.oracle
@pytest.mark.parametrize(("name", "away", "of_all"), [("quarter", 8, 4), ("half_aware", 12, 0)])
def test_whole_parameters_leave_until_they_are_the_fraction(
    name: str, away: int, of_all: int
) -> None:
    said, found = both(JOBS[f"optimizer_{name}"])
    elements = found["without"]["optimizer_bytes"] // 12
    assert found["host_elements"] >= said["host_bytes"] // 16
    assert found["saved_optimizer_bytes"] == away * found["host_elements"]
    assert (
        found["optimizer_bytes"] == away * (elements - found["host_elements"]) + of_all * elements
    )


@pytest.mark.slow
@pytest.mark.oracle
def test_the_output_of_attention_leaves_twice_and_the_last_layer_stays() -> None:
    said, found = both(JOBS["attention"])
    assert found["moved_bytes"] == (3 - 1) * 5 * 1024 * 1024 * 2  # q, k, v, out, and out
    assert found["host_bytes"] == found["moved_bytes"] == said["moved_bytes"]
