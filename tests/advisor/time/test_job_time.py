"""A step of a whole job: the slowest GPU, and what stages send each other."""

from typing import Unpack

import pytest
from msgspec.structs import replace

from advisor.answer.evaluation import TimeBreakdown
from advisor.api.calls import evaluate
from advisor.api.keywords import JobKeywords
from advisor.frameworks.megatron.setting import NONE
from advisor.hardware.calibration import Calibration, load_calibration
from advisor.hardware.catalogue import load_gpu
from advisor.job.job import JobConfig
from advisor.job.layout import ParallelLayout
from advisor.models.presets import load_model
from advisor.plan.recompute_plan import Segment
from advisor.search.evaluate import Evaluator
from advisor.time.communication import waiting_share
from advisor.time.passes import layer_work, waiting_seconds
from advisor.time.rank_links import link, neighbour_link
from tests.advisor.jobs import job_of

H100 = load_gpu("H100")
CALIBRATION = replace(load_calibration(H100), speed_spread=0.0)
LAYOUT = ParallelLayout(tensor_model_parallel_size=8, pipeline_model_parallel_size=2)
BATCH = 16


def step(layout: ParallelLayout = LAYOUT, spread: float = 0.0) -> TimeBreakdown:
    spreads = replace(CALIBRATION, speed_spread=spread)
    return evaluator(layout, spreads).evaluate(NONE).time_seconds


def asked(
    model: str, gpus: str, overrides: dict[str, object], **degrees: Unpack[JobKeywords]
) -> TimeBreakdown:
    """A step without recompute of a job that no recipe says anything of."""
    batch = {"seq_length": 4096, "micro_batch_size": 1, "global_batch_size": 64}
    fields = {f"job.{name}": size for name, size in batch.items()} | overrides
    candidate = evaluate(
        "none", model=model, gpus=gpus, takes_recipe=False, overrides=fields, **degrees
    )
    return candidate.time_seconds


def test_all_ranks_wait_for_the_slowest() -> None:
    even, uneven = step(), step(spread=0.02)
    work = even.total - even.optimizer
    assert uneven.total - even.total == pytest.approx(work * waiting_share(16, 0.02))
    assert uneven.optimizer == even.optimizer
    assert (even.stragglers, uneven.stragglers) == (0, pytest.approx(uneven.total - even.total))


def test_stage_outputs_in_parts_are_gathered_where_they_arrive() -> None:
    parts = replace(LAYOUT, scatter_gather_tensors_in_pipeline=True)
    hidden = 4096 * 4096 * 2
    out = neighbour_link(H100, CALIBRATION, 16)
    inside = link(H100, CALIBRATION, 8, 1)
    first = inside.latency_seconds + inside.ring_seconds
    passing = hidden * 7 / 8 / inside.bytes_per_second
    gathered = first + passing + (inside.ramp * first * passing) ** 0.5
    less = 2 * (hidden * 7 / 8 / out.bytes_per_second - gathered)
    # Once a microbatch on the slowest stage, and once on the other while the pipeline fills.
    assert step().total - step(parts).total == pytest.approx((BATCH + 1) * less)


def test_with_sequence_parallelism_they_are_parts_already() -> None:
    cut = replace(LAYOUT, sequence_parallel=True)
    assert step(cut) == step(replace(cut, scatter_gather_tensors_in_pipeline=True))


def test_parameters_that_stay_gathered_cost_no_more_than_those_gathered_again() -> None:
    """Either way a rank has no gradients but its shard's, in the optimizer as well."""
    kept, freed = (
        asked("llama3_8b", "64xA100", {"layout.data_parallel_sharding": how}, framework="fsdp2")
        for how in ("gradients", "full")
    )
    assert kept.optimizer == freed.optimizer
    assert kept.total < freed.total


def test_more_work_of_the_gpu_never_shortens_a_step_that_waits_for_its_processor() -> None:
    """Gradients are reduced while the GPU waits, too."""
    exchange = {"model.moe_token_dispatcher_type": "alltoall"}
    more_work = {"job.moe_load_imbalance": 1.3}, {"model.apply_rope_fusion": False}
    even, uneven, unfused = (
        asked("qwen3_30b_a3b", "16xH100", exchange | more, tp=1, pp=1, cp=1, ep=8)
        for more in ({}, *more_work)
    )
    assert even.host > 0.0
    assert uneven.forward + uneven.backward > even.forward + even.backward
    assert min(uneven.total, unfused.total) >= even.total


def test_gradients_in_16_bits_are_added_faster_than_in_32() -> None:
    degrees: JobKeywords = {"tp": 1, "pp": 1, "cp": 1}
    narrow, wide = (
        asked("llama3_8b", "8xH100", {"job.main_grads_dtype": dtype}, **degrees)
        for dtype in ("bf16", "fp32")
    )
    assert narrow.forward == wide.forward
    assert narrow.backward < wide.backward


@pytest.mark.parametrize("fusion", ["moe_router_fusion", "moe_permute_fusion"])
def test_what_is_fused_around_experts_saves_time_of_the_gpu(fusion: str) -> None:
    """A router's small kernels one after another, and rows added one by one."""
    degrees: JobKeywords = {"tp": 1, "pp": 1, "cp": 1, "ep": 8}
    exchange = {"model.moe_token_dispatcher_type": "alltoall"}
    apart, fused = (
        asked("mixtral_8x7b", "8xH100", exchange | {f"model.{fusion}": is_on}, **degrees)
        for is_on in (False, True)
    )
    assert fused.forward < apart.forward
    assert fused.backward < apart.backward
    assert fused.total < apart.total


