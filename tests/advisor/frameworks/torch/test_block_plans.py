"""Plans of blocks: what they may say, how they are written, and that none of the framework's own
settings beats the one that is found."""

from typing import Any

import pytest

from advisor.frameworks.torch.setting import parse_setting
from tests.advisor.jobs import evaluator_of

from .jobs import stack_job

ATTENTION_ALONE = parse_setting("blocks:8*none,24*wq/core_attention")


@pytest.mark.parametrize(
    ("spec", "options", "rule"),
    [
        ("blocks:31*none", {}, "blocks.number"),
        ("blocks:32*q_proj", {}, "blocks.unknown"),
        ("blocks:32*wq~", {"overrides": ("job.torch_compile=true",)}, "blocks.on_host"),
        ("blocks:32*wq", {"framework_version": "0.1"}, "blocks.version"),
        ("blocks:32*wq", {"precision": "fp8_current"}, "blocks.calls"),
    ],
)
def test_what_is_refused(spec: str, options: dict[str, Any], rule: str) -> None:
    stack, job = stack_job("torchtitan", **options)
    assert [problem.rule for problem in stack.settings.check(parse_setting(spec), job)] == [rule]


def test_other_frameworks_have_no_word_for_it() -> None:
    stack, job = stack_job("deepspeed")
    (problem,) = stack.settings.check(ATTENTION_ALONE, job)
    assert problem.rule == "setting.unknown_to_framework"


def test_the_file_is_python_with_the_plan_in_it() -> None:
    stack, job = stack_job("torchtitan", framework_version="0.2")
    assert not stack.settings.check(ATTENTION_ALONE, job)
    text = stack.spelling.config_file(ATTENTION_ALONE, job)
    compile(text, "recompute_plan.py", "exec")
    assert f'SPEC = "{ATTENTION_ALONE.spec}"' in text
    assert "*[None] * 8" in text
    assert "*[Way(keep=frozenset([('attention', 0), ('matmul', 0)]))] * 24" in text
    assert "type: ignore" not in text


@pytest.mark.parametrize(
    ("framework", "version", "flags"),
    [
        ("fsdp2", "2.13", "apply_plan(model.layers)"),
        ("torchtitan", "0.2", "--experimental.custom_import=recompute_plan"),
        ("torchtitan", "0.3", "activation_checkpoint:none"),
    ],
)
def test_flags(framework: str, version: str, flags: str) -> None:
    stack, job = stack_job(framework, framework_version=version)
    assert flags in stack.spelling.setting_flags(ATTENTION_ALONE, job)


def test_every_nth_block_is_said_by_options() -> None:
    stack, job = stack_job("torchtitan", framework_version="0.2")
    second = parse_setting("blocks:" + ",".join(["1*none,1*full"] * 16))
    assert stack.spelling.setting_flags(second, job) == (
        "--activation_checkpoint.mode=selective --activation_checkpoint.selective_ac_option=2 "
        "--activation_checkpoint.early_stop"
    )
    assert "early_stop = true" in stack.spelling.config_file(parse_setting("blocks:32*full"), job)


@pytest.mark.parametrize(("framework", "budget"), [("fsdp2", "48GiB"), ("torchtitan", "62GiB")])
def test_none_of_the_frameworks_own_settings_is_faster(framework: str, budget: str) -> None:
    """Nor do copies to the host make a plan slower; each plan is what its spelling says."""
    stack, job = stack_job(framework, memory_budget=budget, micro_batch_size=1)
    evaluator = evaluator_of(job)
    own = [evaluator.evaluate(setting).simulated for setting in stack.settings.candidates(job)]
    solved = stack.optimum.solved(evaluator)
    found = [evaluator.evaluate(setting).simulated for setting in solved.settings]
    assert all(one.fits and not stack.settings.check(one.setting, job) for one in found)
    assert [parse_setting(one.setting.spec) for one in found] == [*solved.settings]
    seconds = [one.step_time_seconds for one in found]
    assert seconds == sorted(seconds, reverse=True)
    assert solved.bound_seconds <= seconds[-1]
    assert seconds[-1] <= min(one.step_time_seconds for one in own if one.fits)


def test_a_compiled_block_keeps_what_the_partitioner_does() -> None:
    """Without copies to the host; budgets of torch.compile stand next to the plan."""
    stack, job = stack_job(
        "torchtitan", memory_budget="40GiB", overrides=("job.torch_compile=true",)
    )
    evaluator = evaluator_of(job)
    solved = stack.optimum.solved(evaluator)
    setting, *budgets = solved.settings
    assert "~" not in setting.spec
    assert [one.spec for one in budgets] == [f"budget:0.{tenths}" for tenths in range(1, 10)]
    found = [evaluator.evaluate(one).simulated for one in solved.settings]
    assert found[0].fits
    own = [one.step_time_seconds for one in found[1:] if one.fits]
    assert all(found[0].step_time_seconds <= seconds for seconds in own)


def test_a_plan_that_the_framework_has_a_word_for_follows_from_it() -> None:
    stack, job = stack_job("fsdp2", gpus="64xH100", global_batch_size=64, micro_batch_size=1)
    solved = stack.optimum.solved(evaluator_of(job))
    assert [setting.spec for setting in solved.settings] == ["none"]
