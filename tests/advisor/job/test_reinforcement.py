"""`rl.KEY`: what is refused, in one line."""

from typing import Any

import pytest

from advisor.base.errors import UserError
from advisor.job.layout import ParallelLayout
from advisor.job.reinforcement import Algorithm, Engine, Reference, Reinforcement
from tests.advisor.jobs import job_config, job_of

ROLLS = {"algorithm": Algorithm.GRPO, "engine": Engine.VLLM}


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"algorithm": Algorithm.GRPO, "sleep_level": 1}, "rl.sleep_level = 1: needs a rollout"),
        ({**ROLLS, "colocated": False, "sleep_level": 1}, "rl.sleep_level = 1: needs a rollout"),
        ({**ROLLS, "sleep_level": 3}, "rl.sleep_level = 3: must be 0, 1 or 2"),
        ({**ROLLS, "gpu_memory_utilization": 1.2}, "must be above 0 and at most 1"),
        ({**ROLLS, "gpu_memory_utilization": 0.0}, "must be above 0 and at most 1"),
        ({"engine": Engine.VLLM}, "rl.engine = vllm: generates samples, which rl.algorithm=sft"),
        ({"algorithm": Algorithm.GRPO, "critic_on_gpu": False}, "needs a critic"),
        ({**ROLLS, "log_prob_token_budget": 0}, "must be at least 1"),
        ({**ROLLS, "num_generations": 0}, "must be at least 1"),
    ],
)
def test_phases_that_make_no_sense_are_refused(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        Reinforcement(**fields)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({**ROLLS, "engine_tensor_parallel_size": 3}, "must divide the 8 GPUs.*nearest: 2 or 4"),
        (
            {"algorithm": Algorithm.DPO, "reference": Reference.ADAPTER_OFF},
            "needs an adapter to switch off",
        ),
    ],
)
def test_phases_that_do_not_suit_the_job_are_refused(fields: dict[str, Any], said: str) -> None:
    config = job_config(4096, 1, 8, rl=Reinforcement(**fields))
    with pytest.raises(UserError, match=said):
        job_of("qwen3_8b", ParallelLayout(data_parallel_size=8), config)


def test_an_engine_elsewhere_may_have_any_degree() -> None:
    rl = Reinforcement(**ROLLS, colocated=False, engine_tensor_parallel_size=3)
    job = job_of("qwen3_8b", ParallelLayout(), job_config(4096, 1, 8, rl=rl))
    assert not job.config.rl.shares_gpus
