"""Phases of a cycle: their parts to the byte, what moves where, and which one decides."""

from typing import Any

import pytest
from msgspec.structs import replace

from advisor.answer.evaluation import Evaluation
from advisor.answer.phases import Phase, PhaseName
from advisor.base.units import GIB
from advisor.frameworks.registry import parts_of
from advisor.job.job import Job
from advisor.memory.allocator import reserved_memory
from advisor.search.evaluate import Evaluator
from advisor.search.phase_changes import phase_changes
from tests.advisor.frameworks.torch.jobs import stack_job
from tests.advisor.jobs import batches, evaluator_of

GRPO = ("rl.algorithm=grpo", "rl.engine=vllm", "rl.gpu_memory_utilization=0.4")
PPO = ("rl.algorithm=ppo", *GRPO[1:], "rl.reference=gpu")


def job_with(*overrides: str, framework: str = "huggingface", **fields: Any) -> Job:
    usual = {"model": "qwen3_8b", "gpus": "8xH100", **batches(4096, 1, 128), **fields}
    return stack_job(framework, overrides=overrides, **usual)[1]


def evaluation_of(job: Job, spec: str = "none") -> Evaluation:
    return evaluator_of(job).evaluate(parts_of(job.config.framework).settings.parse(spec))


def phases_of(*overrides: str, **fields: Any) -> dict[PhaseName, Phase]:
    return {one.name: one for one in evaluation_of(job_with(*overrides, **fields)).phases}


@pytest.mark.parametrize(
    ("overrides", "fields"),
    [
        (GRPO, {}),
        ((*GRPO, "rl.sleep_level=1", "rl.reference=host", "rl.offload_params=true"), {}),
        ((*PPO, "rl.sleep_level=2", "rl.critic_on_gpu=false"), {}),
        (PPO, {"framework": "megatron_lm"}),
        ((*GRPO, "rl.engine=sglang"), {"framework": "deepspeed"}),
        ((*GRPO, "layout.pipeline_model_parallel_size=2"), {"framework": "megatron_lm"}),
        (("rl.algorithm=dpo", "rl.reference=gpu"), {"gpus": "1xH200"}),
    ],
)
def test_parts_of_every_phase_sum_to_what_the_card_must_give(overrides, fields) -> None:
    row = evaluation_of(job_with(*overrides, **fields)).simulated
    for phase in row.phases:
        assert phase.memory_bytes.total == phase.peak_reserved_bytes
        assert min(phase.memory_bytes.parts.values()) >= 0
    assert row.peak_reserved_bytes == max(phase.peak_reserved_bytes for phase in row.phases)
    assert row.fit_probability == min(phase.fit_probability for phase in row.phases)


def test_a_critic_has_batches_of_its_own() -> None:
    usual, twice = phases_of(*PPO), phases_of(*PPO, "rl.critic_micro_batch_size=2")
    tokens = phases_of(*PPO, "rl.critic_token_budget=8192")
    for name in usual:
        larger = twice[name].memory_bytes.activations > usual[name].memory_bytes.activations
        assert larger is (name in (PhaseName.VALUES, PhaseName.CRITIC_UPDATE))
        same = pytest.approx(twice[name].memory_bytes.activations, rel=1e-3)
        assert tokens[name].memory_bytes.activations == same


def test_phases_come_in_their_order() -> None:
    assert list(phases_of(*PPO)) == [
        *(PhaseName.ROLLOUT, PhaseName.LOG_PROBS, PhaseName.REFERENCE, PhaseName.VALUES),
        *(PhaseName.CRITIC_UPDATE, PhaseName.UPDATE, PhaseName.WEIGHT_SYNC),
    ]
    elsewhere = phases_of(*GRPO, "rl.colocated=false")
    names = [PhaseName.LOG_PROBS, PhaseName.UPDATE, PhaseName.WEIGHT_SYNC]
    assert list(elsewhere) == names
    assert elsewhere[PhaseName.WEIGHT_SYNC].memory_bytes.engine_weights == 0
    assert evaluation_of(job_with()).phases == ()


