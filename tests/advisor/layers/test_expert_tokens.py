"""How many tokens a rank routes, receives and computes."""

from typing import Any

import pytest

from advisor.base.errors import UserError
from advisor.layers.expert_tokens import MoeTokens, moe_tokens
from tests.advisor.layers.megatron.moe.moe_toys import TOKENS, moe_shape


def counts(**changes: Any) -> MoeTokens:
    return moe_tokens(moe_shape(**changes))


def test_balanced_routing_gives_every_rank_its_own_number() -> None:
    alone = counts()
    assert (alone.local, alone.routed, alone.received, alone.computed) == (64, 128, 128, 128)
    spread = counts(expert_model_parallel_size=4)
    assert (spread.received, spread.computed, spread.local_experts) == (128, 128, 2)
    assert spread.gathered == 4 * TOKENS


def test_expert_tensor_parallel_ranks_compute_each_others_tokens() -> None:
    cut = counts(
        tensor_model_parallel_size=2, sequence_parallel=True, expert_tensor_parallel_size=2
    )
    assert (cut.local, cut.routed, cut.computed) == (TOKENS // 2, TOKENS, 2 * TOKENS)


def test_the_busiest_rank_receives_more_than_the_mean_but_only_among_several() -> None:
    busy = counts(expert_model_parallel_size=4, moe_load_imbalance=1.5)
    assert (busy.routed, busy.received, busy.computed) == (128, 192, 192)
    assert counts(moe_load_imbalance=1.5).computed == 128


@pytest.mark.parametrize(
    ("factor", "imbalance", "routed", "received"),
    [(1.25, 2.0, 128, 160), (2.0, 1.5, 128, 192), (0.5, 1.0, 64, 64)],
)
def test_a_capacity_factor_bounds_the_imbalance(factor, imbalance, routed, received) -> None:
    found = counts(
        moe_expert_capacity_factor=factor,
        moe_load_imbalance=imbalance,
        expert_model_parallel_size=2,
    )
    assert (found.routed, found.received) == (routed, received)


def test_padding_to_capacity_makes_every_expert_full() -> None:
    found = counts(
        moe_expert_capacity_factor=1.1,
        moe_pad_expert_input_to_capacity=True,
        expert_model_parallel_size=2,
        moe_load_imbalance=3.0,
    )
    assert found.routed == found.received == 8 * 18  # ceil(64 x 2 / 8 x 1.1) = 18


def test_flex_sends_a_token_once_to_each_rank() -> None:
    """Of 4 ranks with 2 experts each, two experts of a token lie on 4 x (1 - 6/8 x 5/7) ranks."""
    found = counts(moe_token_dispatcher_type="flex", expert_model_parallel_size=4)
    assert found.received == 119  # ceil(64 x 13 / 7)
    assert found.computed == 128


def test_experts_share_what_does_not_divide() -> None:
    found = counts(seq_length=31, micro_batch_size=1, moe_router_topk=3)
    each = [found.of_expert(index) for index in range(8)]
    assert sum(each) == found.computed == 93
    assert max(each) - min(each) == 1


def test_an_impossible_top_k_is_refused() -> None:
    with pytest.raises(UserError, match="must not exceed"):
        counts(moe_router_topk=9)
