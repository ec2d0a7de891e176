"""What the parts of a MoE layer keep, exactly, where Megatron cannot be run without a GPU: grouped
GEMM, fused permutation, the flex dispatcher. The rest is checked against Megatron in
tests/oracles."""

from typing import Any

import pytest
from msgspec.structs import replace

from advisor.frameworks.megatron.plan import of_release
from advisor.frameworks.megatron.revisions import resolve_revision
from advisor.layers.megatron.moe.layer import moe_operators
from advisor.layers.operators import MOE_MODULES, CollectiveKind, Group, Module, Operator
from advisor.layers.shape import RankShape
from advisor.models.options import Activation, ScoreFunction
from tests.advisor.jobs import parallel
from tests.advisor.layers.megatron.moe.moe_toys import GROUPED, TOKENS, moe_shape
from tests.advisor.toys import saved_bytes

ROUTED = 2 * TOKENS
HIDDEN = 64 * 2  # bytes of one token
INPUT = TOKENS * HIDDEN


def layer(shape: RankShape) -> tuple[Operator, ...]:
    return moe_operators(shape, shape.hidden("moe_input"))


def kept(**changes: Any) -> dict[str, int]:
    return saved_bytes(layer(moe_shape(**changes)))


def test_grouped_experts_with_fused_permutation() -> None:
    assert kept(**GROUPED) == {
        "moe_input": INPUT,
        "top_indices": TOKENS * 2 * 8,
        "router_scores": TOKENS * 2 * 4,
        "row_id_map": TOKENS * (2 * 8 + 1) * 4,
        "sort_map": ROUTED * 4,
        "unsort_map": ROUTED * 4,
        "expert_tokens": ROUTED * HIDDEN,
        "expert_probs": ROUTED * 2,
        "expert_fc1_out": ROUTED * 2 * 32 * 2,
        "expert_activation_out": ROUTED * 32 * 2,
    }


def test_a_squared_relu_keeps_its_output_before_the_probabilities_unless_fused() -> None:
    """And only a grouped MLP fuses it."""
    squared = {"activation": Activation.SQUARED_RELU, "bias_activation_fusion": False}
    fused = squared | {"use_fused_weighted_squared_relu": True}
    assert kept(**GROUPED, **squared)["weighted_input"] == ROUTED * 32 * 2
    assert "weighted_input" not in kept(**GROUPED, **fused)
    assert "weighted_input_7" in kept(**fused)


def test_gated_experts_keep_no_copy_of_their_linear_half_before_the_offset() -> None:
    """x[1] is a view of linear_fc1's output in megatron-core 0.14.0; in 0.15.3 glu_linear_offset is
    added to it."""
    unfused = {**GROUPED, "activation": Activation.GEGLU}
    added = kept(**unfused)
    before = saved_bytes(layer(replace(moe_shape(**unfused), copies_glu_value=False)))
    assert added["expert_glu_value"] == ROUTED * 32 * 2
    assert set(added) - set(before) == {"expert_glu_value"}
    releases = (resolve_revision("megatron_lm", version) for version in ("0.14", "0.15"))
    shapes = [of_release(moe_shape(), one, overlaps_exchange=False) for one in releases]
    assert [shape.copies_glu_value for shape in shapes] == [False, True]


def test_probabilities_that_come_last_keep_what_they_multiply() -> None:
    """megatron-core 0.11: what the experts give, in place of the product and the probabilities."""
    unfused = {**GROUPED, "activation": Activation.GEGLU}
    now, then = (
        saved_bytes(layer(replace(moe_shape(**unfused), weighs_outputs=last)))
        for last in (False, True)
    )
    assert now["weighted_input"] == ROUTED * 32 * 2
    assert set(now) - set(then) == {"weighted_input", "expert_probs"}
    assert {name: then[name] for name in set(then) - set(now)} == {"unsorted_out": ROUTED * HIDDEN}
    old, new = (resolve_revision("megatron_lm", version) for version in ("0.11", "0.12"))
    shapes = [of_release(moe_shape(), one, overlaps_exchange=False) for one in (old, new)]
    assert [shape.weighs_outputs for shape in shapes] == [True, False]


