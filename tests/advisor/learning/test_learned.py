"""Where what was measured holds, and what a setting does without its numbers."""

import pytest
from msgspec.structs import replace

from advisor.base.dtypes import Precision
from advisor.frameworks.megatron.setting import parse_setting
from advisor.learning.learned import range_of
from advisor.plan.recompute_plan import words_of
from tests.advisor.conftest import JOB

LONGER = replace(JOB, config=replace(JOB.config, seq_length=2 * JOB.config.seq_length))
BETWEEN = replace(JOB, config=replace(JOB.config, seq_length=JOB.config.seq_length * 3 // 2))


def test_sizes_between_the_smallest_and_the_largest_are_inside() -> None:
    found = range_of([JOB, LONGER])
    assert [found.outside(job) for job in (JOB, LONGER, BETWEEN)] == ["", "", ""]
    only = range_of([JOB])
    length = JOB.config.seq_length
    assert only.outside(LONGER) == f"sequence {2 * length:,}, measured {length:,}"


def test_another_kind_is_outside_whatever_its_size() -> None:
    eight = replace(JOB, config=replace(JOB.config, precision=Precision.FP8_CURRENT))
    assert range_of([JOB]).outside(eight) == "precision fp8_current, measured bf16"


def test_the_range_in_words_leaves_degrees_of_one_out() -> None:
    words = range_of([JOB]).description
    assert words.startswith("dense layers, bf16, hidden size 8,192")
    assert "CP" not in words


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("none", set()),
        ("full:block:4", {"full:block"}),
        ("full:uniform:1", {"full:uniform"}),
        ("selective:mlp", {"selective:mlp"}),
        ("selective:layernorm,moe_act", {"selective:layernorm", "selective:moe_act"}),
        ("none+offload=core_attn,attn_proj", {"offload=core_attn", "offload=attn_proj"}),
        ("none+cpu_offloading=8", {"cpu_offloading"}),
    ],
)
def test_what_a_setting_does(spec: str, words: set[str]) -> None:
    assert words_of(parse_setting(spec)) == words
