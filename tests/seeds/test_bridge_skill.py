"""Megatron Bridge skills/nemo-mbridge-perf-activation-recompute, statement by statement."""

import pytest

from advisor.base.rule import Level
from advisor.lint.target import lint_target
from tests.seeds.walk import (
    advice,
    evaluation,
    failures,
    lint,
    refused,
    refused_by_bridge,
    remarks_by_bridge,
)

RUN = "uv run python scripts/performance/run_script.py -m llama -mr llama3_8b --task pretrain "
FP8 = {"precision": "fp8_current"}


def test_its_quick_decision_is_understood() -> None:
    core = {"recompute_granularity": "selective", "recompute_modules": ("core_attn",)}
    assert refused_by_bridge(**core) == []
    assert "core_attn_under_flash" in remarks_by_bridge(**core)
    full = {
        "recompute_granularity": "full",
        "recompute_method": "uniform",
        "recompute_num_layers": 4,
    }
    assert refused_by_bridge(**full) == []


def test_its_performance_command_is_read() -> None:
    report = lint_target(RUN + "-g h100 -c bf16 -ng 8 --recompute_modules core_attn,layernorm")
    assert report.checked[0].settings.recompute_modules == ("core_attn", "layernorm")
    assert report.checked[0].settings.recompute_granularity == "selective"
    assert Level.ERROR not in {one.level for one in report.findings}


def test_full_needs_its_two_fields() -> None:
    assert refused_by_bridge(recompute_granularity="full") == [
        "full_needs_method",
        "full_needs_num_layers",
    ]


@pytest.mark.parametrize("module", ["attn", "mlp", "attn,mlp"])
def test_graphs_of_transformer_engine_refuse_layers(module: str) -> None:
    graphs = f"--cuda_graph_impl transformer_engine --cuda_graph_scope {module} "
    assert "cuda_graph_full_recompute" in refused(RUN + graphs + "-rl 4")
    assert refused(RUN + graphs + "--recompute_modules layernorm") == []
    assert refused(RUN + "--cuda_graph_impl none -rl 4") == []
    whole = "--cuda_graph_impl local --cuda_graph_scope full_iteration -rl 4"
    assert refused(RUN + whole) == []


def test_distributed_activations_exclude_sequence_parallelism() -> None:
    fields = {
        "recompute_granularity": "full",
        "recompute_method": "uniform",
        "recompute_num_layers": 1,
        "distribute_saved_activations": True,
        "tensor_model_parallel_size": 4,
    }
    assert refused_by_bridge(**fields) == []
    assert refused_by_bridge(**fields, sequence_parallel=True) == [
        "distribute_with_sequence_parallel"
    ]


def test_cpu_offloading_is_blocked_by_a_pipeline() -> None:
    assert refused(RUN + "-ol 4 -pp 4") == ["cpu_offloading_pipeline"]
    assert refused_by_bridge(cpu_offloading=True, cpu_offloading_num_layers=2, num_layers=8) == []


# Its measurements: Llama 3 70B SFT, 32 x H100, FP8 current scaling, TP4 PP4 VPP5, sequence 4096.


def test_the_baseline_is_too_large_or_nearly_so() -> None:
    """Measured: out of memory on rank 0 under [core_attn]; `none` is no better. Ours is 5 GiB below
    the card: what the driver takes for the recipe's 640 graphs is not known."""
    found = advice("llama3_70b", "32xH100", **FP8)
    for spec in ("none", "selective:core_attn"):
        row = evaluation(found, spec)
        assert row.peak.stage == 0
        assert row.peak.peak_reserved_bytes > 0.93 * row.budget_bytes


def test_mlp_costs_about_what_was_measured() -> None:
    """Measured -16.4 % of the golden throughput; 6 points is the spread between the published
    figures of this table and our step-time model on the same job (README, accuracy)."""
    found = advice("llama3_70b", "32xH100", **FP8)
    mlp = evaluation(found, "selective:mlp")
    lost = 1 - 1 / (1 + mlp.recompute_overhead)
    assert lost == pytest.approx(0.164, abs=0.06)
    assert mlp.fits


def test_mlp_and_core_attn_together_are_slightly_worse_than_mlp_alone() -> None:
    found = advice("llama3_70b", "32xH100", **FP8)
    both = evaluation(found, "selective:core_attn,mlp")
    mlp = evaluation(found, "selective:mlp")
    assert 1.0 < both.step_time_seconds / mlp.step_time_seconds < 1.03
    assert both.peak.peak_reserved_bytes >= mlp.peak.peak_reserved_bytes


def test_layernorm_buys_nothing_and_is_said_to() -> None:
    found = advice("llama3_70b", "32xH100", **FP8)
    assert {r.setting.spec: r.rule for r in found.rejected}["selective:layernorm"] == (
        "layernorm_on_te"
    )
    assert "layernorm_on_te" in lint(RUN + "--recompute_modules core_attn,layernorm")


def test_fragmentation_is_ruled_out_first() -> None:
    text = (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.00 GiB. GPU 0 has a total "
        "capacity of 79.10 GiB of which 0.50 GiB is free. Including non-PyTorch memory, this "
        "process has 78.60 GiB memory in use. Of the allocated memory 58.80 GiB is allocated by "
        "PyTorch, and 18.00 GiB is reserved by PyTorch but unallocated."
    )
    assert failures(text) == ["cuda_out_of_memory"]


@pytest.mark.parametrize(
    ("symptom", "failure"),
    [
        (
            "AssertionError: full recompute is only supported with full iteration CUDA graph.",
            "megatron_graph_full_recompute",
        ),
        (
            "ValueError: Currently there is no support for Pipeline parallelism "
            "with CPU offloading",
            "megatron_offload_refuses_pipeline",
        ),
    ],
)
def test_its_failure_table_is_diagnosed(symptom: str, failure: str) -> None:
    assert failures(symptom) == [failure]


def test_a_large_drop_of_utilisation_by_mlp_is_the_advisor_s_own_figure() -> None:
    found = advice("llama3_70b", "32xH100", **FP8)
    assert 1 - 1 / (1 + evaluation(found, "selective:mlp").recompute_overhead) > 0.15
