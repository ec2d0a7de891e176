"""What a page shows to be copied, read by those who will read it."""

import ast
import json
import shlex
import subprocess

import pytest

from advisor.cli import main

JOB = "--model qwen3_32b --gpus 64xH100 --quick --framework"


def shown(
    capsys: pytest.CaptureFixture[str], framework: str, label: str, *more: str
) -> tuple[str, str]:
    """The block below its label on the page, and what `--format flags` prints."""
    words = [*JOB.split(), framework, *more]
    main.main([*words, "--format", "flags"])
    flags = capsys.readouterr().out
    main.main(words)
    page = f"\n{capsys.readouterr().out}"
    return page.partition(f"\n{label}")[2].partition("\n\n")[0].partition("\nEnvironment")[0], flags


@pytest.fixture(params=["60", "100"], autouse=True)
def width(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A narrow page and the usual one."""
    monkeypatch.setenv("COLUMNS", request.param)


def test_json_is_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    block, flags = shown(capsys, "deepspeed", "DeepSpeed\n")
    assert json.loads(block) == json.loads(flags)


def test_python_is_statements(capsys: pytest.CaptureFixture[str]) -> None:
    block, flags = shown(capsys, "fsdp2", "PyTorch\n")
    assert ast.dump(ast.parse(block)) == ast.dump(ast.parse(flags))


@pytest.mark.parametrize(
    ("framework", "label"),
    [
        ("megatron_lm", "Megatron-LM"),
        ("megatron_bridge", "Megatron Bridge"),
        ("torchtitan", "torchtitan"),
        ("huggingface", "Hugging Face"),
    ],
)
def test_a_shell_reads_the_same_words(capsys, framework: str, label: str) -> None:
    block, flags = shown(capsys, framework, label)
    lines = block.partition("\nMegatron Bridge")[0]
    code = f"printf '%s\\n' {lines.strip()}"
    done = subprocess.run(["sh", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == shlex.split(flags)


def test_what_goes_on_top_of_a_recipe_says_so(capsys, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    asked = ["--model", "deepseek_v3", "--gpus", "1024xH100", "--quick"]
    assert main.main([*asked, "--framework", "megatron_bridge"]) == 0
    page = capsys.readouterr().out
    assert "# on top of recipe deepseek_v3_pretrain_1024gpu_h100_bf16" in page
    assert main.main(asked) == 0
    assert "--pipeline-model-parallel-size 8" in capsys.readouterr().out
