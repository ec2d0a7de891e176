"""What only a GPU can show of harness.measure."""

import pytest
import torch

from harness.measure.fingerprint import fingerprint
from harness.measure.memory import CudaAllocator
from harness.measure.nvml import open_current_gpu
from harness.measure.session import measure
from harness.measure.timing import CUDA_EVENT, CudaStopwatch
from harness.trial.result import Phase
from harness.trial.trial import Device, MeasurementPlan
from tests.harness.steps import PHASES, LinearStep

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]
PLAN = MeasurementPlan(steps=6, min_warmup_steps=2, max_warmup_steps=4)


def test_all_four_numbers_of_memory() -> None:
    step = LinearStep(8192, 4096, 4096, device="cuda", dtype=torch.bfloat16)
    measured = measure(step, PLAN, Device.CUDA)
    (memory,) = measured.memory
    assert 8192 * 4096 * 2 * 2 < memory.allocated <= memory.active <= memory.reserved
    assert memory.nvml_used is None or memory.nvml_used >= memory.reserved
    assert measured.times.clock == CUDA_EVENT
    assert len(measured.times.seconds) == PLAN.steps
    assert {point.phase for point in measured.timeline} >= {Phase.FORWARD, Phase.OPTIMIZER}
    assert measured.load is not None
    assert [one.phase for one in measured.phases] == list(PHASES)
    forward, backward, optimizer = measured.phases
    assert min(one.seconds for one in measured.phases) > 0
    # an event cannot pass before it is queued; the clocks start some microseconds apart
    assert min(forward.ahead_seconds, backward.ahead_seconds) > -1e-4
    assert optimizer.ahead_seconds is None


def test_events_and_host_clock_agree_on_work_that_is_waited_for() -> None:
    watch = CudaStopwatch()
    a = torch.randn(4096, 4096, device="cuda")
    for _ in range(3):
        a @ a
    torch.cuda.synchronize()
    watch.mark()
    for _ in range(20):
        a @ a
    torch.cuda.synchronize()
    watch.mark()
    (device,), (host,) = watch.laps(), watch.host_laps()
    assert device == pytest.approx(host, rel=0.05)


def test_the_allocators_peaks_cover_what_was_allocated() -> None:
    allocator = CudaAllocator()
    before = allocator.allocated()
    x = torch.empty(2**20, device="cuda", dtype=torch.uint8)
    peaks = allocator.peaks()
    assert peaks["allocated"] - before == 2**20
    assert peaks["allocated"] <= peaks["active"] <= peaks["reserved"]
    assert peaks["allocator_retries"] == 0
    del x
    allocator.reset()
    assert allocator.peaks()["allocated"] == before


def test_the_driver_answers() -> None:
    torch.zeros(1, device="cuda")
    gpu = open_current_gpu()
    if gpu is None:
        pytest.skip("no NVML here")
    assert gpu.identity().name
    used = gpu.reading().used_bytes
    assert used is None or used > 0


def test_a_gpu_is_described() -> None:
    (gpu,) = fingerprint(Device.CUDA)["gpus"]
    assert gpu["torch_name"]
    assert gpu["total_memory_bytes"] > 0
