"""How a setting is put into a command."""

import re

import pytest

from advisor.base.errors import UserError
from harness.backends.command_flags import FRAMEWORKS, check_framework, check_template
from harness.trial.trial import MeasurementPlan, TrainingCommand
from tests.advisor.tables import tables

TABLES = tables(__file__)

PLAN = MeasurementPlan(steps=10, max_warmup_steps=20, seed=7)


def line(template: str, recompute: str = "--recompute-granularity full") -> str:
    words = (f"recompute={recompute}", "granularity=full", "num_layers=4", "layout=--tp 4")
    return TrainingCommand(template=template, framework="megatron_lm", words=words).shell_line(PLAN)


@pytest.mark.parametrize(("template", "expected"), TABLES["test_placeholders"])
def test_placeholders(template: str, expected: str) -> None:
    assert line(template) == expected


def test_without_recompute_nothing_is_put_in() -> None:
    assert line("train", "") == "train"
    assert line("train {recompute} x", "") == "train  x"


@pytest.mark.parametrize(
    ("template", "framework", "says"), TABLES["test_commands_that_cannot_take_a_setting"]
)
def test_commands_that_cannot_take_a_setting(template: str, framework: str, says: str) -> None:
    with pytest.raises(UserError, match=re.escape(says)):
        check_template(template, framework)


@pytest.mark.parametrize(("template", "framework"), TABLES["test_commands_that_can"])
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
