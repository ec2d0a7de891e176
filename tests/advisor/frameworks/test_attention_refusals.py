"""Attention that a framework's layers do not have is refused in one line."""

import pytest

from advisor.cli.main import main
from tests.advisor.tables import tables

TABLES = tables(__file__)


@pytest.mark.parametrize(
    ("arguments", "says"),
    TABLES["test_one_line"],
)
def test_one_line(capsys: pytest.CaptureFixture[str], arguments: str, says: str) -> None:
    assert main(["--model", *arguments.split(), "--gpus", "8xH100"]) == 2
    error = capsys.readouterr().err
    assert says in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "says"),
    TABLES["test_options_of_megatron_are_none_of_a_pytorch_stack"],
)
def test_options_of_megatron_are_none_of_a_pytorch_stack(capsys, arguments: str, says: str) -> None:
    test_one_line(capsys, f"llama3_8b {arguments}", says)


@pytest.mark.parametrize(
    ("arguments", "says"),
    TABLES["test_the_framework_that_is_named_instead_builds_the_model"],
)
def test_the_framework_that_is_named_instead_builds_the_model(capsys, arguments, says) -> None:
    asked = ["--model", *arguments.split(), "--gpus", "256xH100"]
    assert main(asked) == 2
    error = capsys.readouterr().err
    assert says in error
    for way in error.strip().rpartition("; ")[2].split(", or "):
        assert main([*asked, *way.split(), "--top", "1", "--quick"]) in (0, 1)


def test_a_recipe_s_layers_are_split_anew_where_the_model_has_others(capsys) -> None:
    """DeepSeek-V3's recipe puts its multi-token prediction into the last stage by name."""
    asked = ["--model", "deepseek_v3", "--gpus", "1024xH100", "--format", "flags", "--quick"]
    for layers, text in (("null", "Et|(tt|)*30L"), ("1", "Et|(tt|)*30mL")):
        assert main([*asked, f"model.mtp_num_layers={layers}"]) in (0, 1)
        assert text in capsys.readouterr().out


@pytest.mark.parametrize("gpu", ["A100", "B200"])
def test_flash_attention_3_is_for_hopper(capsys: pytest.CaptureFixture[str], gpu: str) -> None:
    asked = "--model llama3_8b --framework huggingface job.attn_implementation=flash_attention_3"
    assert main([*asked.split(), "--gpus", "8xH200"]) == 0
    capsys.readouterr()
    assert main([*asked.split(), "--gpus", f"8x{gpu}"]) == 2
    error = capsys.readouterr().err
    assert "FlashAttention-3 needs a Hopper GPU" in error
    assert "job.attn_implementation=sdpa" in error