@pytest.mark.parametrize("name", [PhaseName.UPDATE, PhaseName.LOG_PROBS])
def test_sleep_gives_back_weights_cache_and_working_room_and_nothing_else(name) -> None:
    awake, asleep = phases_of(*GRPO)[name], phases_of(*GRPO, "rl.sleep_level=2")[name]
    engine = Evaluator.cycle.func(evaluator_of(job_with(*GRPO))).engine
    freed = engine.weights + engine.kv_cache + engine.working
    assert awake.peak_reserved_bytes - asleep.peak_reserved_bytes == freed
    assert asleep.memory_bytes.engine_other == engine.stays
    assert asleep.host_bytes == 0


def test_light_sleep_keeps_the_weights_on_the_host_until_they_are_sent() -> None:
    found = phases_of(*GRPO, "rl.sleep_level=1")
    weights = found[PhaseName.ROLLOUT].memory_bytes.engine_weights
    assert found[PhaseName.UPDATE].host_bytes == weights > 0
    assert found[PhaseName.WEIGHT_SYNC].host_bytes == 0
    assert found[PhaseName.WEIGHT_SYNC].memory_bytes.engine_weights == weights
    assert found[PhaseName.WEIGHT_SYNC].memory_bytes.kv_cache == 0


@pytest.mark.parametrize("framework", ["huggingface", "megatron_lm"])
def test_offloaded_states_move_to_the_host_to_the_byte(framework) -> None:
    stays = phases_of(*GRPO, framework=framework)[PhaseName.ROLLOUT]
    away = phases_of(*GRPO, "rl.offload_optimizer=true", framework=framework)
    moved, update = away[PhaseName.ROLLOUT], away[PhaseName.UPDATE]
    optimizer = stays.memory_bytes.optimizer
    assert optimizer > 0
    assert moved.host_bytes == optimizer
    assert moved.memory_bytes.parts | {"overhead": 0} == stays.memory_bytes.parts | {
        "overhead": 0,
        "optimizer": 0,
    }
    assert update.memory_bytes.optimizer == optimizer  # it is back
    assert update.host_bytes == 0


def test_weights_wait_on_the_host_except_where_they_are_used() -> None:
    found = phases_of(*GRPO, "rl.offload_params=true", "rl.reference=host")
    there = {name: phase.memory_bytes.weights > 0 for name, phase in found.items()}
    assert there == {
        PhaseName.ROLLOUT: False,
        PhaseName.LOG_PROBS: True,
        PhaseName.REFERENCE: False,
        PhaseName.UPDATE: True,
        PhaseName.WEIGHT_SYNC: True,
    }
    reference = found[PhaseName.REFERENCE].memory_bytes.reference
    assert found[PhaseName.UPDATE].host_bytes == reference
    assert found[PhaseName.ROLLOUT].host_bytes == 2 * reference


def test_gradients_rest_in_megatrons_buffer_and_nowhere_else() -> None:
    eager, buffer = phases_of(*GRPO), phases_of(*GRPO, framework="megatron_lm")
    assert eager[PhaseName.UPDATE].memory_bytes.gradients > 0
    assert eager[PhaseName.ROLLOUT].memory_bytes.gradients == 0
    held = buffer[PhaseName.UPDATE].memory_bytes.gradients
    assert buffer[PhaseName.ROLLOUT].memory_bytes.gradients == held > 0
    freed = phases_of(*GRPO, "rl.offload_gradients=true", framework="megatron_lm")
    assert freed[PhaseName.ROLLOUT].memory_bytes.gradients == 0
    assert freed[PhaseName.ROLLOUT].host_bytes == 0  # nobody needs them again


