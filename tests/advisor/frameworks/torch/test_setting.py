"""Spelling of the PyTorch stacks' settings."""

import pytest

from advisor.frameworks.torch.block_regimes import BlockRegime
from advisor.frameworks.torch.setting import (
    FULL,
    NONE,
    OpPolicy,
    TorchSetting,
    budget,
    by_block,
    every,
    op,
    parse_setting,
    sequential,
    uniform,
)
from advisor.plan.recompute_plan import recomputes
from tests.advisor.refusals import refused
from tests.advisor.tables import tables

TABLES = tables(__file__)

SPELT = {
    "none": NONE,
    "full": FULL,
    "selective:2": every(2),
    "sequential:8": sequential(8),
    "uniform:4": uniform(4),
    "op:save_attention": op(OpPolicy.SAVE_ATTENTION),
    "op:torchtitan": op(OpPolicy.TORCHTITAN),
    "budget:0.5": budget(0.5),
    "budget:0": budget(0.0),
    "blocks:2*none,1*wq/w1~/input~,1*full": by_block(
        (
            BlockRegime(),
            BlockRegime(),
            BlockRegime(checkpointed=True, kept=("wq",), on_host=("w1", "input")),
            BlockRegime(checkpointed=True),
        )
    ),
}


@pytest.mark.parametrize("text", SPELT)
def test_every_form_is_read_and_written(text: str) -> None:
    assert parse_setting(text) == SPELT[text]
    assert SPELT[text].spec == text
    assert recomputes(SPELT[text]) == (text != "none")


def test_options_stand_once_and_in_one_order() -> None:
    text = "full+cpu_checkpointing+no_reentrant+partition_activations+cpu_checkpointing"
    read = parse_setting(text)
    assert read.spec == "full+no_reentrant+partition_activations+cpu_checkpointing"
    assert parse_setting(read.spec) == read
    assert read.offloads
    assert not FULL.offloads


def test_the_kind_of_checkpoint() -> None:
    assert parse_setting("full+use_reentrant").use_reentrant is True
    assert parse_setting("selective:2+no_reentrant").spec == "selective:2+no_reentrant"
    assert FULL.use_reentrant is None


@pytest.mark.parametrize(
    ("text", "words"),
    TABLES["test_what_is_no_setting_is_one_line"],
)
def test_what_is_no_setting_is_one_line(text: str, words: str) -> None:
    with refused(words):
        parse_setting(text)


def test_settings_are_keys() -> None:
    assert len({TorchSetting(), NONE, every(2), parse_setting("selective:2")}) == 2
