"""What ModelSpec says and refuses about mixture of experts, as TransformerConfig does."""

from collections import Counter
from typing import Any

import pytest
from msgspec.structs import replace

from advisor.base.errors import UserError
from advisor.models.layer_kind import DENSE, FeedForward, LayerKind
from advisor.models.layer_pattern import LayerPattern
from advisor.models.options import LoadBalancing, ScoreFunction, TokenDispatcher
from advisor.models.spec import ModelSpec
from tests.advisor.toys import LLAMA

MOE = LayerKind(feed_forward=FeedForward.MOE)


def experts(**changes: Any) -> ModelSpec:
    return replace(LLAMA, **{"num_moe_experts": 8, "moe_ffn_hidden_size": 32, **changes})


def test_kinds_follow_the_frequency() -> None:
    assert LLAMA.layer_kinds == (DENSE,) * 8
    assert experts().layer_kinds == (MOE,) * 8
    assert experts(moe_layer_freq=LayerPattern("2")).layer_kinds == (MOE, DENSE) * 4
    some = experts(moe_layer_freq=LayerPattern("([0]*3+[1]*5)"))
    assert Counter(some.layer_kinds) == {DENSE: 3, MOE: 5}


def test_experts_are_as_wide_as_the_mlp_unless_said() -> None:
    assert experts().expert_ffn_hidden_size == 32
    assert experts(moe_ffn_hidden_size=None).expert_ffn_hidden_size == LLAMA.ffn_hidden_size


SINKHORN = {"moe_router_load_balancing_type": LoadBalancing.SINKHORN}


def groups(number: int, topk: int) -> dict[str, int]:
    return {"moe_router_num_groups": number, "moe_router_group_topk": topk}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"num_moe_experts": None}, "needs num_moe_experts"),
        ({"num_moe_experts": 0}, "must be between 1"),
        ({"moe_ffn_hidden_size": -1}, "must be between 1"),
        ({"moe_router_topk": 9}, "must not exceed num_moe_experts = 8"),
        ({"moe_router_topk": 1}, "softmax is over one expert"),
        ({"moe_router_enable_expert_bias": True}, "sigmoid"),
        ({"moe_router_group_topk": 2}, "needs moe_router_num_groups"),
        (groups(3, 2), "num_groups = 3: must divide num_moe_experts = 8; nearest: 2 or 4"),
        (groups(2, 3), "must be between 1 and moe_router_num_groups = 2"),
        ({"moe_pad_expert_input_to_capacity": True}, "needs moe_expert_capacity_factor"),
        ({"moe_expert_capacity_factor": 0.0}, "must be positive"),
        ({"moe_apply_probs_on_input": True}, "moe_router_topk = 1"),
        ({"moe_layer_freq": LayerPattern("[1,0]")}, "has 2 layers, but the model has 8"),
        (
            {"moe_shared_expert_intermediate_size": 32, "moe_shared_expert_overlap": True},
            "alltoall",
        ),
        (SINKHORN | {"moe_aux_loss_coeff": 0.1}, "sinkhorn"),
        (SINKHORN | {"moe_expert_capacity_factor": 1.0}, "sinkhorn"),
    ],
)
def test_refusals(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        experts(**changes)


def test_what_megatron_takes_is_taken() -> None:
    experts(moe_router_topk=1, moe_router_pre_softmax=True, moe_apply_probs_on_input=True)
    experts(
        moe_router_score_function=ScoreFunction.SIGMOID,
        moe_router_enable_expert_bias=True,
        moe_router_num_groups=4,
        moe_router_group_topk=2,
        moe_token_dispatcher_type=TokenDispatcher.ALLTOALL,
        moe_shared_expert_overlap=True,
        moe_shared_expert_intermediate_size=64,
        moe_expert_capacity_factor=1.5,
        moe_pad_expert_input_to_capacity=True,
    )