def test_a_reference_on_the_gpu_is_next_to_every_phase() -> None:
    without, beside = phases_of(*GRPO), phases_of(*GRPO, "rl.reference=gpu")
    weights = without[PhaseName.ROLLOUT].memory_bytes.weights
    assert all(phase.memory_bytes.reference == weights for phase in beside.values())
    assert PhaseName.REFERENCE not in without
    switched = ("tuning.adapter=lora", "rl.reference=adapter_off")
    assert phases_of(*GRPO, *switched)[PhaseName.REFERENCE].memory_bytes.reference == 0


def test_log_probabilities_keep_nothing_and_pay_for_the_head() -> None:
    """One GPU gathers nothing: hidden states and logits of 4096 tokens in 16 bits, their fp32 copy
    and its log-softmax, [4096, 151936] each."""
    job = job_with(*GRPO[:1], gpus="1xH200")
    phase = next(p for p in evaluation_of(job).phases if p.name is PhaseName.LOG_PROBS)
    hidden, logits = 4096 * 4096 * 2, 4096 * 151936
    assert phase.memory_bytes.activations == pytest.approx(10 * logits + hidden, abs=hidden)
    halves = phases_of(*GRPO[:1], "rl.log_prob_micro_batch_size=2", gpus="1xH200")
    twice = halves[PhaseName.LOG_PROBS].memory_bytes.activations
    assert twice == pytest.approx(2 * phase.memory_bytes.activations, abs=1024)
    budget = phases_of(*GRPO[:1], "rl.log_prob_token_budget=8192", gpus="1xH200")
    assert budget[PhaseName.LOG_PROBS].memory_bytes.activations == twice


@pytest.mark.parametrize("spec", ["none", "full"])
def test_recompute_changes_the_update_alone(spec) -> None:
    job = job_with(*PPO)
    plain, found = evaluation_of(job).phases, evaluation_of(job, spec).phases
    trained = (PhaseName.UPDATE, PhaseName.CRITIC_UPDATE)
    for one, other in zip(plain, found, strict=True):
        smaller = one.peak_reserved_bytes > other.peak_reserved_bytes
        assert smaller == (spec == "full" and one.name in trained)


def test_a_critic_has_no_logits_and_its_states_rest_beside_the_policy() -> None:
    found = phases_of(*PPO)
    update, critic = found[PhaseName.UPDATE], found[PhaseName.CRITIC_UPDATE]
    assert critic.memory_bytes.activations < update.memory_bytes.activations
    rest = found[PhaseName.ROLLOUT].memory_bytes.critic
    assert update.memory_bytes.critic == rest > 0
    away = phases_of(*PPO, "rl.critic_on_gpu=false")
    assert away[PhaseName.ROLLOUT].memory_bytes.critic == 0
    assert away[PhaseName.ROLLOUT].host_bytes == rest
    assert 0 < away[PhaseName.VALUES].memory_bytes.critic < rest  # its weights alone
    assert away[PhaseName.CRITIC_UPDATE].memory_bytes.critic == critic.memory_bytes.critic


def test_a_micro_batch_of_pairs_is_two_rows() -> None:
    pairs = evaluation_of(job_with("rl.algorithm=dpo", "rl.reference=none"))
    rows = evaluation_of(job_with(**batches(4096, 2, 256)))
    assert [phase.name for phase in pairs.phases] == [PhaseName.UPDATE]
    assert pairs.stages == rows.stages
    assert pairs.step_time_seconds == rows.step_time_seconds
    assert pairs.tokens_per_second == rows.tokens_per_second
    assert pairs.mfu == rows.mfu


def test_a_weight_sync_gathers_one_tensor_next_to_its_bucket() -> None:
    tensor = 151936 * 4096
    plain = phases_of(*GRPO)[PhaseName.WEIGHT_SYNC].memory_bytes
    bucket = phases_of(*GRPO, "rl.weight_sync_bucket_bytes=2GiB")[PhaseName.WEIGHT_SYNC]
    assert plain.bucket == tensor * (4 + 2)  # the fp32 shard of all ranks, and as it is sent
    assert bucket.memory_bytes.bucket == tensor * 4 + 2 * GIB
    alone = phases_of(*GRPO, gpus="1xH200")[PhaseName.WEIGHT_SYNC].memory_bytes
    assert alone.bucket == tensor * 2


