"""What steps and peaks come to."""

import pytest
from msgspec.structs import replace

from harness.report.facts import Facts
from harness.report.trial_numbers import Numbers, numbers_of, over_repeats, peaks
from harness.trial.result import MemoryPeak


def test_throughput_is_of_the_median_step(gpu_facts: Facts) -> None:
    """One GPU, 400 model and 500 hardware TFLOP/s; 989 is the H200's dense BF16 datasheet peak
    (configs/hardware)."""
    result = next(iter(gpu_facts.results.values()))
    one = numbers_of(result, gpu_facts.gpu)
    assert one.step_time_seconds is not None
    assert one.model_tflops_per_gpu == pytest.approx(400.0)
    assert one.hardware_tflops_per_gpu == pytest.approx(500.0)
    assert one.mfu == pytest.approx(400 / 989)
    assert one.hfu == pytest.approx(500 / 989)
    tokens = 4096 * result.trial["workload"]["global_batch_size"]
    assert one.tokens_per_second_per_gpu == pytest.approx(tokens / one.step_time_seconds)
    assert one.step_spread == pytest.approx(0.002, rel=0.01)  # of -0.2, -0.1, 0, 0.1, 0.2 % twice


def test_what_is_not_known_is_none(gpu_facts: Facts) -> None:
    result = next(iter(gpu_facts.results.values()))
    assert numbers_of(result, None).mfu is None
    assert numbers_of(result, None).model_tflops_per_gpu is not None
    assert numbers_of(replace(result, flops=None), gpu_facts.gpu).mfu is None
    assert numbers_of(replace(result, times=None, memory=()), None) == Numbers()


def test_each_peak_is_of_its_own_fullest_rank() -> None:
    ranks = (
        MemoryPeak(rank=0, stage=0, allocated=10, active=11, reserved=20),
        MemoryPeak(rank=1, stage=1, allocated=12, active=12, reserved=13, nvml_used=30),
    )
    found = peaks(ranks)
    assert found.peak_allocated_bytes == 12
    assert found.peak_active_bytes == 12
    assert found.peak_reserved_bytes == 20
    assert found.peak_nvml_used_bytes == 30
    assert found.peak_bytes("reserved") == 20
    assert found.peak_bytes("nvml_used") == 30
    assert peaks([replace(ranks[0], reserved=None)]).peak_bytes("reserved") is None


def test_repeats_are_medians_of_times_and_most_of_memory() -> None:
    several = [
        Numbers(step_time_seconds=seconds, peak_allocated_bytes=size)
        for seconds, size in ((1.0, 5), (9.0, 7), (2.0, 6))
    ]
    found = over_repeats([*several, Numbers()])
    assert found == Numbers(step_time_seconds=2.0, peak_allocated_bytes=7)
    assert over_repeats([]) == Numbers()
