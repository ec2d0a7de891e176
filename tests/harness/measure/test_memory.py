"""Bytes of storages against hand counts."""

import gc
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from harness.measure.memory import StorageMeter, Timeline, sampled, thinned
from harness.trial.result import Phase, TimelinePoint

FLOAT = 4


@pytest.fixture
def meter() -> StorageMeter:
    return StorageMeter()


def test_a_tensor_counts_while_it_lives(meter: StorageMeter) -> None:
    with meter.measuring():
        x = torch.empty(1000)
        assert meter.live_bytes == 1000 * FLOAT
        y = x + 1
        assert meter.live_bytes == 2000 * FLOAT
        del y
        assert meter.live_bytes == 1000 * FLOAT
    assert meter.peak_bytes == 2000 * FLOAT
    del x
    assert meter.live_bytes == 0


def test_views_and_in_place_operations_add_nothing(meter: StorageMeter) -> None:
    with meter.measuring():
        x = torch.empty(10, 10, dtype=torch.bfloat16)
        view = x.t()[2:]
        x += 1
        x.view(-1).mul_(2)
        assert meter.live_bytes == meter.peak_bytes == 200
        del x
        assert meter.live_bytes == 200, "the view keeps the whole storage"
        del view
    assert meter.live_bytes == 0


def test_several_outputs_of_one_operation_and_other_devices(meter: StorageMeter) -> None:
    with meter.measuring():
        torch.empty(10, device="meta")
        assert meter.peak_bytes == 0
        x = torch.randn(16, 8)
        outputs = (*x.sort(dim=1), *torch.split(x, 4))
        assert meter.live_bytes == 16 * 8 * (FLOAT + FLOAT + 8)
    assert len(outputs) == 6


def test_a_backward_to_the_byte(meter: StorageMeter) -> None:
    """y = relu(x W): x 32 x 64, W 64 x 16. Peak in the backward of relu: everything so far (x, W,
    the linear's output that relu does not keep, relu's, the sum's scalar), its gradients."""
    with meter.measuring():
        x, weight = torch.randn(32, 64), torch.randn(64, 16, requires_grad=True)
        leaves = (32 * 64 + 64 * 16) * FLOAT
        output = torch.relu(x @ weight)
        small = 32 * 16 * FLOAT
        assert meter.live_bytes == leaves + small, "the matmul's output is gone: relu keeps its own"
        assert meter.peak_bytes == leaves + 2 * small
        loss = output.sum()
        assert meter.live_bytes == leaves + small + FLOAT
        torch.autograd.backward(loss)
        assert meter.live_bytes == leaves + small + FLOAT + 64 * 16 * FLOAT
        assert weight.grad is not None


def test_optimizer_states_are_born_in_the_first_step(meter: StorageMeter) -> None:
    with meter.measuring():
        weight = nn.Parameter(torch.zeros(300))
        optimizer = torch.optim.AdamW([weight], foreach=False)
        weight.grad = torch.ones(300)
        assert meter.live_bytes == 2 * 300 * FLOAT
        optimizer.step()
        count = FLOAT  # the step number is a tensor
        assert meter.live_bytes == 4 * 300 * FLOAT + count


def test_what_was_there_before_counts_if_asked() -> None:
    model = nn.Linear(100, 50)
    model.weight.grad = torch.ones(50, 100)
    gc.collect()
    base = StorageMeter()
    base.count_existing()
    more = torch.empty(12345)
    meter = StorageMeter()
    meter.count_existing()
    assert meter.live_bytes - base.live_bytes == more.nbytes
    assert base.live_bytes >= (50 * 100 * 2 + 50) * FLOAT
    model.weight.grad = None
    assert meter.live_bytes - base.live_bytes == more.nbytes, "both saw the gradient die"


def test_a_storage_that_is_resized_under_the_dispatcher(meter: StorageMeter) -> None:
    with meter.measuring():
        x = torch.empty(1000)
        x.untyped_storage().resize_(0)
        assert meter.live_bytes == 0
        x.untyped_storage().resize_(1000 * FLOAT)
        assert meter.live_bytes == 1000 * FLOAT
        x.resize_(3000)
        assert meter.live_bytes == 3000 * FLOAT
    x.untyped_storage().resize_(0)
    assert meter.live_bytes == 3000 * FLOAT, "outside of the block nobody looks"


