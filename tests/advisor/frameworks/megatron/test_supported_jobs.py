"""What recipes of NeMo and Megatron Bridge have in common."""

import pytest

from advisor.base.dtypes import Precision
from advisor.frameworks.registry import parts_of
from advisor.models.presets import load_model


def options(framework: str, version: str, precision: Precision = Precision.BF16) -> dict[str, str]:
    found = parts_of(framework).jobs.recipe_options(load_model("llama3_8b"), precision, version)
    return {name: str(value) for name, value in found.items()}


def test_nemo_2_in_its_performance_mode() -> None:
    assert options("nemo", "2") == {
        "cross_entropy_fusion": "native",
        "main_grads_dtype": "bfloat16",
        "tp_comm_overlap": "True",
    }


def test_nemo_overlaps_no_tp_with_experts() -> None:
    model = load_model("mixtral_8x7b")
    found = parts_of("nemo").jobs.recipe_options(model, Precision.BF16, "2")
    assert found["tp_comm_overlap"] is False


def test_nemo_1_writes_everything_out() -> None:
    assert options("nemo", "1") == {}


def test_bridge_fuses_the_loss() -> None:
    assert options("megatron_bridge", "0.6") == {"cross_entropy_fusion": "native"}


@pytest.mark.parametrize(
    ("precision", "gathers"),
    [
        (Precision.BF16, False),
        (Precision.FP8_DELAYED, True),
        (Precision.FP8_CURRENT, True),
        (Precision.MXFP8, True),
        (Precision.FP8_BLOCKWISE, False),
        (Precision.NVFP4, False),
    ],
)
def test_weights_in_eight_bits(precision: Precision, gathers: bool) -> None:
    for framework, version in (("nemo", "2"), ("megatron_bridge", "0.6")):
        assert ("fp8_param_gather" in options(framework, version, precision)) == gathers


@pytest.mark.parametrize("framework", ["megatron_lm", "torchtitan", "fsdp2", "deepspeed"])
def test_command_lines_and_scripts_have_no_recipes(framework: str) -> None:
    jobs = parts_of(framework).jobs
    model = load_model("llama3_8b")
    assert jobs.recipe_options(model, Precision.BF16, jobs.version("")) is None
