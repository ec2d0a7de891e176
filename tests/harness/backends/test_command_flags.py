"""How a setting is put into a command."""

import re

import pytest

from advisor.base.errors import UserError
from harness.backends.command_flags import FRAMEWORKS, check_framework, check_template
from harness.trial.trial import MeasurementPlan, TrainingCommand

PLAN = MeasurementPlan(steps=10, max_warmup_steps=20, seed=7)


def line(template: str, recompute: str = "--recompute-granularity full") -> str:
    words = (f"recompute={recompute}", "granularity=full", "num_layers=4", "layout=--tp 4")
    return TrainingCommand(template=template, framework="megatron_lm", words=words).shell_line(PLAN)


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("train {recompute} --x", "train --recompute-granularity full --x"),
        ("train --x", "train --x --recompute-granularity full"),
        (
            "train {recompute} --train-iters {steps} --seed {seed} {layout}",
            "train --recompute-granularity full --train-iters 30 --seed 7 --tp 4",
        ),
        ("train --ac={granularity}:{num_layers}", "train --ac=full:4"),
        ("train --m={modules}", "train --m="),
        ("train ${recompute}", "train ${recompute} --recompute-granularity full"),
        (
            "train {{steps}} | awk '{{print}}' {a,b} {1..3} %q{RANK}",
            "train {steps} | awk '{print}' {a,b} {1..3} %q{RANK} --recompute-granularity full",
        ),
        (
            'train {recompute} --json \'{"a": {"b": 1}}\' ${steps} ${recompute}',
            'train --recompute-granularity full --json \'{"a": {"b": 1}}\' ${steps} ${recompute}',
        ),
    ],
)
def test_placeholders(template: str, expected: str) -> None:
    assert line(template) == expected


def test_without_recompute_nothing_is_put_in() -> None:
    assert line("train", "") == "train"
    assert line("train {recompute} x", "") == "train  x"


ONCE = "would set the same recompute in every trial"
NOWHERE = "must contain {recompute}, where the harness inserts the setting"


@pytest.mark.parametrize(
    ("template", "framework", "says"),
    [
        ("  ", "megatron_lm", "must be the command that trains"),
        ("train --recompute-granularity full", "megatron_lm", ONCE),
        ("train --recompute-modules=mlp {recompute}", "megatron_lm", ONCE),
        ("train --distribute-saved-activations", "megatron_lm", ONCE),
        ("train model.recompute_modules=[mlp]", "megatron_bridge", ONCE),
        ("train -rl 5", "megatron_bridge", ONCE),
        ("train --recompute_modules mlp", "megatron_bridge", ONCE),
        ("train model.config.recompute_method=null", "nemo", ONCE),
        ("train model.activations_checkpoint_method=block", "nemo", ONCE),
        ("train --activation_checkpoint.mode=full", "torchtitan", ONCE),
        ("train activation_checkpoint:full", "torchtitan", ONCE),
        ("deepspeed x.py --deepspeed_config ds.json", "deepspeed", ONCE),
        ("x.py --gradient_checkpointing True", "huggingface", ONCE),
        ("train {recompte}", "other", "{recompte}: is not a placeholder; did you mean recompute?"),
        ("train {rank}", "megatron_lm", "(for literal braces write {{rank}})"),
        ("train", "other", NOWHERE),
        ("train ${recompute}", "other", NOWHERE),
    ],
)
def test_commands_that_cannot_take_a_setting(template: str, framework: str, says: str) -> None:
    with pytest.raises(UserError, match=re.escape(says)):
        check_template(template, framework)


@pytest.mark.parametrize(
    ("template", "framework"),
    [
        ("train -x-rl 5 {recompute}", "megatron_bridge"),
        ("train --ac={recompute}", "other"),
        ("train --ac={granularity}", "other"),
        ("bash train.sh", "megatron_lm"),
        ("deepspeed --num_gpus 8 x.py --deepspeed", "deepspeed"),
        ("x.py --job.config_file=a.toml", "torchtitan"),
    ],
)
def test_commands_that_can(template: str, framework: str) -> None:
    check_template(template, framework)


def test_frameworks() -> None:
    assert " ".join(FRAMEWORKS) == (
        "megatron_lm megatron_bridge nemo torchtitan deepspeed huggingface other"
    )
    with pytest.raises(UserError, match="did you mean megatron_lm"):
        check_framework("megatron")
    with pytest.raises(UserError, match="framework = jax: is not supported") as error:
        check_framework("jax")
    assert str(error.value).count("nemo") == 1
