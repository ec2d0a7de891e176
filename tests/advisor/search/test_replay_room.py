"""That no setting frees more than the bound on replays says."""

from collections import Counter
from typing import Any

import pytest

from advisor.frameworks.registry import parts_of
from advisor.memory.chunk_units import kept_bytes
from advisor.plan.recompute_plan import tallied
from advisor.request.request import Request
from advisor.search.advise import advise
from advisor.search.replay_room import Made, kept_by_operator, most_freed
from advisor.time.passes import replay_seconds
from tests.advisor.jobs import evaluator_of


def test_the_cheapest_bytes_go_first_and_the_last_operator_in_part() -> None:
    made = (Made(4.0, 400), Made(1.0, 300), Made(0.0, 7))
    assert [most_freed(made, seconds) for seconds in (-1.0, 0.0, 1.0, 3.0, 9.0)] == [
        7.0,
        7.0,
        307.0,
        507.0,
        707.0,
    ]


@pytest.mark.parametrize(
    ("model", "gpus", "fields"),
    [
        ("llama3_70b", "64xH100", {}),
        ("deepseek_v3", "1024xH100", {}),
        ("qwen3_next_80b_a3b", "64xH100", {}),
        ("nemotron3_nano_30b_a3b", "32xH100", {}),
        ("mixtral_8x7b", "16xH200", {"framework": "torchtitan"}),
        ("llama3_8b", "8xH100", {"framework": "deepspeed"}),
        ("llama3_8b", "8xH100", {"framework": "huggingface"}),
    ],
)
def test_no_setting_frees_more_in_its_seconds(
    model: str, gpus: str, fields: dict[str, Any]
) -> None:
    job = advise(Request(model=model, gpus=gpus, quick=True, **fields)).job
    stack, evaluator = parts_of(job.config.framework), evaluator_of(job)
    shape, rates = evaluator.shape, evaluator.rates
    for held in evaluator.stages:
        layers = held[0].layers
        made = [
            one.times(count, 1)
            for kind, count in Counter(layers).items()
            for one in kept_by_operator(shape, *rates, kind)
        ]
        whole = kept_bytes(shape, stack.memory.plan(stack.settings.none, shape, layers, job))
        assert sum(one.num_bytes for one in made) == whole
        for setting in stack.settings.tried(job):
            plan = stack.memory.plan(setting, shape, layers, job)
            seconds = sum(
                count * replay_seconds(shape, *rates, kind, segment.replay)
                for segment in tallied(plan)
                for kind, count in segment.kinds()
            )
            assert kept_bytes(shape, plan) >= whole - most_freed(made, seconds * (1 + 1e-9)) - 1
