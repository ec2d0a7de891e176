"""GPUs that nothing was measured on: each gives an answer that says so, and refuses what it
lacks."""

import json

import pytest

import advisor
from advisor.base.errors import UserError
from advisor.cli.main import main
from tests.advisor.jobs import batches
from tests.advisor.tables import tables

TABLES = tables(__file__)

pytestmark = pytest.mark.slow

UNCALIBRATED = {
    "4xA10": "qwen3_1.7b",
    "4xL4": "qwen3_1.7b",
    "8xRTX4090": "qwen3_4b",
    "2xA6000": "qwen3_1.7b",
} | dict.fromkeys(("8xRTX-PRO-6000", "8xMI300X", "8xMI355X"), "llama3_8b")
OLDER = ("fp8_delayed", "fp8_current")
RECIPES = {
    "A10": (),
    "V100": (),
    "H800": (*OLDER, "fp8_blockwise"),
    "RTX-PRO-6000": (*OLDER, "fp8_blockwise", "nvfp4"),
} | dict.fromkeys(("L4", "RTX4090", "MI300X", "MI355X"), OLDER)
"""What Transformer Engine 2.20 pytorch/quantization.py accepts by compute capability; AMD's port is
taken to accept what is older than blocks."""
EIGHT_BITS = ("fp8_delayed", "fp8_current", "fp8_blockwise", "mxfp8", "nvfp4")


@pytest.mark.parametrize("framework", ["megatron_lm", "torchtitan"])
@pytest.mark.parametrize("gpus", UNCALIBRATED)
def test_each_gives_an_answer_that_says_datasheet(gpus: str, framework: str) -> None:
    advice = advisor.advise(model=UNCALIBRATED[gpus], gpus=gpus, framework=framework, quick=True)
    assert advice.calibration.provenance == "datasheet"
    assert advice.calibration.summary.startswith("uncalibrated, step time ±")
    assert advice.fits


@pytest.mark.parametrize("gpu", RECIPES)
def test_what_runs_in_8_bits_and_what_is_refused(gpu: str) -> None:
    for precision in EIGHT_BITS:
        request = {"model": "qwen3_0.6b", "gpus": f"1x{gpu}", "precision": precision}
        if precision in RECIPES[gpu]:
            assert advisor.advise(**request, recompute=["none"], quick=True).candidates
            continue
        with pytest.raises(UserError, match=f'precision="{precision}": .*; use (bf16|fp16|fp8_cu)'):
            advisor.advise(**request)


@pytest.mark.parametrize(
    ("gpus", "words", "says"),
    TABLES["test_what_a_gpu_lacks_is_refused_in_one_line"],
)
def test_what_a_gpu_lacks_is_refused_in_one_line(gpus: str, words: str, says: str, capsys) -> None:
    model = "mixtral_8x7b" if "moe_" in words else "llama3_8b"
    assert main(["--model", model, "--gpus", gpus, *words.split()]) == 2
    out, error = capsys.readouterr()
    assert (out, error.count("\n")) == ("", 1)
    assert says in error


def test_volta_trains_in_fp16_with_unfused_attention() -> None:
    """Transformer Engine has no other attention before Ampere, whose tensor cores know bf16."""
    request = {"model": "qwen3_0.6b", "gpus": "8xV100", "recompute": ["none"], "quick": True}
    for asked in ({}, {"model.attention_backend": "auto"}):
        advice = advisor.advise(**request, overrides=asked)
        job = json.loads(advice.to_json())["job"]
        assert job["precision"] == "fp16"
        assert job["model"]["attention_backend"] == "unfused"


def test_the_page_says_what_it_takes_for_granted(capsys: pytest.CaptureFixture[str]) -> None:
    def page(*words: str) -> str:
        assert main([*words]) == 0
        return " ".join(capsys.readouterr().out.split())

    amd = page("--model", "qwen3_8b", "--gpus", "16xMI300X")
    assert "AMD's port of Transformer Engine (ROCm/TransformerEngine) behaves like NVIDIA's" in amd
    assert "servers of 8 GPUs, with a network of 50 GB/s per GPU" in amd
    geforce = page("--model", "qwen3_0.6b", "--gpus", "2xRTX4090")
    assert "communicate over host memory (no peer-to-peer access), 31 GB/s per GPU" in geforce
    assert "uncalibrated, step time ±50 %" in geforce
    alone = page("--model", "qwen3_0.6b", "--gpus", "1xA10")
    assert "22.00 GiB usable (an estimate: what torch reports for this GPU is not" in alone
    assert "NVLink" not in alone


def test_the_one_published_run_on_amd_lies_within_the_band() -> None:
    """torchtitan's Llama 3 8B on 8 MI300X with torch.compile and op recompute: 5,376.5 tokens a
    second and GPU (pytorch/ao docs/source/workflows/training.md@36027d82), which no calibration was
    fitted to."""
    advice = advisor.advise(
        model="llama3_8b",
        gpus="8xMI300X",
        framework="torchtitan",
        framework_version="0.2",
        **batches(8192, 1, 8),
        recompute=["op:torchtitan"],
        overrides={"job.torch_compile": True},
    )
    (row,) = advice.candidates
    measured = 8192 / 5376.5
    assert row.step_time_low_seconds < measured < row.step_time_high_seconds
