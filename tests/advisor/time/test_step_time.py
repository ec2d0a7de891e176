"""Layers, chunks, data parallelism and the optimizer: exact sums, and what must not fall."""

import pytest
from msgspec.structs import astuple, replace

from advisor.base.dtypes import Precision
from advisor.frameworks.megatron.plan import chunk_plan
from advisor.frameworks.megatron.setting import NONE, Method, RecomputeSetting, full, selective
from advisor.hardware.calibration import load_calibration
from advisor.hardware.catalogue import load_gpu
from advisor.job.job import Job
from advisor.job.layout import ParallelLayout
from advisor.layers.operators import CollectiveKind
from advisor.layers.shape import RankShape
from advisor.layers.transformer import LAYER_INPUT, transformer_layer
from advisor.models.layer_kind import DENSE
from advisor.models.presets import load_model
from advisor.plan.recompute_plan import RecomputePlan, Segment
from advisor.request.recipes import load_experiment
from advisor.search.evaluate import Evaluator
from advisor.time import passes
from advisor.time.attention import AttentionRates, Reached
from advisor.time.communication import Link, collective_seconds, pipeline_transfer_seconds
from advisor.time.gemm import GemmRates
from advisor.time.machine import Machine
from advisor.time.optimizer_time import host_optimizer_seconds, optimizer_seconds
from advisor.time.rank_links import Network
from advisor.time.roofline import backward_seconds, forward_seconds
from advisor.time.step_tail import DataParallelWork, Exchange, ShardedWork
from tests.advisor.jobs import evaluator_of, experiment_job, job_of, parallel

MACHINE = Machine(
    linear=GemmRates(
        flops=6e14,
        sustained_flops=6e14,
        multiprocessors=132,
        bytes_per_second=2.5e12,
        kernel_seconds=4e-6,
    ),
    bf16_flops=6e14,
    attention=AttentionRates(peak_flops=1e15, flash=Reached(0.5, 0.4), fused=Reached(0.5, 0.4)),
    memory_bytes_per_second=2.5e12,
    chain_bytes_per_second=2.5e12,
    optimizer_bytes_per_second=2.5e12,
    kernel_seconds=4e-6,
    hidden_fraction=0.6,
)
EIGHT_BIT = replace(MACHINE, quantized=MACHINE.linear, quantize_bytes=4)
LINK = Link(bytes_per_second=3e11, latency_seconds=1e-5)
NETWORK = Network(tensor=LINK, context=LINK, tensor_ranks=4, context_ranks=1)
MODEL = load_model("llama3_8b")
SHAPE = RankShape(model=MODEL, seq_length=4096, micro_batch_size=1, **parallel(tp=4, sp=True))
WORK = DataParallelWork(
    elements=1000,
    gradient_itemsize=4,
    ranks=4,
    sharded=True,
    overlap_grad_reduce=True,
    overlap_param_gather=True,
    joined=Link(bytes_per_second=100.0, latency_seconds=0.0),
)


def test_pass_times_add_and_multiply() -> None:
    one = passes.PassTimes(1.0, 2.0, 3.0, 4.0)
    assert one + one == one.times(2) == passes.PassTimes(2.0, 4.0, 6.0, 8.0)
    assert one.total == 10.0


def test_a_layer_is_the_sum_of_its_operators() -> None:
    operators = transformer_layer(SHAPE)
    times = passes.layer_times(SHAPE, MACHINE, NETWORK)
    forward = [forward_seconds(o, MACHINE, NETWORK) for o in operators]
    backward = [backward_seconds(o, MACHINE, NETWORK) for o in operators]
    assert times.forward == pytest.approx(sum(one.compute for one in forward))
    assert times.backward == pytest.approx(sum(one.compute for one in backward))
    assert times.exposed == pytest.approx(sum(one.exposed for one in forward + backward))
    assert times.recompute == 0.0


def test_ends_are_where_they_are_asked_for() -> None:
    none, first, last, both = (
        passes.end_times(SHAPE, MACHINE, NETWORK, *ends)
        for ends in ((False, False), (True, False), (False, True), (True, True))
    )
    assert none == passes.PassTimes()
    assert both.total == pytest.approx(first.total + last.total)
    assert 0 < first.total < last.total