def test_a_replay_never_shortens_a_step_whose_processor_is_late() -> None:
    """It fills what the GPU waits, and hides no gradients that the wait did not."""
    overrides = {"job.seq_length": 8192, "job.micro_batch_size": 1, "job.global_batch_size": 32}
    more = {"model.moe_token_dispatcher_type": "flex", "job.precision": "fp8_current"}
    none, replayed = (
        evaluate(
            spec,
            model="qwen3_30b_a3b",
            gpus="64xH100",
            takes_recipe=False,
            overrides=overrides | more,
            tp=2,
            pp=1,
            cp=1,
            ep=8,
            etp=1,
        )
        for spec in ("none", "selective:core_attn")
    )
    assert none.time_seconds.host > replayed.time_seconds.host
    assert replayed.step_time_seconds >= none.step_time_seconds


HOST_SECONDS = ("host_call_seconds", "host_wrapped_call_seconds", "host_module_seconds")


AT_ONCE = replace(CALIBRATION, speed_spread=0.02, **dict.fromkeys(HOST_SECONDS, 0.0))


def evaluator(layout: ParallelLayout, calibration: Calibration = AT_ONCE) -> Evaluator:
    config = JobConfig(seq_length=4096, micro_batch_size=1, global_batch_size=BATCH)
    return Evaluator(job_of(load_model("llama3_8b"), layout, config, H100), calibration)


INTERLEAVED = replace(LAYOUT, virtual_pipeline_model_parallel_size=4)


@pytest.mark.parametrize("layout", [LAYOUT, INTERLEAVED])
def test_chunks_of_a_stage_sum_to_it_in_both_directions(layout: ParallelLayout) -> None:
    """With what each sends: half of a stage's transfers, forward and backward, over its chunks."""
    own = evaluator(layout)
    plans = own.plans(NONE)
    slowest = own.time.slowest(plans)
    chunks = own.time.directions(plans)[slowest.number]
    vpp = layout.virtual_pipeline_model_parallel_size
    assert len(chunks) == vpp
    total = sum(there.total + back.total for there, back in chunks)
    assert total == pytest.approx(slowest.pace.total)
    assert slowest.work.total == pytest.approx(BATCH * slowest.pace.total)


@pytest.mark.parametrize("layout", [LAYOUT, INTERLEAVED])
def test_a_step_leaves_no_room_for_replays_in_its_own_seconds(layout: ParallelLayout) -> None:
    """And in a second more that of each microbatch: one part in 16 of it."""
    own = evaluator(layout)
    plans = own.plans(NONE)
    time, tail, stage = own.time.step(plans), own.time.tail(plans), own.time.slowest(plans).number
    assert (time.host, tail.accumulated) == (0.0, 0.0)
    seconds = time.total - tail.reduced
    assert own.time.most_replay(plans, stage, seconds) == pytest.approx(0.0, abs=1e-12)
    waiting = 1 + waiting_share(layout.world_size, 0.02)
    more = own.time.most_replay(plans, stage, seconds + waiting)
    assert more == pytest.approx(1 / BATCH)


@pytest.mark.parametrize("layout", [LAYOUT, INTERLEAVED])
def test_parts_of_stages_make_the_step_and_bound_it(layout: ParallelLayout) -> None:
    own = evaluator(layout)
    plans = own.plans(NONE)
    parts, number = own.time.parts(plans), own.time.slowest(plans).number
    microbatch = sum(part.microbatch for part in parts)
    optimizer = max(part.optimizer for part in parts)
    seconds = own.time.step(plans).total
    assert own.time.combined(parts[number], microbatch, optimizer) == pytest.approx(seconds)
    least = own.time.at_least(plans)
    assert 0.99 * seconds < least <= seconds * (1 + 1e-12)
    assert own.time.most_microbatch_seconds(seconds) == pytest.approx(seconds / BATCH)
    bubble = own.time.step(plans).pipeline_bubble
    vpp = layout.virtual_pipeline_model_parallel_size
    others = microbatch - parts[number].microbatch
    assert bubble == pytest.approx(others / vpp)


def test_a_replay_that_asks_the_gpu_again_waits_again() -> None:
    """Of a layer of experts, whose exchange asks how many tokens come: the replay of all of it."""
    job = job_of(
        replace(load_model("qwen3_30b_a3b"), moe_token_dispatcher_type="alltoall"),
        ParallelLayout(expert_model_parallel_size=8, data_parallel_size=8),
        JobConfig(seq_length=4096, micro_batch_size=1, global_batch_size=8),
        H100,
    )
    own = Evaluator(job, CALIBRATION)
    machine, network = own.rates
    (kind,) = set(job.model.layer_kinds)
    assert machine.host is not None
    work = layer_work(own.shape, machine, network, kind, machine.host)
    assert work.asks
    plain, whole = (
        waiting_seconds(own.shape, machine, network, kind, Segment((kind,), whole=is_whole).replay)
        for is_whole in (False, True)
    )
    assert plain == pytest.approx(work.waits_there + work.waits_back)
    assert whole == pytest.approx(plain + work.waits_there)
