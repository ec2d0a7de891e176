"""A rollout engine by the formulae of vLLM and SGLang: what is left for the KV cache, and what it
gives back asleep."""

import pytest
from msgspec.structs import replace

from advisor.base.units import GIB, MIB
from advisor.job.job import Job
from advisor.job.layout import ParallelLayout
from advisor.job.reinforcement import Algorithm, Engine, Reinforcement
from advisor.layers.parameters import parameter_count
from advisor.memory.rollout_engine import RolloutEngine, kv_bytes_per_token, rollout_engine
from advisor.models.presets import load_model
from tests.advisor.jobs import job_config, job_of

CONTEXT, COMMUNICATOR, GRAPHS = 751 * MIB, 900 * 10**6, 600 * MIB


def engine_of(held: int = 0, **rl: object) -> tuple[Job, RolloutEngine]:
    phases = Reinforcement(algorithm=Algorithm.GRPO, **{"engine": Engine.VLLM, **rl})
    layout = ParallelLayout(data_parallel_size=2)
    job = job_of("qwen3_8b", layout, job_config(4096, 1, 8, rl=phases))
    found = rollout_engine(job, held)
    assert found is not None
    return job, found


@pytest.mark.parametrize(
    ("model", "ranks", "values"),
    [
        ("qwen3_8b", 1, 36 * 2 * 8 * 128),
        ("qwen3_8b", 2, 36 * 2 * 4 * 128),
        ("qwen3_8b", 16, 36 * 2 * 1 * 128),  # a head is not cut
        ("deepseek_v3", 8, 61 * (512 + 64)),  # one latent vector, on every rank
        ("qwen3_next_80b_a3b", 1, 12 * 2 * 2 * 256),  # three layers in four are linear
    ],
)
def test_a_token_in_the_cache_is_keys_and_values_of_the_layers_that_attend(
    model, ranks, values
) -> None:
    assert kv_bytes_per_token(load_model(model), ranks) == 2 * values


@pytest.mark.parametrize(("share", "ranks"), [(0.6, 1), (0.9, 1), (0.5, 2)])
def test_vllm_takes_its_share_of_the_whole_card_and_its_context(share, ranks) -> None:
    job, found = engine_of(gpu_memory_utilization=share, engine_tensor_parallel_size=ranks)
    assert found.awake == pytest.approx(share * job.gpu.memory_bytes + CONTEXT, abs=1)
    assert found.weights == -(-parameter_count(job.model).total // ranks) * 2
    assert found.stays == CONTEXT + GRAPHS + COMMUNICATOR * (ranks > 1)
    assert found.tokens == found.kv_cache // kv_bytes_per_token(job.model, ranks)


def test_the_largest_step_of_vllm_comes_out_of_its_share() -> None:
    _, found = engine_of(gpu_memory_utilization=0.6)
    layer = 8192 * (3 * 12288 + 2 * 4096) * 2
    assert found.working == layer > 256 * 151936 * 10


def test_sglang_takes_its_share_of_what_is_free_and_computes_outside_it() -> None:
    job, found = engine_of(30 * GIB, engine=Engine.SGLANG, gpu_memory_utilization=0.8)
    static = found.weights + found.kv_cache + GRAPHS
    assert static == pytest.approx(0.8 * (job.gpu.memory_bytes - 30 * GIB), abs=1)
    assert found.awake == static + found.working + CONTEXT


def test_an_engine_whose_share_is_smaller_than_its_weights_has_no_cache() -> None:
    _, found = engine_of(gpu_memory_utilization=0.1)
    assert found.kv_cache < 0
    assert found.tokens == 0


def test_an_engine_elsewhere_takes_nothing() -> None:
    job, _ = engine_of()
    for rl in (replace(job.config.rl, colocated=False), Reinforcement(algorithm=Algorithm.GRPO)):
        assert rollout_engine(replace(job, config=replace(job.config, rl=rl)), 0) is None
