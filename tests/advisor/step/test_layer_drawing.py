"""Every byte that a layer keeps is drawn at an operator, once."""

import pytest
from msgspec.structs import replace

from advisor.memory.chunk_units import kept_bytes
from advisor.request.request import Request
from advisor.search.advise import advise
from advisor.search.evaluate import Evaluator
from advisor.step.layer_drawing import DrawnLayer, Fate, drawn_layers

LLAMA = (
    *("none", "selective:core_attn,mlp", "selective:mlp+offload=attn_norm,qkv_linear,core_attn"),
    *("full:block:2", "full:uniform:2+distribute_saved_activations"),
)


@pytest.mark.parametrize(
    "request_",
    [
        Request(model="llama3_70b", gpus="32xH100", recompute=LLAMA),
        Request(model="qwen3_30b_a3b", gpus="16xH100", recompute=("none", "selective:moe_act")),
        Request(model="llama3_8b", gpus="8xH100", framework="torchtitan"),
        Request(
            model="llama3_8b", gpus="8xH100", framework="torchtitan", recompute=("budget:0.5",)
        ),
    ],
    ids=["dense", "experts", "blocks", "a compiler's choice"],
)
def test_drawn_bytes_are_those_that_the_layers_keep(request_: Request) -> None:
    for candidate in advise(replace(request_, quick=True)).candidates:
        evaluation = candidate.evaluation
        evaluator = Evaluator(evaluation.job, evaluation.calibration)
        layers = drawn_layers(evaluation, evaluator)
        plans = [
            evaluator.plan(evaluation.setting, c.layers) for held in evaluator.stages for c in held
        ]
        kept = sum(kept_bytes(evaluator.shape, plan) for plan in plans)
        assert sum(of_model(layer) for layer in layers) == kept
        assert sum(layer.layers for layer in layers) == evaluation.job.model.num_layers


def of_model(layer: DrawnLayer) -> int:
    return layer.num_bytes(Fate.KEPT) * layer.layers // (layer.together or 1)


def test_a_layer_in_order() -> None:
    spec = "selective:mlp+offload=core_attn"
    answer = advise(Request(model="llama3_70b", gpus="32xH100", recompute=(spec,)))
    (layer,) = drawn_layers(answer.candidates[0].evaluation)
    by_name = {operator.name: operator for operator in layer.operators}
    assert list(by_name)[:2] == ["input_layernorm", "linear_qkv"]
    fc1, attention = by_name["linear_fc1"], by_name["core_attention"]
    assert fc1.work.startswith("[4096, 8192] x [8192, 14336]")
    assert fc1.replay_seconds == fc1.forward_seconds > 0
    assert attention.replay_seconds == 0
    assert by_name["activation"].num_bytes(Fate.REPLAYED) == 4096 * 2 * 28672 // 4 * 2
    assert attention.num_bytes(Fate.OFFLOADED) > 0
    assert layer.layers == 80
    assert layer.together == 0