def test_checkpoint_lowers_the_peak_by_what_it_drops() -> None:
    """Eight GELUs in a row keep an input each; checkpointed by halves, those of the halves. The
    last output is alive too."""

    def step(checkpointed: bool) -> int:
        meter = StorageMeter()
        with meter.measuring():
            y = torch.randn(1000, requires_grad=True)
            half = nn.Sequential(*(nn.GELU() for _ in range(4)))
            for _ in range(2):
                y = checkpoint(half, y, use_reentrant=False) if checkpointed else half(y)
            saved = meter.live_bytes // (1000 * FLOAT)
            torch.autograd.backward(y.sum())
        return saved

    assert (step(False), step(True)) == (9, 3)


def test_changes_are_reported() -> None:
    reported: list[int] = []
    with StorageMeter(changed=reported.append).measuring():
        x = torch.empty(5)
        x.view(5)
        y = x.clone()
        del x, y
        torch.empty(0)
    assert reported == [20, 40, 0]


@pytest.fixture
def mesh() -> Iterator[Any]:
    from torch.distributed.device_mesh import init_device_mesh

    distributed: Any = torch.distributed
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    distributed.destroy_process_group()


def test_a_dtensor_counts_as_its_local_tensor(mesh: Any, meter: StorageMeter) -> None:
    from torch.distributed.tensor import Shard, distribute_tensor

    local = torch.ones(100)
    tensor = distribute_tensor(local, mesh, [Shard(0)])
    with meter.measuring():
        result = tensor + tensor
        assert meter.peak_bytes == meter.live_bytes
        assert meter.live_bytes in (100 * FLOAT, 200 * FLOAT)  # a view may bring the operand in
        del result
    gc.collect()  # what earlier tests left in cycles
    existing = StorageMeter()
    existing.count_existing()
    before = existing.live_bytes
    del tensor, local
    gc.collect()
    assert before - existing.live_bytes in (100 * FLOAT, 200 * FLOAT)  # shared, or copied


def point(seconds: float, allocated: int, phase: Phase = Phase.FORWARD) -> TimelinePoint:
    return TimelinePoint(seconds=seconds, allocated=allocated, phase=phase)


def test_a_phase_is_marked_with_the_bytes_of_that_moment() -> None:
    now = iter([100.0, 101.0, 102.5, 103.0])
    live = iter([10, 30])
    timeline = Timeline(lambda: next(live), lambda: next(now))
    timeline.phase(Phase.FORWARD)
    timeline.add(70)
    timeline.phase(Phase.BACKWARD)
    assert timeline.points() == (point(1.0, 10), point(2.5, 70), point(3.0, 30, Phase.BACKWARD))


def test_a_replay_is_a_stretch_of_the_backward() -> None:
    timeline = Timeline(lambda: 10, lambda: 0.0)
    timeline.phase(Phase.BACKWARD)
    timeline.replay(True)
    timeline.replay(False)
    seen = [one.phase for one in timeline.points()]
    assert seen == [Phase.BACKWARD, Phase.REPLAY, Phase.BACKWARD]


def test_thinning_keeps_peaks_ends_and_borders_of_phases() -> None:
    points = [
        point(i, 500 if i == 777 else i % 7, Phase.FORWARD if i < 600 else Phase.BACKWARD)
        for i in range(1000)
    ]
    assert thinned(points, 1000) == tuple(points)
    kept = thinned(points, 50)
    assert len(kept) <= 54
    assert max(p.allocated for p in kept) == 500
    assert {points[0], points[599], points[600], points[-1]} <= set(kept)
    assert (kept[0], kept[-1]) == (points[0], points[-1])
    assert [p.seconds for p in kept] == sorted(p.seconds for p in kept)


def test_a_sampler_takes_at_once_and_stops_with_its_block() -> None:
    taken: list[int] = []
    with sampled(lambda: taken.append(threading.get_ident()), interval=0.001):
        deadline = time.monotonic() + 5
        while len(taken) < 3 and time.monotonic() < deadline:
            time.sleep(0.001)
    count = len(taken)
    assert count >= 3
    assert threading.get_ident() not in taken
    time.sleep(0.01)
    assert len(taken) == count


def test_a_failing_block_stops_the_sampler() -> None:
    taken: list[int] = []
    with pytest.raises(RuntimeError), sampled(lambda: taken.append(1), interval=0.001):
        raise RuntimeError
    count = len(taken)
    time.sleep(0.01)
    assert len(taken) == count
