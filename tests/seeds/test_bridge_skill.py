"""Megatron Bridge skills/nemo-mbridge-perf-activation-recompute, statement by statement."""

import pytest

from advisor.base.rule import Level
from advisor.lint.target import lint_target
from tests.seeds.walk import (
    advice,
    evaluation,
)

RUN = "uv run python scripts/performance/run_script.py -m llama -mr llama3_8b --task pretrain "
FP8 = {"precision": "fp8_current"}


def test_its_performance_command_is_read() -> None:
    report = lint_target(RUN + "-g h100 -c bf16 -ng 8 --recompute_modules core_attn,layernorm")
    assert report.checked[0].settings.recompute_modules == ("core_attn", "layernorm")
    assert report.checked[0].settings.recompute_granularity == "selective"
    assert Level.ERROR not in {one.level for one in report.findings}


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
    assert 0.15 < lost == pytest.approx(0.164, abs=0.06)
    assert mlp.fits


def test_mlp_and_core_attn_together_are_slightly_worse_than_mlp_alone() -> None:
    found = advice("llama3_70b", "32xH100", **FP8)
    both = evaluation(found, "selective:core_attn,mlp")
    mlp = evaluation(found, "selective:mlp")
    assert 1.0 < both.step_time_seconds / mlp.step_time_seconds < 1.03
    assert both.peak.peak_reserved_bytes >= mlp.peak.peak_reserved_bytes
