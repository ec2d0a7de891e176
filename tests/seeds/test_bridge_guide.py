"""Megatron Bridge docs/training/activation-recomputation.md, statement by statement."""

import pytest

from advisor.frameworks.megatron.rules.engine import check
from advisor.frameworks.megatron.setting import parse_setting
from tests.advisor.jobs import batches
from tests.seeds.walk import (
    BRIDGE,
    advice,
    evaluation,
    layer_bytes,
    refused_by_bridge,
    remarks_by_bridge,
)

SELECTIVE = {"recompute_granularity": "selective"}
EXPERTS = {
    "num_moe_experts": 8,
    "expert_model_parallel_size": 2,
    "moe_grouped_gemm": True,
    "moe_token_dispatcher_type": "alltoall",
}


MODULES = ("core_attn", "mlp", "moe", "shared_experts", "layernorm", "moe_act", "mla_up_proj")


@pytest.mark.parametrize("module", MODULES)
def test_every_module_of_its_list_is_known(module: str) -> None:
    assert module in BRIDGE.recompute_modules
    model = {**EXPERTS, "multi_latent_attention": True, "moe_shared_expert_intermediate_size": 64}
    assert refused_by_bridge(**SELECTIVE, recompute_modules=(module,), **model) == []


def test_labels_of_experts_do_nothing_in_a_dense_model() -> None:
    for module in ("moe", "shared_experts"):
        assert "moe_labels_on_dense" in remarks_by_bridge(**SELECTIVE, recompute_modules=(module,))


def test_core_attn_is_the_default_and_is_said_so() -> None:
    assert "promoted_core_attn" in remarks_by_bridge(**SELECTIVE)
    unset, named = parse_setting("selective"), parse_setting("selective:core_attn")
    assert unset.promoted == named.promoted


def test_its_example_of_experts() -> None:
    fields = {**SELECTIVE, "recompute_modules": ("moe", "moe_act"), **EXPERTS}
    assert refused_by_bridge(**fields) == []
    assert "parts_of_recomputed_moe" in remarks_by_bridge(**fields)


def test_selective_before_full_is_what_the_ranking_says() -> None:
    found = advice("llama3_70b", "32xH100", memory_budget="62GiB")
    mlp, full = (evaluation(found, spec) for spec in ("selective:mlp", "full:uniform:1"))
    assert mlp.step_time_seconds < full.step_time_seconds
    assert layer_bytes(found, "full:uniform:1") < layer_bytes(found, "selective:mlp")
    # The optimizer's step, which no setting changes, is the peak of both.
    assert full.peak.peak_allocated_bytes == mlp.peak.peak_allocated_bytes


def test_attention_internals_cost_more_the_longer_the_context() -> None:
    def overhead(seq_length: int) -> float:
        found = advice(
            "llama3_8b",
            "64xH100",
            **batches(seq_length, 1, 64),
            context_parallel_size=1,  # a ring is exchanged again too, and its share falls
            overrides=("model.max_position_embeddings=131072",),
        )
        return evaluation(found, "selective:core_attn").recompute_overhead

    assert overhead(32768) > 2 * overhead(8192)


def test_a_setting_of_the_guide_that_the_release_lacks_names_those_that_have_it() -> None:
    job = advice("llama3_70b", "32xH100").job
    rejection = check(parse_setting("selective:gdn_norm_out"), job, BRIDGE)[0]
    assert rejection.fix