def test_a_release_that_sorts_keeps_all_pairs_of_expert_and_token() -> None:
    """8 bytes each, in place of a map and of the probabilities in the router's type."""
    masked, sorting = (
        saved_bytes(layer(replace(moe_shape(), sorts_routing_map=sorts))) for sorts in (False, True)
    )
    assert sum(sorting.values()) - sum(masked.values()) == TOKENS * 8 * 5
    assert sorting["sorted_pairs"] == TOKENS * 8 * 8
    fused = replace(moe_shape(**GROUPED), sorts_routing_map=True)
    assert saved_bytes(layer(fused)) == kept(**GROUPED)


def test_a_release_that_scores_in_fp32_casts_nothing_before_the_end() -> None:
    sigmoid = {
        "moe_router_score_function": ScoreFunction.SIGMOID,
        "moe_router_enable_expert_bias": True,
    }
    narrow = kept(**sigmoid)
    wide = saved_bytes(layer(replace(moe_shape(**sigmoid), scores_in_fp32=True)))
    assert narrow["router_scores_cast"] == TOKENS * 8 * 2
    assert "router_scores_cast" not in wide
    assert wide["chosen_scores"] == 2 * narrow["chosen_scores"] == TOKENS * 2 * 4


def test_one_expert_a_rank_is_not_sorted() -> None:
    found = kept(**GROUPED, expert_model_parallel_size=8)
    assert found["received_tokens"] == ROUTED * HIDDEN
    assert not {"expert_tokens", "sort_map", "unsort_map"} & set(found)


def test_sequential_experts_keep_as_much_as_grouped_ones_in_pieces() -> None:
    grouped, pieces = kept(moe_grouped_gemm=True), kept()
    assert sum(grouped.values()) == sum(pieces.values())
    assert pieces["expert_fc1_out_7"] * 8 == grouped["expert_fc1_out"]


def test_a_router_in_fp32_doubles_probabilities_only() -> None:
    narrow, wide = kept(**GROUPED), kept(**GROUPED, moe_router_dtype="fp32")
    grown = {name: wide[name] - narrow[name] for name in wide if wide[name] != narrow[name]}
    assert grown == {"expert_probs": ROUTED * 2}


def test_the_fused_router_keeps_the_map_and_scores_of_all_experts() -> None:
    found = kept(**GROUPED, moe_router_fusion=True)
    assert found["routing_map"] == TOKENS * 8
    assert found["router_scores"] == TOKENS * 8 * 4
    assert "top_indices" not in found


def test_shared_experts_work_on_all_tokens() -> None:
    found = kept(**GROUPED, moe_shared_expert_intermediate_size=16, moe_shared_expert_gate=True)
    assert found["shared_fc1_out"] == TOKENS * 2 * 16 * 2
    assert found["shared_activation_out"] == TOKENS * 16 * 2
    assert found["shared_mlp_out"] == INPUT
    assert found["shared_gate"] == TOKENS * 2


def test_overlapped_shared_experts_keep_the_gathered_input() -> None:
    cut = {**parallel(tp=2, sp=True), "moe_shared_expert_intermediate_size": 16}
    assert "shared_fc1_input" not in kept(**GROUPED, **cut)
    assert kept(**GROUPED, **cut, moe_shared_expert_overlap=True)["shared_fc1_input"] == INPUT


def test_the_flex_dispatcher_permutes_what_it_received() -> None:
    found = kept(**GROUPED, moe_token_dispatcher_type="flex", expert_model_parallel_size=4)
    assert found["row_id_map"] == 119 * (2 * 2 + 1) * 4
    assert found["received_indices"] == 119 * 2 * 8
    assert found["expert_probs"] == ROUTED * 4  # fp32