def test_a_full_replay_is_one_forward_communication_included() -> None:
    operators = transformer_layer(SHAPE)
    forward = [forward_seconds(o, MACHINE, NETWORK) for o in operators]
    whole = passes.replay_seconds(
        SHAPE, MACHINE, NETWORK, DENSE, Segment((DENSE,), whole=True).replay
    )
    assert whole == pytest.approx(sum(one.compute + one.exposed for one in forward))


def _replay(setting: RecomputeSetting, layers: int = 4) -> float:
    plan = chunk_plan(setting, MODEL, (DENSE,) * layers, SHAPE.sequence_parallel)
    return passes.chunk_times(SHAPE, MACHINE, NETWORK, plan).recompute


def test_replays_of_a_chunk() -> None:
    whole = _replay(full(Method.UNIFORM, 1))
    assert _replay(NONE) == 0.0
    assert _replay(full(Method.BLOCK, 1)) == pytest.approx(whole / 4)
    assert _replay(full(Method.UNIFORM, 4)) == pytest.approx(whole)
    parts = _replay(selective("core_attn")), _replay(selective("mlp"))
    assert _replay(selective("core_attn", "mlp")) == pytest.approx(sum(parts))
    assert 0 < parts[0] < parts[1] < whole


def test_a_setting_moves_nothing_but_the_replay() -> None:
    none, mlp = (
        passes.chunk_times(SHAPE, MACHINE, NETWORK, chunk_plan(s, MODEL, (DENSE,) * 4, True))
        for s in (NONE, selective("mlp"))
    )
    assert replace(mlp, recompute=0.0) == none


def test_a_distributed_checkpoint_gathers_its_input() -> None:
    shape = replace(SHAPE, sequence_parallel=False)
    whole = Segment((DENSE,) * 2, whole=True)
    plain, shared = (
        passes.chunk_times(shape, MACHINE, NETWORK, RecomputePlan((segment,)))
        for segment in (whole, replace(whole, shards_input=True))
    )
    num_bytes = shape.hidden(LAYER_INPUT).num_bytes
    gather = collective_seconds(CollectiveKind.ALL_GATHER, num_bytes, 4, LINK)
    assert shared.recompute - plain.recompute == pytest.approx(gather)


@pytest.mark.parametrize(
    ("changes", "forward", "backward", "exposed"),
    [
        # 4000 bytes of gradients: 30 s; 2000 bytes of weights: 15 s
        ({}, 0.0, 0.0, 45.0),
        ({}, 10.0, 20.0, 5.0 + 10.0),
        ({}, 15.0, 30.0, 0.0),
        ({"overlap_grad_reduce": False}, 15.0, 30.0, 30.0),
        ({"overlap_param_gather": False}, 15.0, 30.0, 15.0),
        ({"gradient_itemsize": 2}, 15.0, 10.0, 5.0),
        ({"sharded": False}, 15.0, 20.0, 40.0),
        ({"ranks": 1}, 0.0, 0.0, 0.0),
    ],
)
def test_data_parallel_communication_during_one_microbatch(
    changes: dict[str, int], forward: float, backward: float, exposed: float
) -> None:
    assert replace(WORK, **changes).exposed_seconds(forward, backward) == exposed


def test_the_optimizer_reads_its_shard_and_the_whole_buffer() -> None:
    # 46 bytes an element of the shard, three passes over the gradient buffer
    machine = replace(MACHINE, optimizer_bytes_per_second=1.0)
    assert optimizer_seconds(100, 1, 4, machine) == 100 * 46 + 100 * 4 * 3
    assert optimizer_seconds(100, 4, 2, machine) == 25 * 46 + 100 * 2 * 3
    assert optimizer_seconds(101, 4, 2, machine) == 26 * 46 + 101 * 2 * 3


def test_only_the_plain_schedule_waits_for_transfers() -> None:
    joined = Link(bytes_per_second=100.0, latency_seconds=1.0)
    assert pipeline_transfer_seconds(200, 1, joined, 0.6) == 2 * (2.0 + 1.0)
    assert pipeline_transfer_seconds(200, 5, joined, 0.5) == 5 * 0.5 * 2 * (2.0 + 1.0)
    assert pipeline_transfer_seconds(200, 5, joined, 1.0) == 0.0


