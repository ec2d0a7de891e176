"""Memory of a job's stages: what is known before their passes are walked through."""

import pytest

from advisor.frameworks.registry import parts_of
from advisor.job.pipeline_split import Pipeline, pipeline_stages
from advisor.request.request import Request
from advisor.request.resolve import resolve
from advisor.search.job_memory import JobMemory
from advisor.search.rank_shape import rank_shape


@pytest.mark.parametrize(
    ("model", "gpus", "framework"),
    [
        ("llama3_70b", "64xH100", "megatron_lm"),
        ("llama3_70b", "64xH100", "torchtitan"),
        ("qwen3_30b_a3b", "16xH100", "megatron_bridge"),
        ("deepseek_v3", "1024xH100", "megatron_lm"),
        ("llama3_8b", "8xH100", "huggingface"),
    ],
)
def test_stages_reserve_no_less_than_what_their_layers_keep(
    model: str, gpus: str, framework: str
) -> None:
    """Of every setting, offloading ones and whole checkpoints among them."""
    resolution = resolve(Request(model=model, gpus=gpus, framework=framework))
    assert resolution.layout is not None
    job, stack = resolution.job(resolution.layout), parts_of(framework)
    shape, stages = stack.memory.shape(job, rank_shape(job)), pipeline_stages(job.model, job.layout)
    pipeline = Pipeline(stages)
    memory = JobMemory(job, shape, stages, pipeline, stack.memory)
    for setting in stack.settings.candidates(job):
        plans = [stack.memory.plan(setting, shape, layers, job) for layers in pipeline.groups]
        found = [stage.reserved for stage in memory.each_stage(plans)]
        least = list(memory.at_least(plans))
        assert max(one.total for one in least) > max(one.total for one in found) / 3
        for one, other in zip(least, found, strict=True):
            assert one.total <= other.total
            budget = int(1.01 * other.total)
            assert one.fit_probability(budget) >= other.fit_probability(budget)
