"""Megatron Bridge docs/training/activation-recomputation.md, statement by statement."""

import pytest

from advisor.frameworks.megatron.plan import chunk_plan
from advisor.frameworks.megatron.revisions import CheckpointKind, checkpoint_kind
from advisor.frameworks.megatron.rules.engine import check
from advisor.frameworks.megatron.setting import parse_setting
from advisor.models.layer_kind import DENSE
from advisor.models.presets import load_model
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


@pytest.mark.parametrize("method", ["uniform", "block"])
@pytest.mark.parametrize("number", [4, 8])
def test_full_recompute_of_its_examples_is_accepted(method: str, number: int) -> None:
    full = {"recompute_granularity": "full", "recompute_num_layers": number}
    assert refused_by_bridge(**full, recompute_method=method) == []
    assert refused_by_bridge(**full) == ["full_needs_method"]


def test_block_counts_layers_of_a_virtual_stage() -> None:
    """recompute_num_layers is per virtual stage: chunks of two layers, one recomputed in each."""
    model = load_model("llama3_8b")
    plan = chunk_plan(parse_setting("full:block:1"), model, (DENSE, DENSE), False)
    assert [(segment.num_layers, segment.whole) for segment in plan.segments] == [
        (1, True),
        (1, False),
    ]
    uniform = chunk_plan(parse_setting("full:uniform:8"), model, (DENSE,) * 16, False)
    assert sum(segment.copies for segment in uniform.segments) == 2


MODULES = {
    "core_attn": CheckpointKind.PLAIN,
    "mlp": CheckpointKind.PLAIN,
    "moe": CheckpointKind.PLAIN,
    "shared_experts": CheckpointKind.PLAIN,
    "layernorm": CheckpointKind.OUTPUT_DISCARDING,
    "moe_act": CheckpointKind.OUTPUT_DISCARDING,
    "mla_up_proj": CheckpointKind.OUTPUT_DISCARDING,
}


@pytest.mark.parametrize("module", MODULES)
def test_every_module_of_its_list_is_known_and_has_its_kind_of_checkpoint(module: str) -> None:
    assert module in BRIDGE.recompute_modules
    assert checkpoint_kind(module) is MODULES[module]
    model = {**EXPERTS, "multi_latent_attention": True, "moe_shared_expert_intermediate_size": 64}
    assert refused_by_bridge(**SELECTIVE, recompute_modules=(module,), **model) == []


def test_modules_that_a_dense_model_lacks_are_refused_or_said_to_do_nothing() -> None:
    def dense(module: str) -> tuple[list[str], list[str]]:
        fields = {**SELECTIVE, "recompute_modules": (module,)}
        return refused_by_bridge(**fields), remarks_by_bridge(**fields)

    assert dense("mla_up_proj")[0] == ["mla_up_proj_needs_mla"]
    assert dense("moe_act")[0] == ["moe_act_needs_grouped_gemm"]
    assert "moe_labels_on_dense" in dense("moe")[1]
    assert "moe_labels_on_dense" in dense("shared_experts")[1]
    assert "layernorm_on_te" in dense("layernorm")[1]


def test_core_attn_is_the_default_and_is_said_so() -> None:
    assert "promoted_core_attn" in remarks_by_bridge(**SELECTIVE)
    unset, named = parse_setting("selective"), parse_setting("selective:core_attn")
    assert unset.promoted == named.promoted


def test_distributed_activations_under_selective_are_ignored_and_exclude_sp() -> None:
    """The guide's own example: Megatron Core reads the field under full recompute only."""
    fields = {**SELECTIVE, "distribute_saved_activations": True, "tensor_model_parallel_size": 4}
    assert "distribute_ignored" in remarks_by_bridge(**fields)
    assert refused_by_bridge(**fields, sequence_parallel=True) == [
        "distribute_with_sequence_parallel"
    ]


def test_its_example_of_experts() -> None:
    fields = {**SELECTIVE, "recompute_modules": ("moe", "moe_act"), **EXPERTS}
    assert refused_by_bridge(**fields) == []
    assert "parts_of_recomputed_moe" in remarks_by_bridge(**fields)


def test_graphs_of_transformer_engine_go_with_selective_and_not_with_full() -> None:
    graphs = {"cuda_graph_impl": "transformer_engine", "cuda_graph_modules": ("attn",)}
    full = {"recompute_granularity": "full", "recompute_method": "block", "recompute_num_layers": 2}
    assert refused_by_bridge(**full, **graphs) == ["cuda_graph_full_recompute"]
    assert refused_by_bridge(**full, cuda_graph_impl="full_iteration") == []
    assert refused_by_bridge(**SELECTIVE, recompute_modules=("mlp",), **graphs) == []


def test_overlap_of_experts_wants_something_smaller_than_full() -> None:
    overlap = {**EXPERTS, "overlap_moe_expert_parallel_comm": True}
    full = {
        "recompute_granularity": "full",
        "recompute_method": "uniform",
        "recompute_num_layers": 1,
    }
    assert refused_by_bridge(**overlap, **full) == ["expert_overlap_full_recompute"]
    moe_act = {**SELECTIVE, "recompute_modules": ("moe_act",)}
    assert refused_by_bridge(**overlap, **moe_act) == []


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
            seq_length=seq_length,
            context_parallel_size=1,  # a ring is exchanged again too, and its share falls
            global_batch_size=64,
            micro_batch_size=1,
            overrides=("model.max_position_embeddings=131072",),
        )
        return evaluation(found, "selective:core_attn").recompute_overhead

    assert overhead(32768) > 2 * overhead(8192)


def test_experts_are_ranked_as_well() -> None:
    found = advice("mixtral_8x7b", "64xH100")
    assert "selective:moe_act" in [c.evaluation.setting.spec for c in found.candidates]


def test_a_setting_of_the_guide_that_the_release_lacks_names_those_that_have_it() -> None:
    job = advice("llama3_70b", "32xH100").job
    rejection = check(parse_setting("selective:gdn_norm_out"), job, BRIDGE)[0]
    assert rejection.fix