def _job(**changes: int) -> Job:
    job = experiment_job()
    return job_of(job.model, replace(job.layout, **changes), job.config, job.gpu)


def _step(job: Job, setting: RecomputeSetting = NONE) -> float:
    calibration = load_calibration(job.gpu)
    return Evaluator(job, calibration).evaluate(setting).step_time_seconds


def test_a_step_is_the_sum_of_its_parts() -> None:
    job = _job()
    evaluation = evaluator_of(job).evaluate(selective("mlp"))
    time = evaluation.time_seconds
    parts = astuple(time)
    assert time.total == pytest.approx(sum(parts))
    assert min(parts) >= 0.0


def test_more_recompute_never_takes_less_time() -> None:
    blocks = (full(Method.BLOCK, number) for number in (1, 2, 4))
    times = [_step(_job(), setting) for setting in (NONE, *blocks, full(Method.UNIFORM, 1))]
    assert times == sorted(times)


def test_interleaving_shrinks_the_bubble() -> None:
    def bubble(vpp: int) -> float:
        job = _job(virtual_pipeline_model_parallel_size=vpp)
        evaluation = evaluator_of(job).evaluate(NONE)
        return evaluation.time_seconds.pipeline_bubble

    bubbles = [bubble(vpp) for vpp in (1, 2, 5, 10)]
    assert bubbles == sorted(bubbles, reverse=True)
    assert bubbles[0] == pytest.approx(10 * bubbles[3], rel=0.05)


def test_twice_the_data_parallel_ranks_halve_the_microbatches() -> None:
    assert 0.5 < _step(_job(data_parallel_size=4)) / _step(_job()) < 0.6


def test_overlapped_communication_is_never_slower() -> None:
    assert _step(_job(tp_comm_overlap=True)) < _step(_job(tp_comm_overlap=False))
    assert _step(_job(overlap_grad_reduce=True)) < _step(_job(overlap_grad_reduce=False))


def test_context_parallel_ranks_share_the_work_of_a_sequence() -> None:
    model, gpu = load_model("llama3_8b"), load_gpu("H100")
    config = replace(load_experiment("llama3_8b_8xh100").config, seq_length=8192)
    halved = ParallelLayout(context_parallel_size=2, data_parallel_size=4)
    job = Job(model=model, layout=halved, config=config, gpu=gpu, num_gpus=8)
    whole = replace(job, layout=ParallelLayout(data_parallel_size=8))
    assert _step(job) == pytest.approx(_step(whole), rel=0.05)


def test_adam_on_the_host_waits_for_its_copies_unless_they_overlap() -> None:
    """28 bytes of host memory an element at 50 GB/s; 4 bytes there and 2 back over the link."""
    machine = replace(MACHINE, host_bytes_per_second=6e9, host_memory_bytes_per_second=50e9)
    update, copies = 28e9 / 50e9, 1.0
    alone = host_optimizer_seconds(1e9, 4 + 2, machine, overlapped=False)
    assert alone == pytest.approx(update + copies)
    assert host_optimizer_seconds(1e9, 4 + 2, machine, overlapped=True) == pytest.approx(copies)


def test_what_works_on_the_host_leaves_the_gpu() -> None:
    whole = optimizer_seconds(1000, 1, 4, MACHINE)
    none = optimizer_seconds(1000, 1, 4, MACHINE, on_host=1.0)
    half = optimizer_seconds(1000, 1, 4, MACHINE, on_host=0.5)
    assert none < half < whole
    assert half == pytest.approx((none + whole) / 2)


SHARDED = ShardedWork(
    groups=((10**9, 10**9, 2, Link(bytes_per_second=1e9, latency_seconds=1.0)),),
    gradient_itemsize=4,
    microbatches=3,
    reductions=3,
    gathers_again=True,
    hidden_fraction=0.5,
)


