"""The workload as a log tells it."""

import pytest

from advisor.frameworks.megatron.setting import parse_setting
from harness.logs.workload import (
    contradictions,
    same_spelling,
    stated_recompute,
    stated_workload,
    unknown_workload,
)
from tests.harness.logs import lines

PRINTED = {name: str(value) for name, value in lines.ARGUMENTS.items()} | {"world_size": "32"}
FULL = {"recompute_method": "block", "recompute_num_layers": "4"}
FULL |= {"recompute_modules": "['core_attn']", "distribute_saved_activations": "True"}


def test_everything_that_megatron_prints() -> None:
    printed = ("tensor_model", "pipeline_model", "virtual_pipeline_model", "context")
    degrees = {
        f"{name}_parallel_size": lines.ARGUMENTS[f"{name}_parallel_size"] for name in printed
    }
    assert stated_workload(PRINTED) == {
        "layout": degrees | {"data_parallel_size": 2},
        "model": {"num_layers": 80, "hidden_size": 8192},
        "seq_length": 4096,
        "micro_batch_size": 1,
        "global_batch_size": 32,
        "recompute": "selective:mlp",
    }


def test_what_is_not_printed_is_not_reported() -> None:
    assert stated_workload({}) == {}
    unset = {"virtual_pipeline_model_parallel_size": "None", "seq_length": "-1"}
    assert stated_workload(unset) == {}
    tensor = "tensor_model_parallel_size"
    assert stated_workload({"world_size": "8", tensor: "3"}) == {"layout": {tensor: 3}}


def test_deepspeed_prints_its_batch() -> None:
    reported = stated_workload({"train_batch_size": "256", "train_micro_batch_size_per_gpu": "2"})
    assert reported == {"global_batch_size": 256, "micro_batch_size": 2}


@pytest.mark.parametrize(
    ("granularity", "others", "spec"),
    [
        ("None", {"recompute_modules": "['core_attn']"}, "none"),
        ("selective", {}, "selective:core_attn"),
        ("selective", {"recompute_modules": "[]"}, "none"),
        ("selective", {"recompute_modules": "['mlp', 'core_attn']"}, "selective:core_attn,mlp"),
        ("full", FULL, "full:block:4+distribute_saved_activations"),
        ("None", {"offload_modules": "['core_attn']"}, "none+offload=core_attn"),
        ("other", {}, None),
        ("full", {"recompute_method": "odd"}, None),
        ("full", {"recompute_modules": "f("}, None),
    ],
)
def test_the_setting_that_megatron_prints(granularity, others, spec) -> None:
    assert stated_recompute({"recompute_granularity": granularity, **others}) == spec
    assert stated_recompute({}) is None


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("selective", "selective:core_attn"),
        ("selective:mlp,core_attn", "selective:core_attn,mlp"),
        ("selective:", "none"),
    ],
)
def test_settings_that_act_alike_are_spelt_alike(one: str, other: str) -> None:
    assert same_spelling(parse_setting(one)) == same_spelling(parse_setting(other))


def test_contradictions() -> None:
    asked = {"layout": {"tensor_model_parallel_size": 4}, "recompute": "selective:mlp"}
    assert contradictions(asked, PRINTED) == ()
    wrong = {"layout": {"tensor_model_parallel_size": 8}, "recompute": "none", "seq_length": 4096}
    assert contradictions(wrong, PRINTED) == (
        "layout.tensor_model_parallel_size is 4 in the log, 8 in the request",
        "recompute is selective:mlp in the log, none in the request",
    )
    assert contradictions({"recompute": "op:save_matmuls"}, PRINTED) == ()


def test_a_workload_that_nobody_named() -> None:
    found = unknown_workload(PRINTED, "train")
    assert (found["model"]["name"], found["backend"]) == ("80x8192", "command")
    assert unknown_workload({}, "train")["model"] == {"name": "train"}
