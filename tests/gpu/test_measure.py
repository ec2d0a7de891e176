"""What only a GPU can show of harness.measure."""

from typing import Any

import pytest
import torch
from torch import nn

from harness.measure.fingerprint import fingerprint
from harness.measure.memory import CudaAllocator
from harness.measure.nvml import open_current_gpu
from harness.measure.session import measure
from harness.measure.timing import CUDA_EVENT, CudaStopwatch
from harness.measure.training_step import Recorder
from harness.trial.result import Flops, Phase
from harness.trial.trial import Device, MeasurementPlan

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]
PLAN = MeasurementPlan(steps=6, min_warmup_steps=2, max_warmup_steps=4)


class LinearStep:
    """Linear 4096 to 4096 on 8192 rows in bf16, plain SGD."""

    stage = 0

    def __init__(self) -> None:
        where: Any = {"device": "cuda", "dtype": torch.bfloat16}
        self.weight = nn.Parameter(torch.randn(4096, 4096, **where) / 64)
        self.x = torch.randn(8192, 4096, **where)

    def run(self, recorder: Recorder) -> float:
        recorder.phase(Phase.FORWARD)
        loss = nn.functional.linear(self.x, self.weight).square().mean()
        recorder.phase(Phase.BACKWARD)
        torch.autograd.backward(loss)
        recorder.phase(Phase.OPTIMIZER)
        with torch.no_grad():
            assert self.weight.grad is not None
            self.weight.sub_(self.weight.grad, alpha=1e-4)
        self.weight.grad = None
        return float(loss.detach())

    def saved_bytes_per_layer(self) -> int | None:
        return None

    def flops(self) -> Flops:
        return Flops(model=0.0, hardware=0.0)

    def close(self) -> None:
        pass


def test_all_four_numbers_of_memory() -> None:
    measured = measure(LinearStep(), PLAN, Device.CUDA)
    (memory,) = measured.memory
    assert 8192 * 4096 * 2 * 2 < memory.allocated <= memory.active <= memory.reserved
    assert memory.nvml_used is None or memory.nvml_used >= memory.reserved
    assert measured.times.clock == CUDA_EVENT
    assert len(measured.times.seconds) == PLAN.steps
    assert {point.phase for point in measured.timeline} >= {Phase.FORWARD, Phase.OPTIMIZER}
    assert measured.load is not None
    assert [one.phase for one in measured.phases] == [
        Phase.FORWARD,
        Phase.BACKWARD,
        Phase.OPTIMIZER,
    ]
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