def collectives(**changes: Any) -> list[tuple[CollectiveKind, Group, int]]:
    return [
        (found.kind, found.group, found.num_bytes)
        for operator in layer(moe_shape(**GROUPED, **changes))
        for found in operator.forward_collectives
    ]


def test_alltoall_goes_there_and_back_between_gather_and_scatter() -> None:
    tokens = (CollectiveKind.ALL_TO_ALL, Group.EXPERT, ROUTED * HIDDEN)
    assert collectives(expert_model_parallel_size=4) == [
        (CollectiveKind.ALL_GATHER, Group.EXPERT_TENSOR_AND_MODEL, 4 * 8 * 8),  # counts, 8 bytes
        tokens,
        (CollectiveKind.ALL_TO_ALL, Group.EXPERT, ROUTED * 2),  # probabilities
        tokens,
    ]
    cut = collectives(**parallel(ep=4, etp=2, tp=2, sp=True))
    assert [(kind, group) for kind, group, _ in cut] == [
        (CollectiveKind.ALL_GATHER, Group.EXPERT_TENSOR_AND_MODEL),
        (CollectiveKind.ALL_TO_ALL, Group.EXPERT),
        (CollectiveKind.ALL_TO_ALL, Group.EXPERT),
        (CollectiveKind.ALL_GATHER, Group.EXPERT_TENSOR),
        (CollectiveKind.REDUCE_SCATTER, Group.EXPERT_TENSOR),
        (CollectiveKind.ALL_TO_ALL, Group.EXPERT),
    ]


@pytest.mark.parametrize("imbalance", [1.0, 1.5])
def test_flex_sends_a_token_once_with_probabilities_and_indices(imbalance: float) -> None:
    found = collectives(
        moe_token_dispatcher_type="flex", expert_model_parallel_size=4, moe_load_imbalance=imbalance
    )
    sent = CollectiveKind.DISPATCH, Group.EXPERT_TENSOR_AND_MODEL
    tokens = int(TOKENS * imbalance)
    assert found == [(*sent, tokens * (HIDDEN + 2 * (4 + 8))), (*sent, tokens * HIDDEN)]


def test_allgather_brings_all_tokens_of_the_group() -> None:
    found = collectives(moe_token_dispatcher_type="allgather", expert_model_parallel_size=4)
    assert found == [
        (CollectiveKind.ALL_GATHER, Group.EXPERT_TENSOR_AND_MODEL, 4 * INPUT),
        (CollectiveKind.REDUCE_SCATTER, Group.EXPERT_TENSOR_AND_MODEL, 4 * INPUT),
    ]
    assert collectives() == []


@pytest.mark.parametrize("grouped", [True, False])
def test_flops_are_those_of_the_tokens_copies(grouped: bool) -> None:
    operators = layer(moe_shape(moe_grouped_gemm=grouped))
    experts = [o for o in operators if o.module in (Module.EXPERT_FC1, Module.EXPERT_FC2)]
    assert sum(o.forward_flops for o in experts) == 2 * ROUTED * 64 * 3 * 32


@pytest.mark.parametrize("grouped", [True, False])
def test_weights_of_a_rank(grouped: bool) -> None:
    weights = [w for o in layer(moe_shape(moe_grouped_gemm=grouped)) for w in o.weights]
    assert sum(w.num_elements for w in weights if w.expert) == 8 * 3 * 32 * 64
    assert [w.num_elements for w in weights if not w.expert] == [8 * 64]  # the router
    spread = layer(moe_shape(moe_grouped_gemm=grouped, expert_model_parallel_size=4))
    assert sum(w.num_elements for o in spread for w in o.weights if w.expert) == 2 * 3 * 32 * 64


def test_every_operator_belongs_to_the_moe_layer() -> None:
    shape = moe_shape(moe_shared_expert_intermediate_size=16, moe_shared_expert_gate=True)
    assert {o.module for o in layer(shape)} == MOE_MODULES