def test_a_cache_without_room_for_one_sequence_does_not_start() -> None:
    row = evaluation_of(job_with(*GRPO, "rl.gpu_memory_utilization=0.21", "rl.sleep_level=2"))
    (rollout,) = (phase for phase in row.phases if phase.name is PhaseName.ROLLOUT)
    assert "no room for one sequence of 4,096 tokens" in rollout.note
    assert row.fit_probability == rollout.fit_probability == 0
    short = job_with(
        *GRPO, "rl.gpu_memory_utilization=0.21", "rl.prompt_length=16", "rl.response_length=16"
    )
    assert "sequences of 32" in evaluation_of(short).phases[0].note


def test_the_share_that_is_offered_is_the_largest_that_fits() -> None:
    job = job_with(*GRPO, "rl.gpu_memory_utilization=0.95", "rl.sleep_level=2")
    (change,) = (c for c in phase_changes(job) if "gpu_memory_utilization" in c.words)
    share = change.make().config.rl.gpu_memory_utilization
    likely = []
    for one in (share, share + 0.01):
        rl = replace(job.config.rl, gpu_memory_utilization=one)
        row = evaluation_of(replace(job, config=replace(job.config, rl=rl)))
        likely.append(min(p.fit_probability for p in row.phases if p.name != PhaseName.UPDATE))
    assert likely[0] >= job.config.certainty > likely[1]
    fits = job_with(*GRPO, "rl.sleep_level=2")
    assert not any("gpu_memory_utilization" in change.words for change in phase_changes(fits))


def test_others_on_the_card_are_counted_to_the_byte() -> None:
    job = job_with(*GRPO)
    alone = reserved_memory(GIB, job.layout, expandable_segments=False)
    with_engine = evaluator_of(job)
    update = with_engine.memory.reserved_with(0, GIB, 0, ())
    beside = with_engine.memory.reserved_with(0, GIB, 0, alone.fixed[:1])
    assert beside.total - update.total == alone.fixed[0].num_bytes
    assert beside.spread == update.spread


def test_host_memory_of_an_adam_that_works_there() -> None:
    """16 bytes of each parameter that is moved: its copy, its gradient, two moments."""
    fields = {"framework": "megatron_lm", "gpus": "8xH100"}
    half = ("job.optimizer_cpu_offload=true", "job.optimizer_offload_fraction=0.5")
    row = evaluation_of(job_with(*half, "job.use_precision_aware_optimizer=true", **fields))
    whole = row.peak.memory_bytes.weights // 2  # parameters of a rank
    shard = -(-whole // row.job.layout.data_parallel_size)
    assert row.host_bytes == 16 * (shard - int(0.5 * shard))


def test_host_memory_of_block_inputs_that_are_offloaded() -> None:
    row = evaluation_of(job_with(), "full+offload")
    assert row.host_bytes == 36 * 4096 * 4096 * 2
    assert evaluation_of(job_with(), "full").host_bytes == 0


@pytest.mark.parametrize(("server", "fits"), [("4TiB", True), ("1TiB", False)])
def test_what_a_server_has_decides_where_it_is_known(server, fits) -> None:
    offloads = ("job.optimizer_cpu_offload=true", "job.param_cpu_offload=true")
    known = (*offloads, f"job.host_memory_bytes={server}")
    job = job_with(*known, framework="deepspeed", model="llama3_70b", gpus="8xH100")
    row = evaluation_of(job, "full")
    assert GIB * 1000 < 8 * row.host_bytes < 2000 * GIB
    assert row.exceeds_host != fits
    assert row.fits == fits