def test_each_block_that_fsdp_gathers_is_a_collective() -> None:
    """Of 10 blocks, each way there is a latency of 1 s for each, and the bytes are what they were;
    many ranks pay for it."""
    whole = replace(SHARDED, gradient_itemsize=2, microbatches=1, reductions=1)
    blocks = replace(whole, collectives=10)
    added = blocks.exposed_seconds(0.0, 0.0) - whole.exposed_seconds(0.0, 0.0)
    assert added == pytest.approx(3 * 9 * 1.0)


def test_fsdp_gathers_and_reduces_every_microbatch() -> None:
    """1e9 parameters over two ranks at 1e9 B/s: a gather takes 1 s, an fp32 reduction 2 s."""
    joined = Link(bytes_per_second=1e9, latency_seconds=0.0)
    work = replace(SHARDED, groups=((10**9, 10**9, 2, joined),))
    assert work.exposed_seconds(0.0, 0.0) == pytest.approx(3 * (1 + 1 + 2))
    assert work.exposed_seconds(10.0, 10.0) == pytest.approx(3 * (1 + 1 + 2)), "of one block"
    blocks = replace(work, collectives=10)  # the first of each pass runs next to nothing
    assert blocks.exposed_seconds(10.0, 10.0) == pytest.approx(3 * (1 + 1 + 2) * (0.1 + 0.9 / 2))
    assert blocks.exposed_seconds(1.0, 2.0) == pytest.approx(3 * (0.1 + 0.9 / 2 + 1 + 2 / 2))
    slow = replace(blocks, groups=((10**9, 10**9, 2, replace(joined, busy=0.2)),))  # of the network
    assert slow.exposed_seconds(9.0, 9.0) == pytest.approx(3 * (1 + 1 + 2) * (0.1 + 0.9 * 0.1))
    once = replace(work, gathers_again=False)
    assert once.exposed_seconds(0.0, 0.0) == pytest.approx(3 * (1 + 2))
    first = replace(work, gathered=2, gathers_again=False, across=(Exchange(0.5), 1))
    assert first.exposed_seconds(0.0, 0.0) == pytest.approx(1 + 3 * 2 + 0.5)
    across = replace(blocks, across=(Exchange(3.0), 3))  # busy on no multiprocessor
    assert across.exposed_seconds(9.0, 9.0) == pytest.approx(3 * (0.1 * 7 + 0.9 * 4 / 2))
    last = replace(work, reductions=1, added=0.25)  # under no_sync, the others add whole gradients
    assert last.exposed_seconds(0.0, 0.0) == pytest.approx(3 * (1 + 1) + 2 + 2 * 0.25)


def test_an_unfused_weight_gradient_is_added_to_main_grad() -> None:
    """QKV, projection, fc1 and fc2 of Llama 8B at TP 4: 10 bytes an element, where a GEMM that does
    it itself moves 8 instead of 2 next to its products."""
    unfused = replace(SHAPE, model=replace(MODEL, gradient_accumulation_fusion=False))
    elements = 4096 * (6144 + 4096 + 2 * 14336 + 14336) // 4
    one, other = (passes.layer_times(shape, MACHINE, NETWORK) for shape in (SHAPE, unfused))
    assert other.forward == one.forward
    assert 4 * elements / 2.5e12 < other.backward - one.backward <= 10 * elements / 2.5e12


def test_weights_of_a_layer_are_cast_once_a_step() -> None:
    """QKV, projection, fc1 and fc2 of Llama 8B at TP 4: 4 bytes an element, a kernel each."""
    shape = replace(SHAPE, precision=Precision.FP8_CURRENT)
    elements = 4096 * (6144 + 4096 + 2 * 14336 + 14336) // 4
    expected = 4 * elements / 2.5e12 + 4 * 4e-6
    assert passes.layer_cast_seconds(shape, EIGHT_BIT) == pytest.approx(expected)
    assert passes.layer_cast_seconds(shape, MACHINE) == 0.0


def test_each_bucket_of_gradients_is_a_collective() -> None:
    slow = Link(bytes_per_second=100.0, latency_seconds=1.0)
    one = replace(WORK, joined=slow, overlap_grad_reduce=False, overlap_param_gather=False)
    added = replace(one, buckets=5).exposed_seconds(0.0, 0.0) - one.exposed_seconds(0.0, 0.0)
    assert added == pytest.approx(2 * 4 * 1.0)
