"""NeMo user guide, features/optimizations/activation_recomputation.rst, statement by statement."""

import pytest

from advisor.base.rule import Level
from advisor.frameworks.megatron.flags import nemo_overrides
from advisor.frameworks.megatron.revisions import resolve_revision
from advisor.frameworks.megatron.setting import parse_setting
from advisor.frameworks.names import Framework
from advisor.lint.target import lint_target
from tests.seeds.walk import advice, evaluation, refused

NEMO_1 = resolve_revision(Framework.NEMO, "1")
KEY = "model.activations_checkpoint_"


@pytest.mark.parametrize(
    ("method", "number"), [("block", 4), ("uniform", 1), ("uniform", 4), ("block", 80)]
)
def test_layers_by_both_methods(method: str, number: int) -> None:
    text = f"{KEY}granularity=full {KEY}method={method} {KEY}num_layers={number}"
    report = lint_target(text)
    assert report.checked[0].release is NEMO_1
    assert Level.ERROR not in {one.level for one in report.findings}
    assert (
        report.checked[0].settings.recompute_method,
        report.checked[0].settings.recompute_num_layers,
    ) == (method, number)
    job = advice("llama3_70b", "32xH100").job
    assert nemo_overrides(parse_setting(f"full:{method}:{number}"), job, NEMO_1) == text


def test_self_attention_by_granularity_alone() -> None:
    report = lint_target(f"{KEY}granularity=selective")
    assert Level.ERROR not in {one.level for one in report.findings}
    assert report.checked[0].settings.effective_modules == ("core_attn",)
    assert refused(f"{KEY}granularity=selective {KEY}method=null model.mcore_gpt=false") == [
        "nemo_selective_needs_method"
    ]


def test_block_of_all_layers_checkpoints_the_input_of_every_layer() -> None:
    found = advice("llama3_70b", "32xH100", recompute=("full:block:4", "full:uniform:1"))
    block, uniform = (evaluation(found, spec) for spec in ("full:block:4", "full:uniform:1"))
    assert block.peak.peak_allocated_bytes == uniform.peak.peak_allocated_bytes
    assert block.step_time_seconds == uniform.step_time_seconds


def test_larger_blocks_keep_less_and_need_a_larger_working_set() -> None:
    found = advice(
        "llama3_70b",
        "64xH100",
        pipeline_model_parallel_size=1,
        tensor_model_parallel_size=8,
        seq_length=32768,
        context_parallel_size=1,
        recompute=("full:uniform:1", "full:uniform:4"),
    )
    one, four = (evaluation(found, f"full:uniform:{n}").peak.memory_bytes for n in (1, 4))
    assert four.activations < one.activations
    assert four.transient > one.transient
