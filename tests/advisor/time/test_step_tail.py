"""What data parallelism adds to a step, and the optimizer, of a job of few numbers."""

from typing import Any

import pytest
from msgspec.structs import replace

from advisor.hardware.calibration import load_calibration
from advisor.hardware.catalogue import load_gpu
from advisor.job.job import Job, Optimizer
from advisor.job.layout import DataParallelSharding, ParallelLayout
from advisor.time import step_tail
from advisor.time.communication import Link
from advisor.time.optimizer_time import least_optimizer_seconds, optimizer_seconds
from advisor.time.passes import PassTimes
from tests.advisor.jobs import job_config, job_of
from tests.advisor.time.test_step_time import MACHINE, WORK

H100 = load_gpu("H100")
CALIBRATION = load_calibration(H100)
LINK = Link(bytes_per_second=100.0, latency_seconds=0.0)
HOSTED = replace(MACHINE, host_bytes_per_second=2.0, memory_bytes_per_second=6.0)


def job(config: dict[str, Any] | None = None, **layout: Any) -> Job:
    """Of eight ranks with four microbatches each."""
    return job_of(
        "llama3_8b",
        ParallelLayout(data_parallel_size=8, **layout),
        job_config(4096, 1, 32, **(config or {})),
        H100,
    )


def group(elements: int, ranks: int = 8) -> step_tail.ParameterGroup:
    return step_tail.ParameterGroup(elements=elements, shards=ranks, ranks=ranks, joined=LINK)


EVERY = step_tail.Turns(4, 4, 4)


def work_of(own: Job, *groups: step_tail.ParameterGroup, turns: step_tail.Turns = EVERY) -> Any:
    return step_tail.data_parallel_work(own, (), groups, HOSTED, CALIBRATION, turns)


def test_passes_that_wait_hide_as_much_more() -> None:
    """30 s of reduction next to 3 s of backward, 15 s of gathering next to 1 s of forward: half as
    long again, as the kernels wait 2 of 6 seconds."""
    pace = PassTimes(forward=1.0, backward=3.0, host=1.5, exposed=0.5)
    assert step_tail.reduced_seconds((WORK,), pace) == 30 - 3 * 1.5 + 15 - 1 * 1.5
    alone = replace(WORK, overlap_grad_reduce=False, overlap_param_gather=False)
    assert step_tail.reduced_seconds((alone,), pace) == 45
    assert step_tail.reduced_seconds((alone, alone), pace) == 90


@pytest.mark.parametrize(
    ("elements", "ranks", "buckets"),
    [
        (40_000_000, 8, 1),
        (40_000_001, 8, 2),
        (100_000_000, 8, 3),
        (100_000_000, 50, 2),
        (100_000_001, 50, 3),
    ],
)
def test_buckets_have_40_million_elements_or_one_million_a_rank(elements, ranks, buckets) -> None:
    (found,) = work_of(job(overlap_grad_reduce=True), group(elements, ranks))
    assert (found.buckets, found.elements, found.ranks) == (buckets, elements, ranks)
    (whole,) = work_of(job(overlap_grad_reduce=False), group(elements, ranks))
    assert whole.buckets == 1


def test_what_is_sharded_and_when_it_is_gathered() -> None:
    (plain,) = work_of(job(use_distributed_optimizer=False), group(100))
    (cut,) = work_of(job(use_distributed_optimizer=True), group(100))
    zero_1 = job(data_parallel_sharding=DataParallelSharding.OPTIMIZER)
    (by_stage,) = work_of(zero_1, group(100))
    assert [one.sharded for one in (plain, cut, by_stage)] == [False, True, True]
    dealt = job({"optimizer": Optimizer.DIST_MUON}, use_distributed_optimizer=False)
    (muon,) = work_of(dealt, group(100))
    assert [
        isinstance(one, step_tail.DataParallelWork) and one.gathers_after for one in (plain, muon)
    ] == [False, True]


def test_fsdp_adds_gradients_where_it_does_not_reduce_them() -> None:
    """800 and 80 elements of two groups: 1760 bytes, three times at 6 bytes a second."""
    full = job(data_parallel_sharding=DataParallelSharding.FULL)
    found = work_of(full, group(800), group(80, 2), turns=step_tail.Turns(4, 1, 1))
    assert isinstance(found, step_tail.ShardedWork)
    assert found.groups == ((800, 800, 8, LINK), (80, 80, 2, LINK))
    assert found.added == 3 * 1760 / 6.0
    assert (found.microbatches, found.reductions, found.gathers_again) == (4, 1, True)
    assert found.from_host == 0.0
    kept = job(data_parallel_sharding=DataParallelSharding.GRADIENTS)
    assert not work_of(kept, group(800)).gathers_again


def test_replicas_add_up_their_shards() -> None:
    """An all-reduce of 100 elements over two, 2 x 1/2 x 400 bytes at 100 a second: with every
    reduction of FSDP, or in the last microbatch; parameters that are whole are gathered once."""
    part = replace(group(800), replicas=2, across=LINK)
    own = job(data_parallel_sharding=DataParallelSharding.GRADIENTS)
    found = work_of(own, part, turns=step_tail.Turns(1, 4, 1))
    assert (found.gathered, found.across) == (3, (step_tail.Exchange(4.0, 4.0), 1))
    (cut,) = work_of(job(), part)
    assert (cut.across, work_of(own, group(800)).across) == (4.0, (step_tail.Exchange(), 4))


@pytest.mark.parametrize(
    ("sharding", "seconds"),
    [
        (None, 0.0),
        (DataParallelSharding.GRADIENTS, 7 * 2 * 140 / 2.0),
        (DataParallelSharding.FULL, 7 * 2 * 140 / 2.0 - 4 * 100.0),
    ],
)
def test_gradients_are_added_up_on_the_host(sharding: Any, seconds: float) -> None:
    """800 / 8 and 80 / 2 elements of 2 bytes: taken there by four microbatches, brought back by
    three; of stage 3 at the same time as the backward."""
    on_host = {"optimizer_cpu_offload": True} if sharding else {}
    own = job(on_host, data_parallel_sharding=sharding)
    pace = PassTimes(forward=1.0, backward=100.0)
    assert step_tail.accumulation_seconds(own, (group(800), group(80, 2)), HOSTED, pace) == seconds


def test_no_layout_spreads_the_optimizer_over_more_than_all_gpus() -> None:
    own = job()
    shard = 8_030_261_248 // 8
    itemsize = own.config.main_grads_dtype.itemsize
    assert least_optimizer_seconds(own, MACHINE) == optimizer_seconds(shard, 1, itemsize, MACHINE)
    dealt = job({"optimizer": Optimizer.DIST_MUON}, use_distributed_optimizer=False)
    assert least_optimizer_seconds(dealt, MACHINE) == 0.0
